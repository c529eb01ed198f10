"""Where the time went: bars of stages, in the order of a request's life, for the mean, the middle and the tail."""

from __future__ import annotations

from typing import Any, Final

from tailrace.figures.interim import Decomposition, StageBar
from tailrace.figures.palette import GROUND, Theme, readable_on, stage_color, stage_pattern
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import count, duration, percent, plain

EMPTY: Final = "No request has completed in this window. Send one through the gateway, or choose a longer window."
_LABELS: Final = {"mean": "mean", "p50": "around p50", "p99": "around p99"}
_LABEL_SHARE: Final = 0.07
"""A segment narrower than this share of the longest bar gets no text: it would be clipped."""


def decomposition_picture(analysis: Decomposition, theme: Theme = "light") -> Picture:
    """Stacked horizontal bars, one a group of requests, in ms; parts of `queue` are shown apart where known."""
    if not analysis.bars:
        return Picture(name="stages", title="Where the time went", empty=EMPTY, layout=base_layout(theme))
    bars = analysis.bars[::-1]  # Plotly draws the first category at the bottom; the mean belongs on top.
    longest = max(bar.total_ms for bar in bars) or 1.0
    stages = list(dict.fromkeys(stage for bar in bars for stage in bar.stages))
    data = [_stage_trace(stage, bars, analysis, longest, theme) for stage in stages]
    layout = base_layout(
        theme,
        barmode="stack",
        bargap=0.34,
        xaxis=axis(theme, "milliseconds of end-to-end time", rangemode="tozero", range=[0, longest * 1.14]),
        yaxis=axis(theme, fixedrange=True, tickfont={"color": GROUND[theme]["ink"], "size": 12}),
        legend={"orientation": "h", "y": -0.28, "x": 0, "traceorder": "normal", "yanchor": "top"},
        annotations=[
            {
                "x": bar.total_ms,
                "y": _label(bar),
                "text": duration(bar.total_ms),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 5,
                "font": {"size": 13, "color": GROUND[theme]["ink"]},
            }
            for bar in bars
        ],
    )
    return Picture(name="stages", title=_title(analysis), note=_note(analysis), data=data, layout=layout)


def _label(bar: StageBar) -> str:
    return f"{_LABELS.get(bar.name, plain(bar.name))}<br>n = {count(bar.n)}"


def _stage_trace(
    stage: str, bars: list[StageBar], analysis: Decomposition, longest: float, theme: Theme
) -> dict[str, Any]:
    color = stage_color(stage, theme)
    values = [bar.stages.get(stage, 0.0) for bar in bars]
    shares = [value / bar.total_ms if bar.total_ms else 0.0 for value, bar in zip(values, bars, strict=True)]
    hatch = stage_pattern(stage)
    # On a hatch, letters are unreadable: the segment is labelled by its legend entry and hover only.
    text = [
        f"{percent(share)}" if value / longest >= _LABEL_SHARE and not hatch else ""
        for value, share in zip(values, shares, strict=True)
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": stage,
        "meta": {"stage": stage},
        "y": [_label(bar) for bar in bars],
        "x": [round(value, 3) for value in values],
        "text": text,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"color": readable_on(color), "size": 12},
        "marker": {
            "color": color,
            "line": {"color": GROUND[theme]["paper"], "width": 1},
            "pattern": {"shape": hatch, "fgcolor": GROUND[theme]["paper"], "bgcolor": color, "size": 6, "solidity": 0.3},
        },
        "customdata": [
            [duration(value), percent(share), _sources(analysis, stage)]
            for value, share in zip(values, shares, strict=True)
        ],
        "hovertemplate": f"<b>{stage}</b><br>%{{customdata[0]}} · %{{customdata[1]}} of the bar"
        "<br>%{customdata[2]}<extra></extra>",
    }


def _sources(analysis: Decomposition, stage: str) -> str:
    seen = analysis.sources.get(stage, {})
    total = sum(seen.values())
    if not total:
        return "source not recorded"
    ranked = sorted(seen.items(), key=lambda item: -item[1])
    shown = "<br>".join(f"{plain(source)}: {percent(number / total)}" for source, number in ranked[:3])
    return f"how it is known:<br>{shown}"


def _title(analysis: Decomposition) -> str:
    bars = {bar.name: bar for bar in analysis.bars}
    tail = bars.get("p99") or analysis.bars[-1]
    stage, value = max(tail.stages.items(), key=lambda item: item[1])
    where = _LABELS.get(tail.name, tail.name)
    middle = bars.get("p50")
    if not tail.total_ms:
        return "Where the time went"
    head = f"Requests {where} take {duration(tail.total_ms)}: {percent(value / tail.total_ms)} of it is {stage}"
    if middle is not None and middle is not tail and middle.total_ms:
        head += f" ({percent(middle.stages.get(stage, 0.0) / middle.total_ms)} around p50)"
    return head


def _note(analysis: Decomposition) -> str:
    return (
        f"{count(analysis.n)} completed requests, end to end. Each bar is the mean over the requests near that "
        "quantile, so its stages add up."
    )
