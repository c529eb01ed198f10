"""A shape's clock: when things happen under a rate that changes with time.

`Clock` integrates a shape: it maps the time of a process of rate 1 to that of a process of this rate, in closed form.
A constant process is then exact, and a Poisson process has Poisson counts over any window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.model.thresholds import S
from tailrace.workload.shape import Form, Segment, Shape, Spike

__all__ = ["Clock", "Piece", "pieces", "reached_ns", "rises"]


class Piece(NamedTuple):
    """A stretch in which the rate goes from `start` to `end` in one form. `span_s` may be infinite."""

    span_s: float
    start: float
    end: float
    form: Form = Form.LINEAR


def pieces(shape: Shape) -> Iterator[Piece]:
    """The shape as pieces one after the other, spikes laid in; ends with an infinite piece unless it repeats."""
    if not shape.spikes:
        yield from _plain(shape)
        return
    now = 0
    for piece in _plain(shape):
        yield from _with_spikes(piece, now, shape.spikes)
        now += round(piece.span_s * S) if piece.span_s != math.inf else 0


def _plain(shape: Shape) -> Iterator[Piece]:
    while True:
        for one in shape.segments:
            if one.span_ns is None:
                yield Piece(math.inf, one.start, one.end)
                return
            yield from _segment_pieces(one)
        if not shape.repeat:
            last = shape.segments[-1].end
            yield Piece(math.inf, last, last)
            return


def _segment_pieces(one: Segment) -> Iterator[Piece]:
    span = (one.span_ns or 0) / S
    if not one.steps:
        yield Piece(span, one.start, one.end, one.form)
        return
    for i in range(one.steps):
        along = i / (one.steps - 1)
        level = (
            one.start * (one.end / one.start) ** along
            if one.form is Form.EXPONENTIAL
            else one.start + (one.end - one.start) * along
        )
        yield Piece(span / one.steps, level, level)


def _with_spikes(piece: Piece, began: int, spikes: list[Spike]) -> Iterator[Piece]:
    """The piece from `began` (ns) on, cut where a spike begins or ends. Of spikes that overlap the last one counts."""
    end = math.inf if piece.span_s == math.inf else began + round(piece.span_s * S)
    at = began
    while at < end:
        upto = min(end, *(_next_edge(spike, at) for spike in spikes))
        here = next((one for one in reversed(spikes) if _on(one, at)), None)
        span = math.inf if upto == math.inf else (upto - at) / S
        low = _level(piece, (at - began) / S)
        high = piece.end if upto == end else _level(piece, (upto - began) / S)
        if here is None:
            yield Piece(span, low, high, piece.form)
        elif here.factor is not None:
            yield Piece(span, low * here.factor, high * here.factor, piece.form if here.factor else Form.LINEAR)
        else:
            assert here.level is not None
            yield Piece(span, here.level, here.level)
        if upto == math.inf:
            return
        at = int(upto)


def _level(piece: Piece, at_s: float) -> float:
    if piece.start == piece.end or at_s <= 0:
        return piece.start
    along = at_s / piece.span_s
    if piece.form is Form.EXPONENTIAL:
        return float(piece.start * (piece.end / piece.start) ** along)
    return piece.start + (piece.end - piece.start) * along


def _on(spike: Spike, at: int) -> bool:
    since = at - spike.at_ns
    if since < 0:
        return False
    return (since if spike.every_ns is None else since % spike.every_ns) < spike.span_ns


def _next_edge(spike: Spike, at: int) -> float:
    """When, after `at`, the spike next begins or ends."""
    since = at - spike.at_ns
    if since < 0:
        return spike.at_ns
    if spike.every_ns is None:
        return spike.at_ns + spike.span_ns if since < spike.span_ns else math.inf
    past = since % spike.every_ns
    return at - past + (spike.span_ns if past < spike.span_ns else spike.every_ns)


_RESTING: Final = 200_000
"""Stretches without an arrival after which none is waited for: a pause is laid over all that repeats, or nearly."""


def rises(shape: Shape) -> bool:
    """Whether the level never falls, as that of workers who come in one after the other."""
    levels = [level for one in shape.segments for level in (one.start, one.end)]
    return not shape.spikes and not shape.repeat and levels == sorted(levels)


def reached_ns(shape: Shape, level: float) -> int | None:
    """When a rising shape first is at `level` (ns from the start); `None` where it never gets there."""
    began = 0.0
    for piece in pieces(shape):
        if piece.start >= level:
            return round(began * S)
        if piece.end >= level:
            if piece.form is Form.EXPONENTIAL:
                along = math.log(level / piece.start) / math.log(piece.end / piece.start)
            else:
                along = (level - piece.start) / (piece.end - piece.start)
            return round((began + along * piece.span_s) * S)
        began += piece.span_s
    return None


class Clock:
    """Maps the time of a process of rate 1 to seconds under a shape. Ask with non-decreasing times only.

    The expected count L(t) is the integral of the rate; `at(u)` is the t with L(t) = u. Within a piece that begins at
    t0 with the count L0, for x = u - L0: a line r + a t gives 2 x / (r + sqrt(r^2 + 2 a x)), which is stable for a
    near 0; an exponential r e^(k t) gives log1p(k x / r) / k.
    """

    def __init__(self, shape: Shape) -> None:
        self._pieces = pieces(shape)
        self._began = 0.0
        self._count = 0.0
        self._piece = next(self._pieces)
        self._holds = _count(self._piece)

    def at(self, unit: float) -> float:
        """Seconds from the start; infinite where the rate has come to rest for good."""
        resting = 0
        while unit > self._count + self._holds or self._holds == 0.0:
            resting += 1
            if self._piece.span_s == math.inf or resting > _RESTING:
                return math.inf
            self._next()
        return self._began + _inverse(self._piece, max(0.0, unit - self._count))

    def count(self, until_s: float) -> float:
        """The expected number of arrivals before `until_s`."""
        while until_s > self._began + self._piece.span_s:
            self._next()
        return self._count + _within(self._piece, until_s - self._began)

    def _next(self) -> None:
        self._began += self._piece.span_s
        self._count += self._holds
        self._piece = next(self._pieces)
        self._holds = _count(self._piece)


def _count(piece: Piece) -> float:
    """Expected arrivals in the whole piece."""
    if piece.span_s == math.inf:
        return math.inf if piece.start > 0 else 0.0
    return _within(piece, piece.span_s)


def _within(piece: Piece, at_s: float) -> float:
    """Expected arrivals in the first `at_s` seconds of the piece."""
    r, end = piece.start, piece.end
    if r == end:
        return r * at_s
    if piece.form is Form.EXPONENTIAL:
        k = math.log(end / r) / piece.span_s
        return r * math.expm1(k * at_s) / k
    return r * at_s + (end - r) / (2 * piece.span_s) * at_s * at_s


def _inverse(piece: Piece, x: float) -> float:
    """When in the piece `x` arrivals are expected to have come, at most its whole span."""
    r, end = piece.start, piece.end
    if x <= 0.0:
        return 0.0
    if r == end:
        return min(x / r, piece.span_s)
    if piece.form is Form.EXPONENTIAL:
        k = math.log(end / r) / piece.span_s
        # On the way down rounding may ask for a little more than there ever comes.
        return min(math.log1p(max(k * x / r, -1 + 1e-300)) / k, piece.span_s)
    a = (end - r) / piece.span_s
    return min(2 * x / (r + math.sqrt(max(0.0, r * r + 2 * a * x))), piece.span_s)
