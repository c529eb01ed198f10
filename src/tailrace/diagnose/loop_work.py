"""Work that each request does on the engine's event loop: how long by the token, and whether the streams feel it.

Tokenising on the loop shows twice: requests wait for their own prompt and for those before it, one after the other, and
the streams stand still meanwhile. Both are read from what every record has: wait, prompt, longest gap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.classes import prompt_tokens
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import median, or_zero, quantile

__all__ = ["LoopWork", "longest_within", "loop_work"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAST: Final = 60
MOST_ROWS: Final = 60_000
"""A longer window is judged by its first so many requests."""
WAITS_MS: Final = 50.0
FITS: Final = 0.85
CLOSE: Final = 0.98
LEAST_MS: Final = 40.0
"""Of a prompt's own work; less stops nobody."""
FELT: Final = 20
AGREE: Final = 0.6
RATIO: Final = (0.7, 1.35)
OWN: Final = (0.5, 2.0)
CERTAIN: Final = 4.0
_GRID: Final = np.geomspace(10.0, 3000.0, 24)


class LoopWork(NamedTuple):
    """One loop that takes so long by the token, one request after the other, laid beside the waits and the gaps."""

    us_per_token: float
    """The work by prompt token at which the loop's own queue fits the waits best."""
    r: float
    """Correlation of that queue with the waits before the prefill."""
    own: float
    """What of its own work a request waits (regression; 1 where the loop does it before the prefill, and 0 where the
    wait is the engine's queue)."""
    own_t: float
    untold: float
    """Of the waits, the share that the engine's own queue time does not have (medians)."""
    agree: float
    """Of the streams, those whose longest gap is the longest work of others while they decoded (-30 to +35 %)."""
    ratio: float
    """Median of that gap over that work."""
    streams: int
    typical_tokens: float
    """Prompt tokens of those that stop others: p95."""
    explains: Floats
    """By row of `Window.done`: its wait on the loop, and the longest work of another while it decoded (ms)."""
    n: int

    @property
    def holds(self) -> bool:
        """Whether waits and gaps both follow, and each request waits for its own work: in a queue it would not."""
        mine = self.own_t >= CERTAIN and OWN[0] <= self.own <= OWN[1]
        # In a long queue a small error of the work moves who is served when: then the usual length has to do.
        alike = self.agree >= AGREE or (self.r >= CLOSE and RATIO[0] <= self.ratio <= RATIO[1])
        felt = self.streams >= FELT and alike
        return self.r >= FITS and felt and mine


class _Loop(NamedTuple):
    """Arrivals at one replica in their order; `rows` of `Window.every`."""

    rows: Ints
    ready: Floats
    tokens: Floats
    done: Ints
    """Rows of `Window.done` that it served."""

    def ends(self, ns_per_token: float) -> Floats:
        """When the loop is done with each: latest of arrival and the end before, and its own work."""
        work = self.tokens * ns_per_token
        total = np.cumsum(work)
        out: Floats = total + np.maximum.accumulate(self.ready - (total - work))
        return out


@once_a_window
def loop_work(window: Window) -> LoopWork | None:
    """`None` where the engine does not report prefills, nobody waits, or no work by the token fits."""
    if not window.reported or window.n < LEAST:
        return None
    done = window.done
    before = sum(or_zero(done.ms(name)) for name in ("ingress", "queue_gateway", "preprocess", "encode"))
    wait = done.ms("ttft") - before - done.ms("prefill")
    loops = _loops(window)
    judged = np.zeros(window.n, dtype=bool)
    for one in loops:
        judged[one.done] = True
    known = np.flatnonzero(judged & ~np.isnan(wait) & (window.tokens > 0))
    if known.size < LEAST or quantile(wait[known], 0.95) < WAITS_MS:
        return None
    fits = [_correlation(wait, known, _waits(window, loops, us)) for us in _GRID.tolist()]
    best = int(np.argmax(fits))
    if fits[best] < FITS:
        return None
    near = np.geomspace(_GRID[max(best - 1, 0)], _GRID[min(best + 1, _GRID.size - 1)], 13).tolist()
    us = max(near, key=lambda value: _correlation(wait, known, _waits(window, loops, value)))
    waited = _waits(window, loops, us)
    own = window.tokens * us / 1e3
    typical = quantile(window.tokens[known], 0.95)
    if typical * us / 1e3 < LEAST_MS:
        return None
    share, t = _own_share(wait[known], (waited - own)[known], own[known])
    told = or_zero(done.ms("queue_engine")[known])
    blocked = _blocked(window, loops, us)
    gap = done.ms("chunk_gap_max")
    rows = np.flatnonzero(judged & ~np.isnan(gap) & (blocked >= LEAST_MS))
    ratio = gap[rows] / blocked[rows]
    return LoopWork(
        us_per_token=us,
        r=_correlation(wait, known, waited),
        own=share,
        own_t=t,
        untold=1.0 - median(told) / max(median(wait[known]), 1e-9),
        agree=float(((ratio >= RATIO[0]) & (ratio <= RATIO[1])).mean()) if rows.size else 0.0,
        ratio=median(ratio) if rows.size else 0.0,
        streams=int(rows.size),
        typical_tokens=typical,
        explains=or_zero(waited) + blocked,
        n=int(known.size),
    )


