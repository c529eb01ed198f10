"""What was foretold of waits, and what came: the error, and the range that it gives to the next prediction.

Those who wait and get a place answer for themselves. Those who were refused do not, and a measure that left them out
would hear only of waits that were short enough: so for some of them a place in line is kept on paper, and the release
that would have been theirs is their answer.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from tailrace.govern.prediction_error import PredictionError
from tailrace.model.thresholds import S

_KEPT: Final = 64
"""Places on paper at a time; whoever is refused while so many are kept goes unmeasured."""
_RATIOS: Final = 128
_FEW: Final = 20
_REFRESH: Final = 8
"""Answers after which the quantiles are taken anew: sorting them for every prediction would be most of its cost."""
_LOW: Final = 0.1
_HIGH: Final = 0.9
_NORMAL_90: Final = 1.2816
_WORTH_NS: Final = S
"""Waits up to this say nothing about a `Retry-After`, which has whole seconds."""


class _Paper:
    __slots__ = ("asked", "expected", "high", "low", "places", "since")

    def __init__(self, expected: int, low: int, high: int, places: int, since: int) -> None:
        self.expected = expected
        self.low = low
        self.high = high
        self.asked = self.places = places
        """Releases until the place is theirs: in all, and still."""
        self.since = since


class Foretold:
    """Predictions on their way to an answer."""

    __slots__ = ("_fresh", "_papers", "_ratios", "_spread", "error")

    def __init__(self) -> None:
        self.error = PredictionError()
        self._papers: list[_Paper] = []
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        """log(actual / predicted), times the root of the number of places waited for."""
        self._spread: tuple[float, float] | None = None
        self._fresh = 0

    def tell(self, expected: int, low: int, high: int, places: int, now: int) -> None:
        """Keep a place on paper: it is free after `places` releases."""
        if len(self._papers) < _KEPT:
            self._papers.append(_Paper(expected, low, high, places, now))

    def released(self, now: int) -> None:
        """A place has become free, or has been given."""
        papers = self._papers
        if not papers:
            return
        due = False
        for paper in papers:
            paper.places -= 1
            due |= paper.places <= 0
        if due:
            self._papers = [paper for paper in papers if paper.places > 0]
            for paper in papers:
                if paper.places <= 0:
                    self.answered(paper.expected, paper.low, paper.high, paper.asked, now - paper.since)

    def moved_up(self, since: int) -> None:
        """One that had come at `since` has left the queue."""
        for paper in self._papers:
            if paper.since >= since and paper.places > 1:
                paper.places -= 1

    def answered(self, expected: int, low: int, high: int, places: int, actual_ns: int) -> None:
        """A wait that was foretold has ended after `actual_ns`."""
        if actual_ns > _WORTH_NS:
            self.error.add(expected, actual_ns, inside=low <= actual_ns <= high)
        if expected > 0 and actual_ns > 0:
            self._ratios.append(math.log(actual_ns / expected) * math.sqrt(places))
            self._fresh += 1
            if self._fresh >= _REFRESH or len(self._ratios) <= _FEW + _REFRESH:
                self._fresh, self._spread = 0, None

    def range(self, places: int) -> tuple[float, float]:
        """Factors of a prediction between which about 80 % of the waits lie, when `places` must become free for it.

        The sum of n independent gaps varies with 1 / sqrt(n); measured ratios are scaled by that, and before there are
        enough of them the gaps are taken as exponential.
        """
        root = math.sqrt(places)
        if len(self._ratios) < _FEW:
            spread = _NORMAL_90 / root
            return math.exp(-spread), math.exp(spread)
        if self._spread is None:
            ordered = sorted(self._ratios)
            last = len(ordered) - 1
            self._spread = ordered[round(last * _LOW)], ordered[round(last * _HIGH)]
        low, high = self._spread
        # It always holds the prediction itself, however one-sided the recent error is.
        return math.exp(min(low, 0.0) / root), math.exp(max(high, 0.0) / root)
