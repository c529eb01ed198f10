"""When in the window it became slower, and what else changed at that moment: traffic, replicas, versions, events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.classes import prompt_tokens
from tailrace.analyze.counted import completed
from tailrace.analyze.labels import codes_of
from tailrace.analyze.timebase import starts_ns, timed
from tailrace.stats.change_points import MIN_VALUES, change_points, noise
from tailrace.store.table import RecordTable

__all__ = ["Happening", "Moment", "moments"]

Floats = NDArray[np.float64]
_BINS: Final = 200
_A_BIN: Final = 20
"""Requests that a bin needs for a median worth the name."""
_LEAST: Final = 0.15
_LEAST_FAILED: Final = 0.02
_NEAR: Final = 2
_SHARE: Final = 0.15
_METRICS: Final = (("ttft", "TTFT"), ("tpot", "TPOT"))
_MARKS: Final = ("engine_version", "engine", "model", "backend", "route", "quantization", "dtype", "degradation")
_FLOOR: Final = 1e-3


class Happening(NamedTuple):
    """Something that is known to have happened: a deploy, a restart, a reloaded configuration."""

    at_unix_s: float
    text: str


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One change of level."""

    metric: str
    """`ttft`, `tpot`, or `failures`."""
    at_s: float
    """From the window's first request."""
    at_unix_s: float
    within_s: float
    """The change lies within so many seconds of it: one bin."""
    before: float
    after: float
    """The level (median in ms; a share for `failures`) from and until the neighbouring change."""
    change: float
    low: float
    high: float
    """`after / before - 1` with its 95 % interval from the noise of the series (for `failures` a difference)."""
    changed: list[str]
    """What else changed its level at that moment, with its numbers."""
    happened: list[str]
    """Events known from elsewhere at that moment."""

    @property
    def sentence(self) -> str:
        """The moment in words."""
        if self.metric == "failures":
            text = f"the share of failures went from {self.before:.1%} to {self.after:.1%}"
        else:
            name = dict(_METRICS).get(self.metric, self.metric)
            text = (
                f"{name} (median) went from {self.before:.0f} to {self.after:.0f} ms "
                f"({self.change:+.0%} [{self.low:+.0%}, {self.high:+.0%}])"
            )
        with_it = [*self.happened, *self.changed]
        beside = (
            f"; at that moment: {'; '.join(with_it)}" if with_it else "; nothing else is known to have changed then"
        )
        return f"{text} {self.at_s:.0f} s into the window (within {self.within_s:.0f} s){beside}."


