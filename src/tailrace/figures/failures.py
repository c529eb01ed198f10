"""What did not complete: counts by reason, coloured by the stage in which the request died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tailrace.analyze.failures import FailureRow
from tailrace.figures.palette import GROUND, Theme, readable_on, stage_color
from tailrace.figures.picture import Picture, axis, base_layout, legend, stage_marker
from tailrace.figures.wording import count, duration, percent, plain
from tailrace.model.stage import STAGES

NAME: Final = "failures"
NOTHING_YET: Final = "No request has ended in this window. Send one through the gateway, or choose a longer window."
ROWS: Final = 12
"""Reasons shown; how many are left out is told in the note."""
_ROW_HEIGHT: Final = 46
_LABEL_SHARE: Final = 0.06


def failures_picture(rows: Sequence[FailureRow], n: int, theme: Theme = "light") -> Picture:
    """Stacked horizontal bars: reason on the axis, count along it, stage as colour. `n`: all requests that ended."""
    if not n:
        return Picture(name=NAME, title="Failures", empty=NOTHING_YET, layout=base_layout(theme))
    if not rows:
        return Picture(
            name=NAME,
            title=f"All {count(n)} requests completed",
            empty="Nothing failed, timed out, was refused or was cancelled in this window.",
            layout=base_layout(theme),
        )
    by_reason: dict[tuple[str, str], dict[str, FailureRow]] = {}
    for row in rows:
        by_reason.setdefault((row.reason, row.outcome), {})[row.stage] = row
    ranked = sorted(by_reason.items(), key=lambda item: (-_total(item[1]), item[0]))
    shown = ranked[:ROWS][::-1]  # Plotly draws the first category at the bottom.
    present = {stage for _, stages in shown for stage in stages}
    order = [str(stage) for stage in STAGES if stage in present] + sorted(present - set(STAGES))
    highest = max(_total(stages) for _, stages in shown)
    layout = base_layout(
        theme,
        height=_ROW_HEIGHT * len(shown) + 60,
        barmode="stack",
        bargap=0.3,
        showlegend=True,
        # Whole requests only: without a dtick, a small count gets ticks at halves.
        xaxis=axis(theme, "requests", rangemode="tozero", tickformat=",d", **({"dtick": 1} if highest < 8 else {})),
        yaxis=axis(theme, fixedrange=True, tickfont={"color": GROUND[theme]["ink"], "size": 12}, showgrid=False),
        legend=legend(),
    )
    return Picture(
        name=NAME,
        title=_title(rows, n),
        note=_note(len(ranked) - len(shown)),
        alt=". ".join(f"{row.outcome}, {row.reason} in {row.stage}: {count(row.n)}" for row in rows[:ROWS]),
        data=[_stage_trace(stage, shown, highest, theme) for stage in order],
        layout=layout,
    )


def _total(stages: dict[str, FailureRow]) -> int:
    return sum(row.n for row in stages.values())


def _stage_trace(
    stage: str, shown: list[tuple[tuple[str, str], dict[str, FailureRow]]], highest: int, theme: Theme
) -> dict[str, Any]:
    found = [stages.get(stage) for _, stages in shown]
    values = [row.n if row else 0 for row in found]
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"in {plain(stage)}",
        "meta": {"stage": stage, "label": stage},
        "y": [f"{_words(reason)}<br>{_words(outcome)}" for (reason, outcome), _ in shown],
        "x": values,
        "text": [count(value) if value / highest > _LABEL_SHARE else "" for value in values],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"color": readable_on(stage_color(stage, theme)), "size": 12},
        "marker": stage_marker(stage, theme),
        "customdata": [[percent(row.share), duration(row.median_age_ms)] if row else ["", ""] for row in found],
        "hovertemplate": f"<b>%{{y}}</b><br>in {plain(stage)}: %{{x:,}} (%{{customdata[0]}} of all requests)"
        "<br>half of them ended before %{customdata[1]}<extra></extra>",
    }


def _words(name: str) -> str:
    return plain(name.replace("_", " ")) or "no reason given"


def _title(rows: Sequence[FailureRow], n: int) -> str:
    failed = sum(row.n for row in rows)
    worst = rows[0]
    title = f"{count(failed)} of {count(n)} requests ({percent(failed / n)}) did not complete"
    if len(rows) == 1:
        return f"{title}: {worst.reason} in {worst.stage}"
    return f"{title}; most often: {worst.reason} in {worst.stage} ({count(worst.n)})"


def _note(hidden: int) -> str:
    note = "By reason, coloured by the stage in which each request ended."
    return f"{note} {hidden} rarer reasons are not shown." if hidden > 0 else note
