"""Lines over the time of a run: throughput, requests in flight, errors, the client's lag, the engine's own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.figures.over_time import TIME_AXIS
from tailrace.figures.palette import CLASS_DASHES, FAILED, Theme, class_color
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import count, plain

_HEIGHT: Final = 230
_PATTERNS: Final = ("", "/", "x", "\\", "-", "+", "|", ".")


class Line(NamedTuple):
    """One line: its name, and a value at each moment (NaN leaves a hole)."""

    name: str
    at_s: NDArray[np.float64]
    values: NDArray[np.float64]
    right: bool = False
    """Against the axis on the right."""
    fill: bool = False


def lines_picture(
    lines: Sequence[Line],
    name: str,
    title: str,
    unit: str,
    theme: Theme = "light",
    *,
    note: str = "",
    right: str = "",
    right_format: str = "",
    right_top: float | None = None,
    empty: str = "",
) -> Picture:
    """Lines against time; those that say `right` have an axis of their own with that unit, up to `right_top`."""
    known = [line for line in lines if line.values.size and not np.isnan(line.values).all()]
    if not known:
        return Picture(
            name=name, title=title, empty=empty or "Nothing was measured of this.", layout=base_layout(theme)
        )
    layout = base_layout(
        theme,
        height=_HEIGHT,
        xaxis=axis(theme, TIME_AXIS, rangemode="tozero"),
        yaxis=axis(theme, unit, rangemode="tozero", tickformat=",~r"),
        legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"},
        showlegend=len(known) > 1,
        hovermode="x unified",
    )
    if any(line.right for line in known):
        layout["yaxis2"] = axis(
            theme, right, overlaying="y", side="right", rangemode="tozero", tickformat=right_format, showgrid=False
        )
        if right_top is not None:
            layout["yaxis2"]["range"] = [0, right_top]
    return Picture(
        name=name,
        title=title,
        note=note,
        alt="; ".join(_alt(line) for line in known),
        data=[_trace(line, place, theme) for place, line in enumerate(known)],
        layout=layout,
    )


def _trace(line: Line, place: int, theme: Theme) -> dict[str, Any]:
    color = class_color(place, theme)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines" if line.values.size > 1 else "markers",
        "name": plain(line.name),
        "x": np.round(line.at_s, 3).tolist(),
        "y": [None if value != value else round(value, 4) for value in line.values.tolist()],  # noqa: PLR0124
        "line": {"color": color, "width": 2, "dash": CLASS_DASHES[place % len(CLASS_DASHES)]},
        "connectgaps": False,
    }
    if line.fill:
        trace |= {"fill": "tozeroy", "fillcolor": f"{color}22"}
    if line.right:
        trace["yaxis"] = "y2"
    return trace


def _alt(line: Line) -> str:
    known = line.values[~np.isnan(line.values)]
    return f"{line.name}: mean {_short(float(known.mean()))}, highest {_short(float(known.max()))}"


def _short(value: float) -> str:
    """Three digits, and never `1.78e+03`."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{round(value, 3):.3g}"


def errors_picture(
    at_s: NDArray[np.float64], failed: Mapping[str, NDArray[np.float64]], n: int, theme: Theme = "light"
) -> Picture:
    """Stacked bars: how many requests ended without completing, by reason, at the time when they did."""
    total = int(sum(values.sum() for values in failed.values()))
    if not total:
        return Picture(
            name="errors",
            title="No request failed",
            empty="Nothing failed, timed out or was refused.",
            layout=base_layout(theme),
        )
    ranked = sorted(failed, key=lambda reason: -float(failed[reason].sum()))
    width = float(at_s[1] - at_s[0]) if at_s.size > 1 else 1.0
    layout = base_layout(
        theme,
        height=_HEIGHT,
        barmode="stack",
        bargap=0.05,
        xaxis=axis(theme, TIME_AXIS, rangemode="tozero"),
        yaxis=axis(theme, f"requests in {width:g} s", rangemode="tozero", tickformat=",d"),
        legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom", "traceorder": "normal"},
        showlegend=True,
        hovermode="x unified",
    )
    data = [
        {
            "type": "bar",
            "name": plain(reason.replace("_", " ")),
            "x": np.round(at_s, 3).tolist(),
            "y": failed[reason].astype(int).tolist(),
            "width": width * 0.95,
            "marker": {
                "color": FAILED[theme] if not place else class_color(place - 1, theme),
                "pattern": {"shape": _PATTERNS[place % len(_PATTERNS)], "size": 6, "solidity": 0.3},
            },
        }
        for place, reason in enumerate(ranked)
    ]
    peak = float(at_s[int(np.sum([failed[reason] for reason in ranked], axis=0).argmax())])
    return Picture(
        name="errors",
        title=f"{count(total)} of {count(n)} requests failed, most of them around {peak:,.1f} s",
        note="At the time at which each ended.",
        alt="; ".join(f"{reason}: {count(int(failed[reason].sum()))}" for reason in ranked),
        data=data,
        layout=layout,
    )
