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
from tailrace.govern.work_line import Key
from tailrace.model.thresholds import S

_KEPT: Final = 64
"""Places on paper at a time; whoever is refused while so many are kept goes unmeasured."""
_RATIOS: Final = 128
_FEW: Final = 20
_REFRESH: Final = 8
"""Answers after which the quantiles are taken anew: sorting them for every prediction would be most of its cost."""
_PLENTY: Final = 1024
_LOW: Final = 0.1
_HIGH: Final = 0.9
_NORMAL_90: Final = 1.2816
_WORTH_NS: Final = S
"""Waits up to this say nothing about a `Retry-After`, which has whole seconds."""


class _Paper:
    __slots__ = ("asked", "expected", "high", "key", "low", "places", "since")

    def __init__(self, expected: int, low: int, high: int, places: int, key: Key | None, since: int) -> None:
        self.expected = expected
        self.low = low
        self.high = high
        self.asked = self.places = places
        """Releases until the place is theirs: in all, and still."""
        self.key = key
        """Where it would stand, in an order that is known: then releases are not counted."""
        self.since = since


class Foretold:
    """Predictions on their way to an answer."""

    __slots__ = ("_answers", "_fresh", "_ratios", "_spread", "error", "papers")

    def __init__(self) -> None:
        self.error = PredictionError()
        self.papers: list[_Paper] = []
        """Places on paper."""
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        """log(actual / predicted), times the root of the number of places waited for."""
        self._spread: tuple[float, float] | None = None
        self._fresh = 0
        self._answers = 0

    def tell(self, expected: int, low: int, high: int, places: int, key: Key | None, now: int) -> None:
        """Keep a place on paper. It is theirs as soon as one is given to somebody behind `key`, or to nobody; where no
        key says who stands behind, after `places` releases.
        """
        if len(self.papers) < _KEPT:
            self.papers.append(_Paper(expected, low, high, places, key, now))

    def released(self, now: int) -> None:
        """A place has become free, or has been given."""
        due = False
        for paper in self.papers:
            if paper.key is None:
                paper.places -= 1
                due |= paper.places <= 0
        if due:
            self._settle([paper for paper in self.papers if paper.key is None and paper.places <= 0], now)

    def given(self, key: Key, now: int, *, by_age: bool) -> None:
        """A place has been given to one that waited at `key`: in its turn, or by its age."""
        papers = self.papers
        if not papers:
            return
        # Keys hold the number of the arrival: by age, only who came even earlier would have got it instead.
        due = [
            paper
            for paper in papers
            if paper.key is not None and (paper.key[1] < key[1] if by_age else paper.key < key)
        ]
        if due:
            self._settle(due, now)

    def unwanted(self, now: int) -> None:
        """A place that became free at `now` was given to nobody: whoever had waited would have got it."""
        if self.papers:
            self._settle([paper for paper in self.papers if paper.since <= now], now)

    def _settle(self, due: list[_Paper], now: int) -> None:
        gone = set(map(id, due))
        self.papers = [paper for paper in self.papers if id(paper) not in gone]
        for paper in due:
            self.answered(paper.expected, paper.low, paper.high, paper.asked, now - paper.since)

    def moved_up(self, since: int) -> None:
        """One that had come at `since` has left the queue."""
        for paper in self.papers:
            if paper.since >= since and paper.places > 1:
                paper.places -= 1

    def answered(self, expected: int, low: int, high: int, places: int, actual_ns: int) -> None:
        """A wait that was foretold has ended after `actual_ns`."""
        self._answers += 1
        if self._answers > _PLENTY and self._answers & 1:
            return  # a lane of so many answers is known as well by every other one
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
