"""What a token should take at the company that a request had, by the window before: where the windows have no equal
company in common, and where an engine is slow for a part of the time only.

The time of a decoding step is a line in what runs together: the weights are read once, and each sequence adds its part.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.equal_work import company_of, pace_of, tokens_an_event
from tailrace.diagnose.first_uses import first_uses
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.record_evidence.options import sequences
from tailrace.diagnose.window import Window
from tailrace.stats.runs import quantiles_of_runs

__all__ = ["Episodes", "Grown", "equal_demand", "grown_pace", "slow_episodes"]

Floats = NDArray[np.float64]
LEAST: Final = 60
FAR: Final = 8.0
"""The line is followed to so many times the company that the window before had."""
VARIES: Final = 1.5
SLOWER: Final = 1.3
FASTEST: Final = 0.25
"""Even the fastest quarter must be slower: a median gap that holds others' prefills is no slower engine."""
DEMAND: Final = 1.3
SLICE_S: Final = 1.0
TOGETHER: Final = 0.7
LATE: Final = 0.7
"""Of `TOGETHER` (0.5 of all) or `PARTLY`: slices that are not in a stretch and have so many slow ones."""
PARTLY: Final = 0.3
"""Of those that decode in a slice, the slow ones where hardly anybody is slow elsewhere: who began before a stretch, or
goes on behind it, has a usual gap that is not of the stretch."""
ELSEWHERE: Final = 0.1
SHORTEST_S: Final = 4.0
"""What lasts for less is a stop, and has causes of its own."""
LEAST_SLICES: Final = 5
LEAST_ROWS: Final = 10
LEAST_GAPS: Final = 20
_SMALL: Final = 1 << 16


class Grown(NamedTuple):
    """Pace now and as expected, where company grew (medians, ms), at equal demand."""

    expected: float
    seen: float
    ratio: float
    company_a: float
    company_b: float
    n: int
    explains: float


class Episodes(NamedTuple):
    """Stretches of the window in which all requests that decode go slower than expected."""

    stretches: int
    seconds: float
    ratio: float
    """Of the pace to the expected one, inside (median)."""
    outside: float
    n: int
    explains: Floats


def equal_demand(before: Window, window: Window) -> bool:
    """Whether about as much is asked of the engine as before: rate, tokens a request (those computed), sequences."""
    rates = [side.rate for side in (before, window)]
    if rates[1] > DEMAND * rates[0]:
        return False
    for measure in (_computed, _output, sequences):
        a, b = (measure(side) for side in (before, window))
        a, b = a[~np.isnan(a)], b[~np.isnan(b)]
        if a.size and b.size and float(b.mean()) * rates[1] > DEMAND * float(a.mean()) * rates[0]:
            return False
    return True


def grown_pace(before: Window, window: Window) -> Grown | None:
    """As much is asked as before, more is under way, and each token takes longer than so much company explains."""
    if min(before.n, window.n) < LEAST or not equal_demand(before, window):
        return None
    line = _line(before)
    if line is None:
        return None
    company, pace = company_of(window), pace_of(window)
    old = company_of(before)
    known = ~np.isnan(company) & ~np.isnan(pace) & (company <= FAR * float(np.nanmedian(old)))
    if known.sum() < LEAST / 2 or not _varies(old) or _of_others(window, company):
        return None
    expected = line(company[known])
    ratio = pace[known] / expected
    fast = float(np.quantile(ratio, FASTEST))
    if fast < SLOWER:
        return None
    middle = float(np.median(ratio))
    tokens = np.nan_to_num(window.done.column("output_tokens"), nan=0.0)
    seen = float(np.median(pace[known]))
    return Grown(
        seen / middle,
        seen,
        middle,
        float(np.nanmedian(old)),
        float(np.nanmedian(company)),
        int(known.sum()),
        (seen - seen / middle) * float(tokens[window.slowest].mean()),
    )