def moments(table: RecordTable, events: Sequence[Happening] = ()) -> list[Moment]:
    """Changes of level of TTFT, TPOT and the share of failures over a window, in order of time.

    The window is cut into up to 200 bins of equal time; a series needs 20 bins with enough requests. Empty where
    nobody says when the requests began.
    """
    if len(table) < MIN_VALUES * _A_BIN or not timed(table):
        return []
    at = starts_ns(table).astype(np.float64) / 1e9
    span = float(at.max())
    if span <= 0:
        return []
    bins = int(min(_BINS, len(table) // _A_BIN))
    place = np.minimum((at / span * bins).astype(np.int64), bins - 1)
    width = span / bins
    origin = _origin(table)
    beside = _context(table, place, bins)
    done = completed(table)
    n = np.bincount(place, minlength=bins)
    series = [(metric, _medians(table.ms(metric), done, place, bins)) for metric, _ in _METRICS]
    series.append(("failures", _shares(~done, place, bins)))
    out = []
    for metric, values in series:
        known = np.flatnonzero(np.isfinite(values))
        if known.size < MIN_VALUES or np.ptp(values[known]) <= 0:
            continue
        level = _Level.of_shares(values[known], n[known]) if metric == "failures" else _Level.of_times(values[known])
        edges = [0, *change_points(level.series, least_noise=level.least_noise), int(known.size)]
        for left, cut, right in zip(edges, edges[1:], edges[2:], strict=False):
            delta, ends = level.change(left, cut, right)
            if abs(delta) < (_LEAST if metric != "failures" else _LEAST_FAILED) or ends[0] <= 0.0 <= ends[1]:
                continue
            when = int(known[cut])
            moment = when * width
            begin, last = int(known[left]), int(known[right - 1])
            out.append(
                Moment(
                    metric=metric,
                    at_s=moment,
                    at_unix_s=origin + moment if origin else 0.0,
                    within_s=width,
                    before=level.at(left, cut),
                    after=level.at(cut, right),
                    change=delta,
                    low=ends[0],
                    high=ends[1],
                    changed=[text for item in beside if (text := item.at(when, begin, last))],
                    happened=[
                        event.text
                        for event in sorted(events)
                        if origin and abs(event.at_unix_s - origin - moment) <= (_NEAR + 1) * width
                    ],
                )
            )
    return sorted(out, key=lambda one: (one.at_s, one.metric))


class _Level(NamedTuple):
    """A series as it is cut, and as it is told."""

    series: Floats
    values: Floats
    n: NDArray[np.int64]
    least_noise: float
    shares: bool

    @classmethod
    def of_times(cls, values: Floats) -> _Level:
        """Medians, whose noise is relative."""
        return cls(np.log(np.maximum(values, _FLOOR)), values, np.ones(values.size, dtype=np.int64), 0.0, shares=False)

    @classmethod
    def of_shares(cls, values: Floats, n: NDArray[np.int64]) -> _Level:
        """Shares of n, stabilised: the noise of asin(sqrt(share)) is 1 / (2 sqrt(n)), whatever the share.

        Anscombe, "The transformation of Poisson, binomial and negative-binomial data", Biometrika 35, 1948.
        """
        stable = np.arcsin(np.sqrt((values * n + 0.375) / (n + 0.75)))
        return cls(stable, values, n, 0.5 / float(np.sqrt(np.median(n))), shares=True)

    def at(self, begin: int, end: int) -> float:
        """The level of a segment."""
        inside = slice(begin, end)
        if self.shares:
            return float((self.values[inside] * self.n[inside]).sum() / self.n[inside].sum())
        return float(np.median(self.values[inside]))

    def change(self, left: int, cut: int, right: int) -> tuple[float, tuple[float, float]]:
        """(change at `cut`, its 95 % interval): relative for times, a difference for shares."""
        if self.shares:
            one, two = self.at(left, cut), self.at(cut, right)
            sizes = self.n[left:cut].sum(), self.n[cut:right].sum()
            half = 1.96 * float(np.sqrt(one * (1 - one) / sizes[0] + two * (1 - two) / sizes[1]))
            return two - one, (two - one - half, two - one + half)
        before, after = self.series[left:cut], self.series[cut:right]
        delta = float(np.median(after) - np.median(before))
        # 1.2533 = sqrt(pi / 2): how much more a median scatters than a mean.
        half = 1.96 * 1.2533 * noise(self.series) * float(np.sqrt(1.0 / before.size + 1.0 / after.size))
        return float(np.expm1(delta)), (float(np.expm1(delta - half)), float(np.expm1(delta + half)))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _origin(table: RecordTable) -> float:
    wall = table.column("start_unix_ns")
    wall = wall[wall > 0]
    return float(wall.min()) / 1e9 if wall.size else 0.0


def _medians(values: Floats, done: NDArray[np.bool_], place: NDArray[np.int64], bins: int) -> Floats:
    keep = done & ~np.isnan(values)
    return _by_bin(values[keep], place[keep], bins)


def _by_bin(values: Floats, place: NDArray[np.int64], bins: int) -> Floats:
    order = np.argsort(place, kind="stable")
    values = values[order]
    edges = np.searchsorted(place[order], np.arange(bins + 1))
    out = np.full(bins, np.nan)
    for one in range(bins):
        inside = values[edges[one] : edges[one + 1]]
        if inside.size >= _A_BIN // 4:
            out[one] = np.median(inside)
    return out


def _shares(mask: NDArray[np.bool_], place: NDArray[np.int64], bins: int) -> Floats:
    n = np.bincount(place, minlength=bins)
    hits = np.bincount(place, weights=mask.astype(np.float64), minlength=bins)
    out: Floats = np.where(n >= _A_BIN // 4, hits / np.maximum(n, 1), np.nan)
    return out


class _Beside(NamedTuple):
    """One thing that may change at the same moment."""

    name: str
    values: Floats
    unit: str
    """Empty for a share."""
    cuts: frozenset[int]

    def at(self, when: int, begin: int, last: int) -> str:
        """What it did around bin `when`, where it changed there; else empty."""
        if not any(abs(cut - when) <= _NEAR for cut in self.cuts):
            return ""
        one, two = self.values[begin:when], self.values[when : last + 1]
        one, two = one[np.isfinite(one)], two[np.isfinite(two)]
        if not one.size or not two.size:
            return ""
        a, b = float(np.median(one)), float(np.median(two))
        if self.unit:
            moved = abs(b - a) > 0.1 * max(abs(a), 1e-9)
            return f"{self.name} {_short(a)} -> {_short(b)} {self.unit}" if moved else ""
        return f"{self.name} {a:.0%} -> {b:.0%} of the requests" if abs(b - a) >= _SHARE else ""


def _context(table: RecordTable, place: NDArray[np.int64], bins: int) -> list[_Beside]:
    at = starts_ns(table)
    width = max(float(at.max()) / 1e9 / bins, 1e-9)
    numbers = [
        ("arrivals", np.bincount(place, minlength=bins) / width, "/s"),
        ("prompt length (mean)", _means(prompt_tokens(table), place, bins), "tokens"),
        ("answer length (mean)", _means(table.column("output_tokens"), place, bins), "tokens"),
        ("audio length (mean)", _means(table.column("audio_seconds"), place, bins), "s"),
        ("cached part of the prompt (mean)", _means(table.column("cached_tokens"), place, bins), "tokens"),
    ]
    out = []
    for name, values, unit in numbers:
        known = np.flatnonzero(np.isfinite(values))
        if known.size < MIN_VALUES or np.ptp(values[known]) <= 0:
            continue
        cuts = change_points(np.log(np.maximum(values[known], _FLOOR)))
        out.append(_Beside(name, values, unit, frozenset(int(known[cut]) for cut in cuts)))
    for column in _MARKS:
        codes, names = codes_of(table.column(column))
        if not 2 <= len(names) <= 50:
            continue
        for code in np.argsort(-np.bincount(codes, minlength=len(names)), kind="stable")[:6].tolist():
            values = _shares(codes == code, place, bins)
            out.append(
                _Beside(f"{column.replace('_', ' ')} {names[code] or '(none)'}", values, "", frozenset(_steps(values)))
            )
    return out


def _means(values: Floats, place: NDArray[np.int64], bins: int) -> Floats:
    known = ~np.isnan(values)
    n = np.bincount(place[known], minlength=bins)
    total = np.bincount(place[known], weights=values[known], minlength=bins)
    out: Floats = np.where(n >= _A_BIN // 4, total / np.maximum(n, 1), np.nan)
    return out


def _steps(values: Floats, reach: int = 4) -> list[int]:
    """Bins at which the mean of the next few differs from that of the last few by more than `_SHARE`."""
    filled = np.nan_to_num(values, nan=0.0)
    if filled.size < 2 * reach:
        return []
    sums = np.concatenate([[0.0], np.cumsum(filled)])
    means = (sums[reach:] - sums[:-reach]) / reach
    apart = np.abs(means[reach:] - means[:-reach])
    return (np.flatnonzero(apart >= _SHARE) + reach).tolist()
