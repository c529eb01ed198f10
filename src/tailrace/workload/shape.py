"""Shapes: a rate (or a number of workers) as a function of time, as people write it on one line.

::

    5                                  always 5
    2..20 over 60s                     a ramp, then 20            (add `exponential`, or `in 6 steps`)
    5 for 30s, 20 for 10s, 5           steps
    5, spike 50 for 2s every 30s       a spike at 30 s, 60 s, ... (`spike x10`: ten times what is there)
    5, spike 50 for 2s at 45s          one spike
    5 for 30s, 20 for 10s, repeat      again from the beginning

The last level goes on for as long as the run does. `shape_text.parse_shape` and `str(shape)` are inverses.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec

from tailrace.model.errors import InputError
from tailrace.model.thresholds import UNITS, S

__all__ = ["EXAMPLES", "LONGEST_NS", "MOST", "Form", "Segment", "Shape", "Spike", "number_text", "span_text"]

EXAMPLES: Final = "5, '2..20 over 60s', '5 for 30s, 20 for 10s, 5' or '5, spike 50 for 2s every 30s'"
LEAST: Final = 1e-6
"""A rate below this (but 0) is a slip of the keyboard too: one request in eleven days."""
MOST: Final = 1e7
"""A rate above this is a slip of the keyboard: no machine sends ten million requests a second."""
LONGEST_NS: Final = 400 * UNITS["d"]
SHORTEST_NS: Final = 1_000_000


class Form(StrEnum):
    """How the rate goes from a segment's beginning to its end."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time. `start` and `end` are levels (requests a second, or workers)."""

    start: float
    end: float
    span_ns: int | None = None
    """`None`: to the end of the run; only the last segment, and only of a level."""
    form: Form = Form.LINEAR
    steps: int = 0
    """Above 1: in so many equal stretches of constant level, the first at `start`, the last at `end`."""

    def __str__(self) -> str:
        level = number_text(self.start)
        if self.start != self.end or self.form is Form.EXPONENTIAL or self.steps:
            assert self.span_ns is not None
            form = " exponential" if self.form is Form.EXPONENTIAL else ""
            steps = f" in {self.steps} steps" if self.steps else ""
            return f"{level}..{number_text(self.end)} over {span_text(self.span_ns)}{form}{steps}"
        return level if self.span_ns is None else f"{level} for {span_text(self.span_ns)}"


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """A short stretch laid over the rest: of a level of its own, or `factor` times what is there."""

    level: float | None = None
    factor: float | None = None
    span_ns: int
    at_ns: int
    """When the first one begins."""
    every_ns: int | None = None
    """From beginning to beginning; `None`: there is one."""

    def __str__(self) -> str:
        height = f"x{number_text(self.factor)}" if self.factor is not None else number_text(self.level or 0.0)
        text = f"spike {height} for {span_text(self.span_ns)}"
        if self.every_ns is None or self.at_ns != self.every_ns:
            text += f" at {span_text(self.at_ns)}"
        return text if self.every_ns is None else f"{text} every {span_text(self.every_ns)}"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Segments one after the other, and spikes laid over them."""

    segments: list[Segment]
    spikes: list[Spike] = []
    repeat: bool = False
    """After the last segment comes the first again."""

    def __post_init__(self) -> None:
        """Refuse what means nothing. InputError without a place: whoever parses adds it."""
        if not self.segments:
            raise InputError("there is no level")
        for i, one in enumerate(self.segments):
            _check_segment(one)
            if one.span_ns is None and (i < len(self.segments) - 1 or self.repeat):
                raise InputError(f"'{one}' never ends, so nothing can follow", remedy="Give it a time: '5 for 30s'")
        if not any(max(one.start, one.end) > 0 for one in self.segments) and not any(one.level for one in self.spikes):
            raise InputError("the level is 0 all the time", remedy=f"Write {EXAMPLES}")
        for spike in self.spikes:
            _check_spike(spike)

    def __str__(self) -> str:
        parts = [str(one) for one in self.segments] + [str(one) for one in self.spikes]
        return ", ".join([*parts, "repeat"] if self.repeat else parts)

    @property
    def constant(self) -> float | None:
        """The level, where it is one and the same all the time."""
        levels = {level for one in self.segments for level in (one.start, one.end)}
        return levels.pop() if len(levels) == 1 and not self.spikes else None

    @property
    def peak(self) -> float:
        """The highest level of all."""
        base = max(max(one.start, one.end) for one in self.segments)
        spikes = (one.level if one.factor is None else base * one.factor for one in self.spikes)
        return max([base, *(level or 0.0 for level in spikes)])

    @property
    def span_ns(self) -> int | None:
        """How long it takes to see all of it once: its segments, and the last of its single spikes.

        `None` where it has no length of its own: a level, with spikes that come again and again.
        """
        spans = [one.span_ns for one in self.segments if one.span_ns is not None]
        single = [one.at_ns + one.span_ns for one in self.spikes if one.every_ns is None]
        whole = max([sum(spans), *single])
        return whole or None


def _check_segment(one: Segment) -> None:
    for level in (one.start, one.end):
        if not 0 <= level <= MOST:
            raise InputError(f"the level {level:g} is not between 0 and {MOST:g}")
        if 0 < level < LEAST:
            raise InputError(f"the level {level:g} is above 0 and below {LEAST:g}")
    if one.span_ns is not None and not SHORTEST_NS <= one.span_ns <= LONGEST_NS:
        raise InputError(f"'{one}' has no time between 1 ms and 400 days")
    moves = one.start != one.end or one.form is Form.EXPONENTIAL or one.steps
    if moves and one.span_ns is None:
        raise InputError(f"the ramp from {one.start:g} to {one.end:g} has no time", remedy="Write '2..20 over 60s'")
    if one.steps and not 2 <= one.steps <= 10_000:
        raise InputError(
            f"'{one}' has no number of steps between 2 and 10000", remedy="Write '2..20 over 60s in 6 steps'"
        )
    if one.form is Form.EXPONENTIAL and min(one.start, one.end) <= 0:
        raise InputError(f"'{one}' cannot begin or end at 0", remedy="Begin at 0.1, or leave out 'exponential'")


def _check_spike(one: Spike) -> None:
    height = one.level if one.factor is None else one.factor
    if height is None or (one.level is not None and one.factor is not None) or not 0 <= height <= MOST:
        raise InputError(f"'{one}' has no height", remedy="Write 'spike 50 for 2s at 45s', or 'spike x10 …'")
    if not SHORTEST_NS <= one.span_ns <= LONGEST_NS or not 0 <= one.at_ns <= LONGEST_NS:
        raise InputError(f"'{one}' has no time between 1 ms and 400 days")
    if one.every_ns is not None and not one.span_ns < one.every_ns <= LONGEST_NS:
        raise InputError(f"'{one}' is still there when the next one begins", remedy="Write 'spike 50 for 2s every 30s'")


def span_text(ns: int) -> str:
    """A duration as `parse_shape` reads it, exact to the nanosecond: `2s`, `0.25s`."""
    if ns % S == 0:
        return f"{ns // S}s"
    return f"{Decimal(ns).scaleb(-9).normalize():f}s"


def number_text(value: float) -> str:
    """The shortest text that reads as the same number."""
    text = repr(float(value))
    return text.removesuffix(".0")
