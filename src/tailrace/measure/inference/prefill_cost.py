"""What a prefill costs: a robust regression of time on uncached prompt tokens and their square.

Learned from requests that met an idle engine, whose whole wait was prefill. Residuals are relative, because a prefill
of 8,000 tokens is not known to the millisecond that one of 80 is: iteratively reweighted least squares with Huber's
weights, over a bounded window that is cut where the engine has changed.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

LEAST: Final = 8
"""Samples without which nothing is said."""
_WINDOW: Final = 256
_EVERY: Final = 8
"""A new fit after so many samples."""
_ROUNDS: Final = 4
_LAST: Final = 12
_CHANGED: Final = 9
"""So many of the last dozen that miss to one side: the engine is another one now, and what was before is dropped."""
_TOKENS: Final = 1024.0
"""Tokens are counted in units of this many, so that the normal equations stay well conditioned."""

Terms = tuple[float, float, float]


class PrefillCost:
    """Time of a prefill by its tokens, with the error that leave-one-out shows. Times in ns."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._terms: Terms | None = None
        self._share = 1.0
        self._range = (1.0, 0.0)
        """The least and the largest size that the fit has seen."""
        self._fresh = 0
        self._spread = 1.0
        """A robust standard deviation of the relative residuals: outliers are not in it."""
        self._sides: deque[int] = deque(maxlen=_LAST)
        """Of the last samples: 1 took longer than expected, -1 less, 0 as expected."""

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def known(self) -> bool:
        """Whether there is a fit."""
        return self._terms is not None

    @property
    def error_share(self) -> float:
        """90 % of the samples, each left out of the fit that predicts it, are off by at most this share."""
        return self._share

    def note(self, tokens: int, took_ns: int) -> None:
        """A prefill of `tokens` uncached tokens took `took_ns`."""
        if took_ns <= 0 or tokens <= 0:
            return
        if self._terms is not None:
            off = (took_ns - self.predict(tokens)) / took_ns
            beyond = max(3 * self._spread, 0.1)
            self._sides.append((off > beyond) - (off < -beyond))
        self._samples.append((tokens / _TOKENS, float(took_ns)))
        self._fresh += 1
        if abs(sum(self._sides)) >= _CHANGED:
            while len(self._samples) > _LAST:
                self._samples.popleft()
            self._sides.clear()
            self._fresh = _EVERY
        if len(self._samples) >= LEAST and (self._fresh >= _EVERY or self._terms is None):
            self._fit()

    def predict(self, tokens: int) -> float:
        """The time (ns) that a prefill of `tokens` takes alone. Only where `known`."""
        assert self._terms is not None
        x = tokens / _TOKENS
        a, b, c = self._terms
        return a + b * x + c * x * x

    def covers(self, tokens: int) -> bool:
        """Whether it is asked about sizes near to those that it has seen."""
        low, high = self._range
        return low / 2 <= tokens / _TOKENS <= high * 1.5

    def _fit(self) -> None:
        self._fresh = 0
        samples = list(self._samples)
        sizes = sorted({x for x, _ in samples})
        self._range = (sizes[0], sizes[-1])
        # A curve needs sizes that differ: three unknowns are not read from two of them.
        rank = 1 if len(sizes) < 3 or sizes[-1] < 1.5 * sizes[0] else 2 if sizes[-1] < 4 * sizes[0] else 3
        weights = [1.0] * len(samples)
        terms: Terms = (median(y for _, y in samples), 0.0, 0.0)
        for _ in range(_ROUNDS):
            solved = _solve(samples, weights, rank)
            if solved is None:
                break
            terms = solved
            off = [(y - terms[0] - terms[1] * x - terms[2] * x * x) / y for x, y in samples]
            scale = self._spread = 1.4826 * median(map(abs, off)) or 1e-6
            weights = [1.0 if abs(r) <= 1.345 * scale else 1.345 * scale / abs(r) for r in off]
        self._terms = terms
        self._share = self._left_out(samples, weights, rank, terms)

    @staticmethod
    def _left_out(samples: list[tuple[float, float]], weights: list[float], rank: int, terms: Terms) -> float:
        """The p90 of leave-one-out residuals in closed form: each residual over one less its leverage."""
        inverse = _inverse(samples, weights, rank)
        out = []
        for (x, y), weight in zip(samples, weights, strict=True):
            row = (1 / y, x / y, x * x / y)[:rank]
            leverage = 0.0
            if inverse is not None:
                leverage = weight * sum(row[i] * inverse[i][j] * row[j] for i in range(rank) for j in range(rank))
            off = abs(y - terms[0] - terms[1] * x - terms[2] * x * x) / y
            out.append(off / max(1.0 - leverage, 0.1))
        out.sort()
        return out[min(int(0.9 * len(out)), len(out) - 1)]


def _normal(
    samples: list[tuple[float, float]], weights: list[float], rank: int
) -> tuple[list[list[float]], list[float]]:
    left = [[0.0] * rank for _ in range(rank)]
    right = [0.0] * rank
    for (x, y), weight in zip(samples, weights, strict=True):
        # Relative residuals: each equation is divided by its own time.
        row = (1 / y, x / y, x * x / y)
        for i in range(rank):
            right[i] += weight * row[i]
            for j in range(rank):
                left[i][j] += weight * row[i] * row[j]
    return left, right


def _inverse(samples: list[tuple[float, float]], weights: list[float], rank: int) -> list[list[float]] | None:
    left, _ = _normal(samples, weights, rank)
    columns = []
    for index in range(rank):
        unit = [1.0 if i == index else 0.0 for i in range(rank)]
        solved = _eliminate([row.copy() for row in left], unit)
        if solved is None:
            return None
        columns.append(solved)
    return [[columns[j][i] for j in range(rank)] for i in range(rank)]


def _solve(samples: list[tuple[float, float]], weights: list[float], rank: int) -> Terms | None:
    """The terms; fewer of them where a slope or a curvature would be negative, which no prefill has."""
    while True:
        left, right = _normal(samples, weights, rank)
        solved = _eliminate(left, right)
        if solved is None:
            if rank == 1:
                return None
            rank -= 1
            continue
        if rank > 1 and min(solved[1:]) < 0:
            rank -= 1
            continue
        padded = [*solved, 0.0, 0.0]
        return padded[0], padded[1], padded[2]


def _eliminate(left: list[list[float]], right: list[float]) -> list[float] | None:
    size = len(right)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(left[row][i]))
        if abs(left[pivot][i]) < 1e-30:
            return None
        left[i], left[pivot], right[i], right[pivot] = left[pivot], left[i], right[pivot], right[i]
        for row in range(i + 1, size):
            factor = left[row][i] / left[i][i]
            right[row] -= factor * right[i]
            for column in range(i, size):
                left[row][column] -= factor * left[i][column]
    out = [0.0] * size
    for i in reversed(range(size)):
        out[i] = (right[i] - sum(left[i][j] * out[j] for j in range(i + 1, size))) / left[i][i]
    return out
