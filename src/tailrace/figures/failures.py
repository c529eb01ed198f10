"""What did not complete: counts by reason, coloured by the stage in which the request died."""

from __future__ import annotations

from typing import Final

from tailrace.figures.interim import Failures
from tailrace.figures.palette import GROUND, Theme, readable_on, stage_color, stage_pattern
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import count, percent, plain
from tailrace.model.stage import STAGES

NOTHING_YET: Final = "No request has ended in this window. Send one through the gateway, or choose a longer window."
ROWS: Final = 12
"""Reasons shown; a longer tail is told in the note."""


def failures_picture(analysis: Failures, theme: Theme = "light") -> Picture:
    """Stacked horizontal bars: reason on the axis, count along it, stage as colour."""
    failed = sum(sum(stages.values()) for stages in analysis.counts.values())
    if not analysis.n:
        return Picture(name="failures", title="Failures", empty=NOTHING_YET, layout=base_layout(theme))
    if not failed:
        return Picture(
            name="failures",
            title=f"All {count(analysis.n)} requests completed",
            empty="Nothing failed, timed out, was refused or was cancelled in this window.",
            layout=base_layout(theme),
        )
    ranked = sorted(analysis.counts.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    shown = ranked[:ROWS][::-1]
    names = [f"{plain(reason)}<br>{plain(analysis.outcomes.get(reason, ''))}" for reason, _ in shown]
    present = {stage for _, stages in shown for stage in stages}
    order = [str(stage) for stage in STAGES if stage in present] + sorted(present - set(STAGES))
    highest = max(sum(stages.values()) for _, stages in shown)
    data = []
    for stage in order:
        color = stage_color(stage, theme)
        values = [stages.get(stage, 0) for _, stages in shown]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(f"in {stage}"),
                "meta": {"stage": stage},
                "y": names,
                "x": values,
                "text": [count(value) if value / highest > 0.06 else "" for value in values],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "none",
                "textfont": {"color": readable_on(color), "size": 12},
                "marker": {
                    "color": color,
                    "line": {"color": GROUND[theme]["paper"], "width": 1},
                    "pattern": {"shape": stage_pattern(stage), "fgcolor": GROUND[theme]["paper"], "bgcolor": color,
                                "size": 6, "solidity": 0.3},
                },
                "customdata": [percent(value / analysis.n) for value in values],
                "hovertemplate": f"<b>%{{y}}</b><br>in {plain(stage)}: %{{x:,}} (%{{customdata}} of all requests)"
                "<extra></extra>",
            }
        )  # fmt: skip
    layout = base_layout(
        theme,
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        xaxis=axis(theme, "requests", rangemode="tozero", tickformat=",d"),
        yaxis=axis(theme, fixedrange=True, tickfont={"color": GROUND[theme]["ink"], "size": 12}),
        legend={"orientation": "h", "y": -0.28, "x": 0, "traceorder": "normal", "yanchor": "top"},
    )
    reason, stages = ranked[0]
    stage = max(stages.items(), key=lambda item: item[1])[0]
    title = f"{count(failed)} of {count(analysis.n)} requests ({percent(failed / analysis.n)}) did not complete"
    title += f"; most: {reason} in {stage} ({count(stages[stage])})" if len(ranked) > 1 or len(stages) > 1 else f": {reason} in {stage}"
    hidden = len(ranked) - len(shown)
    note = "By reason, coloured by the stage in which each request ended."
    if hidden > 0:
        note += f" {hidden} rarer reasons are not shown."
    return Picture(name="failures", title=title, note=note, data=data, layout=layout)
