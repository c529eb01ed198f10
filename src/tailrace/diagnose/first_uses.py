"""Steps with a prefill that take many times the usual, and do so only the first time that the engine meets their size.

Whatever is made at its first use (a kernel compiled, a graph captured, a buffer found) is made inside a step: the
engine's own prefill time of the requests in it has the wait, and later steps of that size do not. What recurs (a
collector, a neighbour, a clock) does not care which steps are the first of their size.
"""

from __future__ import annotations

from math import comb, erfc, factorial, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import median

__all__ = ["FirstUses", "by_chance", "early_by_chance", "first_uses"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

LEAST_STEPS: Final = 40
LEAST: Final = 3
"""Of one or two slow steps nobody can say that they do not come again."""
TIMES: Final = 5.0
"""Of what a step of this size usually takes. A slower clock or a neighbour makes it three to four times at most."""
EXCESS_MS: Final = 150.0
AMONG_SLOW: Final = 0.4
"""Of the slow steps, those that are the first of their size: a size is seen through chunks, and is not the engine's own
measure of a shape."""
CHANCE: Final = 0.001
SAME_STEP_NS: Final = 4e6
COVERED: Final = 0.7
LATER: Final = 10


class FirstUses(NamedTuple):
    """The slow steps in order of time; times in ns on the window's axis."""

    begin: Floats
    end: Floats
    tokens: Floats
    """Prompt tokens of the prefills that ended with each, of those that were computed."""
    ms: Floats
    """Beyond what a step of this size usually takes."""
    at: Floats
    """Share of the window's steps with a prefill that came before each."""
    first: Mask
    """It is the first of its size (by powers of two) that its engine met in the window."""
    sizes: int
    """Sizes that the window has, over its engines ..."""
    steps: int
    """... and steps in which a prefill ended."""
    later: int
    """Steps of the same sizes that came after the last slow one of their size ..."""
    later_ms: float
    """... and took so long (median)."""
    covered: float
    """Of the time in which streams stood still, the share inside the slow steps; NaN where nobody stood still."""
    waits: Floats
    """By row of `done`: its wait for the first token inside them (ms) ..."""
    stalls: Floats
    """... and its stalls."""

    @property
    def explains(self) -> Floats:
        """By row of `done` (ms)."""
        return self.waits + self.stalls

    @property
    def n(self) -> int:
        """How many slow steps are the first of their size."""
        return int(self.first.sum())

    @property
    def chance(self) -> float:
        """How likely as many of the slow steps are the first of their size, if any step could have been slow."""
        return by_chance(self.steps, self.sizes, int(self.first.size), self.n)

    @property
    def early(self) -> float:
        """How likely as many slow steps stand so early in the window, if any step could have been slow."""
        return early_by_chance(self.at)

    @property
    def holds(self) -> bool:
        """Whether they are first uses: several, not again, what streams stop for, and either the first of their sizes
        or so early that they stopped coming. A prompt in many chunks hides the size of its steps, a short window that
        they end.
        """
        felt = bool(np.isnan(self.covered)) or self.covered >= COVERED
        sizes = self.n >= LEAST and self.n >= AMONG_SLOW * self.first.size and self.chance < CHANCE
        over = self.first.size > LEAST and self.early < CHANCE
        return felt and self.later >= LATER and (sizes or over)


def by_chance(steps: int, sizes: int, slow: int, hits: int) -> float:
    """P(at least `hits` of `slow` steps, drawn from `steps`, are among `sizes` marked ones): hypergeometric, exact."""
    ways = sum(comb(sizes, x) * comb(steps - sizes, slow - x) for x in range(hits, min(sizes, slow) + 1))
    chance: float = ways / comb(steps, slow)
    return chance


def early_by_chance(places: Floats) -> float:
    """P(the sum of as many uniform places in [0, 1] is at most theirs): Irwin and Hall; from 16 on by the normal
    approximation, which has narrower tails than needed nowhere there.
    """
    n, total = int(places.size), float(places.sum())
    if n >= 16:
        deviation: float = (n / 12.0) ** 0.5
        return 0.5 * erfc((n / 2.0 - total) / deviation / sqrt(2.0))
    ways = sum((-1) ** k * comb(n, k) * (total - k) ** n for k in range(min(int(total), n) + 1))
    chance: float = ways / factorial(n)
    return min(max(chance, 0.0), 1.0)


@once_a_window
def first_uses(window: Window) -> FirstUses | None:
    """`None` where the engine does not report prefills, or no step with one is slow."""
    if not window.reported:
        return None
    done = window.done
    prefill = done.ms("prefill")
    computed = np.maximum(window.computed_tokens, 1.0)
    # An answer that is not streamed has no first token; when its prefill ended follows from its decoding.
    ended = np.where(
        np.isnan(window.first), window.start + done.column("e2e_ns") - done.ms("decode") * 1e6, window.first
    )
    of_row = replicas(window).of_row
    rows = np.flatnonzero(~np.isnan(prefill) & ~np.isnan(ended) & ~np.isnan(computed))
    rows = rows[np.lexsort((ended[rows], of_row[rows]))]
    if rows.size < LEAST_STEPS:
        return None
    fresh = (np.diff(ended[rows], prepend=-np.inf) > SAME_STEP_NS) | (np.diff(of_row[rows], prepend=-2) != 0)
    edges = np.flatnonzero(fresh)
    if edges.size < LEAST_STEPS:
        return None
    tokens = np.add.reduceat(computed[rows], edges)
    # Whoever had the step's first chunk has waited longest; a prefill of one step is as long as the step.
    length = np.minimum.reduceat(prefill[rows], edges)
    end, place = ended[rows][edges], of_row[rows][edges]
    size = np.log2(tokens).astype(np.int64)
    usual = _usual(length, size)
    slow = (length >= TIMES * usual) & (length - usual >= EXCESS_MS)
    if not slow.any():
        return None
    first = np.zeros(edges.size, dtype=bool)
    first[np.unique(place * 64 + size, return_index=True)[1]] = True
    order = np.flatnonzero(slow)
    order = order[np.argsort(end[order], kind="stable")]
    last = {one: float(end[slow & (size == one)].max()) for one in np.unique(size[slow]).tolist()}
    after = np.concatenate([np.flatnonzero((size == one) & (end > at)) for one, at in last.items()])
    begin = end - length * 1e6
    waits, halts, covered = _felt(window, begin[order], end[order], place[order])
    return FirstUses(
        begin[order],
        end[order],
        tokens[order],
        (length - usual)[order],
        (np.argsort(np.argsort(end, kind="stable"))[order] + 0.5) / edges.size,
        first[order],
        int(first.sum()),
        int(edges.size),
        int(after.size),
        median(length[after]) if after.size else float("nan"),
        covered,
        waits,
        halts,
    )


def _usual(length: Floats, size: Ints) -> Floats:
    """The median of the steps of that size; with their neighbours, or all, where there are too few."""
    out = np.full(length.size, median(length))
    for one in np.unique(size).tolist():
        near = np.abs(size - one) <= (0 if (size == one).sum() >= LATER else 1)
        if near.sum() >= LATER // 2:
            out[size == one] = median(length[near])
    return out


def _felt(window: Window, begin: Floats, end: Floats, served: Ints) -> tuple[Floats, Floats, float]:
    """(by row of `done`: waits inside, stalls inside (ms), share of all stall time that lies inside)."""
    waits, halts = np.zeros(window.n), np.zeros(window.n)
    stalls, of_row = window.stalls, replicas(window).of_row
    inside_ms = 0.0
    for place in np.unique(served).tolist():
        mine = np.flatnonzero(served == place)
        knots = np.maximum.accumulate(np.column_stack([begin[mine], end[mine]]).ravel())
        grown = np.concatenate([[0.0], np.cumsum(np.diff(knots) * (np.arange(knots.size - 1) % 2 == 0))])
        rows = np.flatnonzero((of_row == place) & ~np.isnan(window.first))
        waits[rows] += (np.interp(window.first[rows], knots, grown) - np.interp(window.start[rows], knots, grown)) / 1e6
        theirs = np.flatnonzero(of_row[stalls.row] == place)
        lies = np.interp(stalls.end[theirs], knots, grown) - np.interp(stalls.begin[theirs], knots, grown)
        part = np.minimum(lies / 1e6, stalls.excess_ms[theirs])
        np.add.at(halts, stalls.row[theirs], part)
        inside_ms += float(part.sum())
    total = float(stalls.excess_ms.sum())
    return waits, halts, inside_ms / total if total > 0 else float("nan")