def slow_episodes(before: Window, window: Window) -> Episodes | None:
    """Seconds in which nearly all that decode are slower than expected, between others in which hardly any is.

    Read from the gaps of kept timelines where a second has enough of them, else from each request's usual gap.
    """
    if min(before.n, window.n) < LEAST or not equal_demand(before, window):
        return None
    line = _line(before)
    if line is None:
        return None
    company, pace = company_of(window), pace_of(window)
    far = FAR * float(np.nanmedian(company_of(before)))
    with np.errstate(invalid="ignore"):
        ratio = pace / line(np.minimum(company, far))
        slow = ratio >= SLOWER
    known = ~np.isnan(ratio) & ~np.isnan(window.first) & (window.end > window.first)
    if known.sum() < LEAST / 2:
        return None
    edges = np.arange(0.0, float(window.end[known].max()) / 1e9 + SLICE_S, SLICE_S)
    alive, hurt = (_alive(window, known & rows, edges) for rows in (np.ones(window.n, dtype=bool), slow))
    seen = _by_slice(window, line, far, edges)
    timed = ~np.isnan(seen)
    first_use = _at_first_uses(window, edges)
    for together in (TOGETHER, PARTLY):
        inside = np.where(timed, seen >= SLOWER, (alive >= 1) & (hurt >= together * alive))
        inside = _runs(inside & ~first_use, alive)
        busy = timed | (alive >= 1)
        elsewhere = busy & ~_widened(inside)
        late = np.where(timed, seen >= SLOWER, hurt > LATE * together * alive)
        if (
            float(inside.sum()) * SLICE_S >= SHORTEST_S
            and inside.sum() <= 0.9 * busy.sum()
            and elsewhere.sum() >= LEAST_SLICES
            and float(late[elsewhere].mean()) <= ELSEWHERE
        ):
            break
    else:
        return None
    # The window before must not have them: it is how this engine is.
    own = pace_of(before) / line(company_of(before))
    usual = float((own[~np.isnan(own)] >= SLOWER).mean())
    lived = _share(window, inside, edges)
    rows = known & (lived >= 0.3)
    if rows.sum() < LEAST_ROWS or usual > 0.3 * float(rows[known].mean()):
        return None
    times = float(np.median(seen[inside & timed])) if (inside & timed).any() else float(np.median(ratio[rows & slow]))
    spent = np.nan_to_num(window.end - window.first, nan=0.0) / 1e6
    calm = seen[elsewhere & timed] if (elsewhere & timed).sum() >= LEAST_SLICES else ratio[known & (lived <= 0.0)]
    return Episodes(
        int((np.diff(inside.astype(int), prepend=0) == 1).sum()),
        float(inside.sum()) * SLICE_S,
        times,
        float(np.median(calm)) if calm.size else 1.0,
        int(rows.sum()),
        lived * spent * (1.0 - 1.0 / times),
    )


def _at_first_uses(window: Window, edges: Floats) -> NDArray[np.bool_]:
    """Slices in which the engine was in a step that is slow at its first use only."""
    uses = first_uses(window)
    if uses is None or not uses.holds:
        return np.zeros(edges.size - 1, dtype=bool)
    begun = np.searchsorted(np.sort(uses.begin / 1e9), edges[:-1] + SLICE_S, side="left")
    over = np.searchsorted(np.sort(uses.end / 1e9), edges[:-1] - SLICE_S, side="right")
    out: NDArray[np.bool_] = begun > over
    return out


def _by_slice(window: Window, line: _Line, far: float, edges: Floats) -> Floats:
    """Lower quartile of all kept gaps that end in each slice, a token, over the expected one; NaN for too few."""
    out = np.full(edges.size - 1, np.nan)
    gaps = window.gaps
    if not gaps.size:
        return out
    tokens = tokens_an_event(window)
    where, paces = [], []
    for part in gaps.parts():
        end = (window.start[part.row][part.owner] + (part.begin_ns + part.length_ns)) / 1e9
        # Slices begin at whole multiples of their length.
        at = np.floor(end / SLICE_S)
        inside = (at >= 0) & (at < out.size)
        where.append(at[inside].astype(np.uint16 if out.size <= _SMALL else np.int64))
        paces.append((part.ms / tokens[part.row][part.owner])[inside])
    slice_of, pace = np.concatenate(where), np.concatenate(paces)
    where.clear()
    paces.clear()
    begins = np.concatenate([[0], np.cumsum(np.bincount(slice_of, minlength=out.size))])
    # By slice, without an order within it: of 16 bits numpy sorts in one pass over the values.
    pace = pace[np.argsort(slice_of, kind="stable")]
    timed = np.flatnonzero(np.diff(begins) >= LEAST_GAPS)
    middle = (edges[:-1] + SLICE_S / 2) * 1e9
    expected = line(np.clip(account(window).upstream().at(middle), 1.0, far))
    out[timed] = quantiles_of_runs(pace, begins[timed], begins[timed + 1], 0.25) / expected[timed]
    return out


