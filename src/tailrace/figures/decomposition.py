"""Where the time went: bars of stages, in the order of a request's life, for the mean, the middle and the tail."""

from __future__ import annotations

from typing import Any, Final

from tailrace.analyze.stage_groups import StageGroup, StageGroups
from tailrace.figures.palette import GROUND, Theme, readable_on, stage_color
from tailrace.figures.picture import Picture, axis, base_layout, legend, stage_marker
from tailrace.figures.wording import METRIC_NAMES, count, duration, percent, plain

NAME: Final = "stages"
_EMPTY: Final = {
    "e2e": "No request has completed in this window. Send one through the gateway, or choose a longer window.",
    "ttft": "No completed request with a first token in this window. Send a streamed one through the gateway, choose "
    "a longer window, or look at the end-to-end time.",
}
_LABELS: Final = {"mean": "mean", "p50": "around p50", "p99": "around p99", "slowest": "slowest"}
_LABEL_SHARE: Final = 0.06
"""A segment narrower than this share of the longest bar gets no text: it would be clipped."""
_HEIGHT: Final = 250


def decomposition_picture(analysis: StageGroups, theme: Theme = "light") -> Picture:
    """Stacked horizontal bars, one a group of requests, in ms; parts of `queue` are shown apart where known."""
    metric = METRIC_NAMES[analysis.total]
    if not analysis.groups:
        return Picture(name=NAME, title="Where the time went", empty=_EMPTY[analysis.total], layout=base_layout(theme))
    groups = analysis.groups[::-1]  # Plotly draws the first category at the bottom; the mean belongs on top.
    longest = max(group.total_ms for group in groups) or 1.0
    stages = list(dict.fromkeys(stage for group in groups for stage in group.stages_ms))
    ink = GROUND[theme]["ink"]
    layout = base_layout(
        theme,
        height=_HEIGHT,
        barmode="stack",
        bargap=0.3,
        xaxis=axis(theme, f"{metric}, ms", rangemode="tozero", tickformat=",~r"),
        yaxis=axis(theme, fixedrange=True, tickfont={"color": ink, "size": 12}, showgrid=False),
        legend=legend(),
        annotations=[
            {
                "x": group.total_ms,
                "y": _label(group),
                "text": duration(group.total_ms),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 5,
                "font": {"size": 13, "color": ink},
            }
            for group in groups
        ],
    )
    return Picture(
        name=NAME,
        title=_title(analysis),
        note=_note(analysis, metric),
        alt=_alt(analysis),
        data=[_stage_trace(stage, groups, analysis, longest, theme) for stage in stages],
        layout=layout,
    )


def _label(group: StageGroup) -> str:
    return f"{_LABELS.get(group.name, plain(group.name))}<br>n = {count(group.rows)}"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _stage_trace(
    stage: str, groups: list[StageGroup], analysis: StageGroups, longest: float, theme: Theme
) -> dict[str, Any]:
    values = [group.stages_ms.get(stage, 0.0) for group in groups]
    shares = [_share(value, group.total_ms) for value, group in zip(values, groups, strict=True)]
    # Beside its parts, the stage's own bar is what nobody has split.
    label = f"{stage} (not split)" if any(name.startswith(f"{stage}.") for name in groups[0].stages_ms) else stage
    wide = [value / longest >= _LABEL_SHARE for value in values]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "meta": {"stage": stage, "label": label},
        "y": [_label(group) for group in groups],
        "x": [round(value, 3) for value in values],
        "text": [percent(share) if shown else "" for share, shown in zip(shares, wide, strict=True)],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"color": readable_on(stage_color(stage, theme)), "size": 12},
        "marker": stage_marker(stage, theme),
        "customdata": [
            [duration(value), percent(share), _sources(analysis, stage)]
            for value, share in zip(values, shares, strict=True)
        ],
        "hovertemplate": f"<b>{plain(label)}</b><br>%{{customdata[0]}} · %{{customdata[1]}} of the bar"
        "<br>%{customdata[2]}<extra></extra>",
    }


def _sources(analysis: StageGroups, stage: str) -> str:
    seen = analysis.sources.get(stage, {})
    total = sum(seen.values())
    if not total:
        return "source not recorded"
    ranked = sorted(seen.items(), key=lambda item: -item[1])
    return "<br>".join(f"{plain(source)}: {percent(number / total)}" for source, number in ranked[:3])


def _title(analysis: StageGroups) -> str:
    groups = {group.name: group for group in analysis.groups}
    tail, middle = analysis.groups[-1], groups.get("p50")
    if not tail.stages_ms or not tail.total_ms:
        return "Where the time went"
    stage, value = max(tail.stages_ms.items(), key=lambda item: item[1])
    where = "The slowest requests" if tail.name == "slowest" else f"Requests {_LABELS[tail.name]}"
    verb = "wait" if analysis.total == "ttft" else "take"
    what = " for the first token" if analysis.total == "ttft" else ""
    head = f"{where} {verb} {duration(tail.total_ms)}{what}: {percent(_share(value, tail.total_ms))} of it is {stage}"
    if middle is None or middle is tail:
        return head
    return f"{head} ({percent(_share(middle.stages_ms.get(stage, 0.0), middle.total_ms))} around p50)"


def _note(analysis: StageGroups, metric: str) -> str:
    tail = analysis.groups[-1]
    note = (
        f"{metric[0].upper()}{metric[1:]} of {count(analysis.n)} completed requests. Each bar is the mean over its n "
        "requests, so its stages add up."
    )
    if tail.name == "slowest":
        note += f" A p99 needs n ≥ 500; the {count(tail.rows)} slowest stand in its place."
    return note


def _alt(analysis: StageGroups) -> str:
    def stages(group: StageGroup) -> str:
        longest_first = sorted(group.stages_ms.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {duration(ms)}" for name, ms in longest_first if ms)

    return ". ".join(
        f"{_LABELS.get(group.name, group.name)}: {duration(group.total_ms)}, of which {stages(group)}"
        for group in analysis.groups
    )