def _loops(window: Window) -> list[_Loop]:
    known, every = account(window), window.every
    ready = known.sent.copy()
    for stage in ("preprocess", "encode"):
        ready += or_zero(every.ms(stage)) * 1e6
    tokens = or_zero(prompt_tokens(every))
    chosen = known.reached.copy()
    if len(every) > MOST_ROWS:
        chosen &= ready <= np.partition(ready, MOST_ROWS)[MOST_ROWS]
    served = replicas(window)
    out = []
    for place in range(max(served.n, 1)):
        mine = served.of_every == place if served.n else np.ones(len(every), dtype=bool)
        rows = np.flatnonzero(chosen & mine)
        rows = rows[np.argsort(ready[rows], kind="stable")]
        if rows.size:
            here = np.flatnonzero(np.isin(window.rows, rows))
            out.append(_Loop(rows, ready[rows], tokens[rows], here))
    return out


def _waits(window: Window, loops: list[_Loop], us: float) -> Floats:
    """By row of `done`: from its arrival to the end of its own work (ms), NaN where not judged."""
    over = np.full(len(window.every), np.nan)
    for one in loops:
        over[one.rows] = (one.ends(us * 1e3) - one.ready) / 1e6
    out: Floats = over[window.rows]
    return out


def _correlation(wait: Floats, rows: Ints, waited: Floats) -> float:
    a, b = wait[rows], waited[rows]
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def _own_share(wait: Floats, ahead: Floats, own: Floats) -> tuple[float, float]:
    """(coefficient of the own work, its t) in wait ~ 1 + ahead + own."""
    design = np.column_stack([np.ones(wait.size), ahead, own])
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    fit, _, rank, _ = np.linalg.lstsq(design / scale, wait, rcond=None)
    if rank < 3:
        return 0.0, 0.0
    rest = wait - design / scale @ fit
    error = float(rest @ rest) / max(wait.size - 3, 1)
    spread = error * float(np.linalg.pinv((design / scale).T @ (design / scale))[2, 2])
    return float(fit[2] / scale[2]), float(fit[2]) / max(spread**0.5, 1e-12)


def _blocked(window: Window, loops: list[_Loop], us: float) -> Floats:
    """By row of `done`: the longest work of another while it decoded (ms)."""
    out = np.zeros(window.n)
    for one in loops:
        work, end = one.tokens * us * 1e3, one.ends(us * 1e3)
        mine = one.done[~np.isnan(window.first[one.done])]
        first = np.searchsorted(end, window.first[mine] + 1e6, side="right")
        last = np.searchsorted(end, window.end[mine] + 1e6, side="right")
        out[mine] = longest_within(work, first, np.maximum(last, first)) / 1e6
    return out


def longest_within(values: Floats, low: Ints, high: Ints) -> Floats:
    """The largest of `values[low:high]` for each pair, 0 for none: by a table of powers of two."""
    out = np.zeros(low.size)
    span = high - low
    some = np.flatnonzero(span > 0)
    if not some.size:
        return out
    level = np.floor(np.log2(span[some])).astype(np.int64)
    table = values
    for power in range(int(level.max()) + 1):
        at = some[level == power]
        if at.size:
            out[at] = np.maximum(table[low[at]], table[high[at] - (1 << power)])
        if (1 << power) >= table.size:
            break
        table = np.maximum(table[: -(1 << power)], table[1 << power :])
    return out
