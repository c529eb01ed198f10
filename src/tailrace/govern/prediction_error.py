"""How good a prediction is: its error against what happened, over the recent past."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

_WINDOW: Final = 512
"""Answers that count: the median of so many is known to within about 4 ranks in 100."""


class ErrorSummary(msgspec.Struct, frozen=True):
    """The error of a prediction. Both figures are absent until something was predicted and came to pass."""

    median: float | None
    """Median of |predicted - actual| / actual: 0.2 is 20 %."""
    coverage: float | None
    """Share of the answers that lay within the predicted range."""
    bias: float | None
    """Median of (predicted - actual) / actual: above 0 the prediction is too long."""
    n: int
    """Answers that these figures rest on."""


NO_ERROR: Final = ErrorSummary(None, None, None, 0)


def together(one: ErrorSummary, other: ErrorSummary) -> ErrorSummary:
    """Two processes' errors as one: each figure weighted by the answers behind it. Of the medians that is no median,
    but it lies between them, and equal processes have equal ones.
    """
    if not one.n or not other.n:
        return one if one.n else other

    def mean(a: float | None, b: float | None) -> float:
        return ((a or 0.0) * one.n + (b or 0.0) * other.n) / (one.n + other.n)

    return ErrorSummary(
        mean(one.median, other.median), mean(one.coverage, other.coverage), mean(one.bias, other.bias), one.n + other.n
    )


class PredictionError:
    """Relative errors of the last `window` answers; an older one is forgotten when a new one comes.

    A median, because waits and lengths have long tails: one request that took an hour says nothing about the rest.
    """

    __slots__ = ("_absolute", "_answers", "_inside", "_signed", "_window", "seen")

    def __init__(self, window: int = _WINDOW) -> None:
        self._answers: deque[tuple[float, bool]] = deque(maxlen=window)
        """(signed error, whether the answer was within the range)."""
        self.seen = 0
        """Answers ever."""

    def add(self, predicted: float, actual: float, *, inside: bool) -> None:
        """`predicted` came to pass as `actual` (same unit, above 0); `inside` the predicted range or not."""
        if actual > 0:
            self._answers.append(((predicted - actual) / actual, inside))
            self.seen += 1

    def summary(self) -> ErrorSummary:
        """The error now. Sorts the answers: for views, not for every request."""
        n = len(self._answers)
        if not n:
            return NO_ERROR
        signed = sorted(error for error, _ in self._answers)
        inside = sum(inside for _, inside in self._answers)
        return ErrorSummary(_median(sorted(map(abs, signed))), inside / n, _median(signed), n)


def _median(ordered: list[float]) -> float:
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2
