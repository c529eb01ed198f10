"""Requests over the time of a run: each at the moment at which it was due, as high as it took, failures marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.figures.palette import CLASS_SYMBOLS, FAILED, Theme, class_color
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import count, duration, plain

TIME_AXIS: Final = "since the start of the run, s"
_HEIGHT: Final = 300


class Dots(NamedTuple):
    """Requests of one class that are drawn, and how many there are."""

    name: str
    at_s: NDArray[np.float64]
    ms: NDArray[np.float64]
    n: int


class Crosses(NamedTuple):
    """Requests that did not complete: when they were due, how old they were at their end, and why it was."""

    at_s: NDArray[np.float64]
    ms: NDArray[np.float64]
    why: Sequence[str]
    n: int


def over_time_picture(classes: Sequence[Dots], lost: Crosses, name: str, words: str, theme: Theme = "light") -> Picture:
    """A cloud of requests. The height is a logarithm: the typical request and the slowest one in one picture."""
    known = [dots for dots in classes if dots.n]
    title = f"{words[0].upper()}{words[1:]} over time"
    if not known and not lost.n:
        return Picture(name=name, title=title, empty="No request has this time.", layout=base_layout(theme))
    layout = base_layout(
        theme,
        height=_HEIGHT,
        xaxis=axis(theme, TIME_AXIS, rangemode="tozero"),
        yaxis=axis(theme, f"{words}, ms", type="log", exponentformat="none", tickformat=",~r", dtick="D2"),
        legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom", "itemsizing": "constant"},
        showlegend=len(known) + bool(lost.n) > 1,
        hovermode="closest",
    )
    data = [_dots(dots, place, theme) for place, dots in enumerate(known)]
    if lost.n:
        floor = min((float(dots.ms.min()) for dots in known if dots.ms.size), default=1e-3)
        data.append(_crosses(lost, floor, theme))
    return Picture(
        name=name,
        title=_title(known, lost, words),
        note=_note(known, lost),
        alt="; ".join([f"{dots.name}: {count(dots.n)} requests" for dots in known] + [f"{count(lost.n)} failed"]),
        data=data,
        layout=layout,
    )


def _dots(dots: Dots, place: int, theme: Theme) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(dots.name),
        "x": np.round(dots.at_s, 3).tolist(),
        "y": np.round(np.maximum(dots.ms, 1e-3), 2).tolist(),
        "marker": {
            "color": class_color(place, theme),
            "symbol": CLASS_SYMBOLS[place % len(CLASS_SYMBOLS)],
            "size": 5,
            "opacity": 0.6,
        },
        "hovertemplate": f"<b>{plain(dots.name)}</b><br>%{{y:,.4~r}} ms at %{{x:,.1f}} s<extra></extra>",
    }


def _crosses(lost: Crosses, floor: float, theme: Theme) -> dict[str, Any]:
    """Refusals end at once: below the fastest answer they stand on the lower edge, or they would squeeze the rest."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "failed, by its age at the end",
        "x": np.round(lost.at_s, 3).tolist(),
        "y": np.round(np.maximum(lost.ms, max(floor * 0.8, 1e-3)), 3).tolist(),
        "text": [
            f"{plain(why.replace('_', ' '))} after {duration(ms)}"
            for why, ms in zip(lost.why, lost.ms.tolist(), strict=True)
        ],
        "marker": {"color": FAILED[theme], "symbol": "x", "size": 8},
        "hovertemplate": "<b>%{text}</b><br>due at %{x:,.1f} s<extra></extra>",
    }


def _title(known: Sequence[Dots], lost: Crosses, words: str) -> str:
    peaks = [
        (float(dots.ms.max()), float(dots.at_s[int(dots.ms.argmax())]), dots.name) for dots in known if dots.ms.size
    ]
    tail = f"; {count(lost.n)} did not complete" if lost.n else ""
    if not peaks:
        return f"None of {count(lost.n)} requests completed"
    height, when, who = max(peaks)
    of = f" ({who})" if len(known) > 1 else ""
    return f"{words[0].upper()}{words[1:]}: the longest, {duration(height)}{of}, was due at {when:,.1f} s{tail}"


def _note(known: Sequence[Dots], lost: Crosses) -> str:
    drawn = sum(int(dots.at_s.size) for dots in known)
    total = sum(dots.n for dots in known)
    note = "Each request at the time at which it was due."
    if lost.n:
        note += (
            " A cross is one that failed, at its age when it did; one that failed sooner than any answer came is on "
            "the lower edge."
        )
    if drawn < total:
        note += (
            f" Of {count(total)} completed requests {count(drawn)} are drawn: the slowest, and an even sample of the "
            "rest. All percentiles on this page come from all of them."
        )
    if len(lost.at_s) < lost.n:
        note += f" Of {count(lost.n)} failed ones {count(len(lost.at_s))} are drawn."
    return note
