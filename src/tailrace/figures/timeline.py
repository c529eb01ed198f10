"""One request's life after its first token: the gap before every event that carried a token."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from tailrace.figures.palette import GROUND, Theme, stage_color
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import count, duration, percent
from tailrace.model.record import RequestRecord
from tailrace.model.stage import Stage
from tailrace.model.thresholds import MS, SlowThresholds
from tailrace.model.timeline import EventKind, Timeline

NOT_KEPT: Final = (
    "This request's timeline was not kept: slow, failed, cancelled, timed-out and refused requests keep theirs, of "
    "the others a sample does."
)
_HEIGHT: Final = 300
NO_TOKENS: Final = "No token was seen in this request's stream, so there are no gaps to show."


def timeline_picture(
    record: RequestRecord, theme: Theme = "light", thresholds: SlowThresholds | None = None
) -> Picture:
    """Bars at each token's time, as high as the gap before it (ms); gaps above the threshold stand out."""
    timeline = record.timeline
    if timeline is None:
        return Picture(name="timeline", title="Gaps between tokens", empty=NOT_KEPT, layout=base_layout(theme))
    stamps = timeline.token_stamps()
    if not stamps:
        return Picture(name="timeline", title="Gaps between tokens", empty=NO_TOKENS, layout=base_layout(theme))
    limit = (thresholds or SlowThresholds()).gap_ns / MS
    at = [stamp / MS for stamp in stamps]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    ground = GROUND[theme]
    data = [
        _stems([(x, gap) for x, gap in zip(at[1:], gaps, strict=True) if gap <= limit], "gap", _decode(theme)),
        _stems(
            [(x, gap) for x, gap in zip(at[1:], gaps, strict=True) if gap > limit],
            f"gap over {duration(limit)}",
            stage_color(Stage.ENCODE, theme),
        ),
        _others(timeline, theme),
    ]
    layout = base_layout(
        theme,
        height=_HEIGHT,
        xaxis=axis(theme, "since the request was received, ms", rangemode="tozero", tickformat=",~r"),
        yaxis=axis(theme, "gap before the token, ms", rangemode="tozero", fixedrange=True),
        legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"},
        showlegend=True,
        hovermode="closest",
        shapes=[
            {
                "type": "line",
                "x0": at[0],
                "x1": at[0],
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": ground["faint"], "width": 1, "dash": "dot"},
            }
        ],
        annotations=[
            {
                "x": at[0],
                "y": 1,
                "yref": "paper",
                "text": f"first token, {duration(at[0])}",
                "showarrow": False,
                "xanchor": "left",
                "xshift": 4,
                "yanchor": "top",
                "font": {"size": 11, "color": ground["faint"]},
            }
        ],
    )
    return Picture(
        name="timeline", title=_title(at, gaps, limit), note=_note(timeline, len(stamps)), data=data, layout=layout
    )


def _decode(theme: Theme) -> str:
    return stage_color(Stage.DECODE, theme)


def _stems(points: list[tuple[float, float]], name: str, color: str) -> dict[str, Any]:
    """Thin vertical lines from zero. A bar trace would need a width; a token has none."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for x, gap in points:
        xs += [round(x, 3), round(x, 3), None]
        ys += [0, round(gap, 3), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "name": name,
        "line": {"color": color, "width": 2},
        "hovertemplate": "%{y:.1f} ms at %{x:,.0f} ms<extra></extra>",
    }


def _others(timeline: Timeline, theme: Theme) -> dict[str, Any]:
    events = [
        (at / MS, EventKind(kind).name.lower())
        for at, kind in zip(timeline.at_ns, timeline.kind, strict=True)
        if kind > EventKind.REFUSAL and kind <= EventKind.OTHER
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [round(x, 3) for x, _ in events],
        "y": [0] * len(events),
        "text": [name for _, name in events],
        "name": "other events",
        "marker": {"symbol": "diamond", "size": 8, "color": GROUND[theme]["faint"]},
        "hovertemplate": "%{text} at %{x:,.0f} ms<extra></extra>",
        "cliponaxis": False,
    }


def _title(at: list[float], gaps: list[float], limit: float) -> str:
    if not gaps:
        return f"One token, {duration(at[0])} after the request"
    longest = max(gaps)
    span = at[-1] - at[0]
    share = f", {percent(longest / span)} of the decode" if span else ""
    over = sum(gap > limit for gap in gaps)
    tail = f"; {count(over)} of {count(len(gaps))} gaps over {duration(limit)}" if over else ""
    return f"Longest gap between tokens: {duration(longest)}{share}{tail}"


def _note(timeline: Timeline, events: int) -> str:
    note = f"{count(events)} events with tokens."
    if timeline.thinned:
        note += (
            f" {count(timeline.thinned)} more were merged into their neighbours to keep the timeline bounded; the "
            "longest gaps are real, some short ones are sums."
        )
    return note