def _runs(inside: NDArray[np.bool_], alive: Floats) -> NDArray[np.bool_]:
    """Without runs that are short or that hardly anybody lived in."""
    out = inside.copy()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(int)))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - begin < 2 or float(alive[begin:end].max()) < 3:
            out[begin:end] = False
    return out


def _varies(company: Floats) -> bool:
    """Whether the window before shows what company costs at all: one size of it gives no line to follow."""
    low, high = np.quantile(company[~np.isnan(company)], (0.1, 0.9))
    return bool(high >= VARIES * max(low, 0.5))


def _of_others(window: Window, company: Floats) -> bool:
    """Whether the company is the engine's own count because others than ours are on it: what they ask is unknown."""
    seen = window.done.column("running_at_first_token")
    return not np.isnan(seen).all() and bool(np.array_equal(company, seen, equal_nan=True))


class _Line(NamedTuple):
    level: float
    slope: float

    def __call__(self, company: Floats) -> Floats:
        out: Floats = self.level + self.slope * company
        return out


def _line(window: Window) -> _Line | None:
    """Pace against company, least squares without what lies far above it; `None` where there is nothing to fit."""
    company, pace = company_of(window), pace_of(window)
    known = ~np.isnan(company) & ~np.isnan(pace) & (pace > 0)
    for _ in range(4):
        if known.sum() < LEAST / 2:
            return None
        x, y = company[known], pace[known]
        if np.ptp(x) < 1e-9:
            return _Line(float(np.median(y)), 0.0)
        slope, level = np.polyfit(x, y, 1)
        slope = max(float(slope), 0.0)
        level = float(np.median(y - slope * x))
        with np.errstate(invalid="ignore"):
            near = known & (pace <= 1.2 * np.maximum(level + slope * company, 1e-9))
        if near.sum() == known.sum():
            break
        known = near
    return _Line(level, slope) if level > 0 else None


def _computed(window: Window) -> Floats:
    return np.maximum(window.computed_tokens, 0.0)


def _output(window: Window) -> Floats:
    out: Floats = window.done.column("output_tokens")
    return out


def _alive(window: Window, rows: NDArray[np.bool_], edges: Floats) -> Floats:
    """How many of `rows` decode in each slice."""
    begun = np.searchsorted(np.sort(window.first[rows] / 1e9), edges[:-1] + SLICE_S, side="left")
    over = np.searchsorted(np.sort(window.end[rows] / 1e9), edges[:-1], side="right")
    out: Floats = np.maximum(begun - over, 0).astype(np.float64)
    return out


def _widened(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """With the seconds beside them: who decodes there was slow for a part of its time."""
    out = inside.copy()
    for shift in (1, 2):
        out[shift:] |= inside[:-shift]
        out[:-shift] |= inside[shift:]
    return out


def _share(window: Window, inside: NDArray[np.bool_], edges: Floats) -> Floats:
    """By row of `done`: the part of its decoding that lies in the chosen slices."""
    grown = np.concatenate([[0.0], np.cumsum(inside * SLICE_S)])
    begin = np.where(np.isnan(window.first), window.start, window.first) / 1e9
    end = np.maximum(window.end / 1e9, begin + 1e-6)
    out: Floats = (np.interp(end, edges, grown) - np.interp(begin, edges, grown)) / (end - begin)
    return out
