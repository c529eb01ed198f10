"""How long the tail is: the share of requests (or gaps) that took longer, on axes that give each decade its room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.figures.palette import CLASS_DASHES, GROUND, Theme, class_color
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import count, duration, plain

_HEIGHT: Final = 320
_POINTS: Final = 400
"""Of a line: quantiles at even steps of the logarithm of what is left, each of them exact."""
_NARROW: Final = 8.0
"""Within less than this factor 1, 2 and 5 would leave the axis nearly without a number."""
_LEVELS: Final = (("p50", 0.5), ("p90", 0.1), ("p99", 0.01), ("p99.9", 0.001))


class Curve(NamedTuple):
    """The values of one class (ms, any order, no NaN)."""

    name: str
    values: NDArray[np.float64]


def log_tail_picture(
    curves: Sequence[Curve], name: str, words: str, theme: Theme = "light", *, what: str = "requests", empty: str = ""
) -> Picture:
    """One line a class: at each latency the share of its `what` that took longer."""
    known = [curve for curve in curves if curve.values.size]
    title = f"{words[0].upper()}{words[1:]}"
    if not known:
        return Picture(name=name, title=title, empty=empty or f"No {what} have this time.", layout=base_layout(theme))
    total = sum(int(curve.values.size) for curve in known)
    smallest = 1.0 / max(curve.values.size for curve in known)
    ground = GROUND[theme]
    # What is faster than nearly all of any class needs no room: two reads in one microsecond are no gap to look at.
    low = max(1e-3, min(float(np.quantile(curve.values, 0.005)) for curve in known))
    high = max(low, *(float(curve.values.max()) for curve in known))
    layout = base_layout(
        theme,
        height=_HEIGHT,
        xaxis=axis(
            theme,
            f"{words}, ms",
            type="log",
            exponentformat="none",
            tickformat=",~r",
            dtick="D2" if high / low > _NARROW else "D1",
            range=[float(np.log10(low)) - 0.04, float(np.log10(high)) + 0.04],
        ),
        yaxis=axis(
            theme,
            f"share of {what} that took longer",
            type="log",
            range=[float(np.log10(smallest)) - 0.1, 0.05],
            tickvals=[1, 0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6],
            ticktext=["all", "10 %", "1 %", "0.1 %", "0.01 %", "0.001 %", "0.0001 %"],
        ),
        legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"},
        showlegend=len(known) > 1,
        hovermode="closest",
        shapes=[
            {
                "type": "line",
                "x0": 0,
                "x1": 1,
                "xref": "paper",
                "y0": share,
                "y1": share,
                "line": {"color": ground["faint"], "width": 1, "dash": "dot"},
            }
            for _, share in _LEVELS
            if share >= smallest
        ],
        annotations=[
            {
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "xshift": 3,
                "y": float(np.log10(share)),
                "yanchor": "bottom",
                "text": level,
                "showarrow": False,
                "font": {"size": 11, "color": ground["faint"]},
            }
            for level, share in _LEVELS
            if share >= smallest
        ],
    )
    return Picture(
        name=name,
        title=_title(known, words),
        note=f"{count(total)} {what}. A straight line down is a thin tail; a shoulder to the right is a group of "
        f"{what} to which something else happened. Every point is an exact quantile.",
        alt=". ".join(_alt(curve) for curve in known),
        data=[_line(curve, place, theme) for place, curve in enumerate(known)],
        layout=layout,
    )


def _line(curve: Curve, place: int, theme: Theme) -> dict[str, Any]:
    ordered = np.sort(curve.values)
    n = int(ordered.size)
    # Ranks from all to the last one, even on the logarithm of what is left.
    left = np.unique(np.round(np.geomspace(n, 1, min(n, _POINTS))).astype(np.int64))[::-1]
    values = np.maximum(ordered[n - left], 1e-3)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{plain(curve.name)} (n = {count(n)})",
        "x": np.round(values, 3).tolist(),
        "y": (left / n).tolist(),
        "line": {
            "color": class_color(place, theme),
            "width": 2,
            "dash": CLASS_DASHES[place % len(CLASS_DASHES)],
            "shape": "hv",
        },
        "hovertemplate": f"<b>{plain(curve.name)}</b><br>%{{y:.3~%}} took longer than %{{x:,.4~r}} ms<extra></extra>",
    }


def _title(curves: Sequence[Curve], words: str) -> str:
    worst = max(curves, key=lambda curve: float(curve.values.max()))
    middle, longest = duration(float(np.median(worst.values))), duration(float(worst.values.max()))
    head = f"{words[0].upper()}{words[1:]}"
    if len(curves) == 1:
        return f"{head}: half within {middle}, the longest {longest}"
    # The median of one class must not read as the median of all.
    return f"{head}: the longest, {longest}, is of class {worst.name}; half of that class within {middle}"


def _alt(curve: Curve) -> str:
    levels = ", ".join(
        f"{level} {duration(float(np.quantile(curve.values, 1 - share)))}"
        for level, share in _LEVELS
        if curve.values.size * share >= 5
    )
    return f"{curve.name}, n {count(int(curve.values.size))}: {levels or 'too few for a percentile'}"
