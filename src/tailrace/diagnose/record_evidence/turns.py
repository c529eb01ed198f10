"""Whether requests wait because the engine's steps are full of other prompts, while no cap of running ones is reached.

An engine that computes prompts in pieces (`max_num_batched_tokens` a step) admits the next one when a step has room for
it. Near the limit of its arithmetic there is none for most of the time, and who comes waits for the prompts before it,
short or long. Known from the records alone: when each waited, and when each was in prefill.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.window import Intervals, Window
from tailrace.stats.quantiles import or_zero

__all__ = ["Turns", "turns_of"]

LEAST_WAIT_MS: Final = 50.0
LEAST_GAPS: Final = 2.0
"""A wait shorter than two steps is the running step's end, not a queue."""
LEAST: Final = 20
COVERED: Final = 0.8
BUSY: Final = 0.5
HALF_BUSY: Final = 0.3
"""Above the first share of the time in prefill who comes waits as a rule; between the two the waits may be what comes
together by chance, and below there is room: who waits then met a burst, or one long prompt."""


class Turns(NamedTuple):
    """Waits beside the prefills of all others."""

    busy: float
    """Share of the time in which some prompt is computed."""
    covered: float
    """Share of the waits' time that lies inside prefills of others."""
    waiters: int

    @property
    def sure(self) -> bool:
        """Whether the steps are full for most of the time."""
        return self.busy >= BUSY


def turns_of(window: Window) -> Turns | None:
    """`None` where prefills are not known, or leave room."""
    if not window.reported or np.isnan(window.median_gap_ms):
        return None
    queue = or_zero(window.done.ms("queue_engine"))
    prefill = or_zero(window.done.ms("prefill"))
    waits = queue >= max(LEAST_WAIT_MS, LEAST_GAPS * window.median_gap_ms)
    if waits.sum() < max(LEAST, 0.05 * window.n):
        return None
    known = np.flatnonzero(~np.isnan(window.first))
    first = window.first[known]
    begun = first - prefill[known] * 1e6
    all_of_them = Intervals(known, begun, first, np.zeros(known.size), reported=True)
    busy = all_of_them.share_of(float(np.nanmax(window.end)))
    arrived = np.full(window.n, np.nan)
    arrived[known] = begun - queue[known] * 1e6
    rows = waits & ~np.isnan(arrived)
    inside = all_of_them.covered_ms(arrived[rows], arrived[rows] + queue[rows] * 1e6)
    covered = float(inside.sum() / max(queue[rows].sum(), 1e-9))
    if busy < HALF_BUSY or covered < COVERED or covered < busy + 0.5 * (1.0 - busy):
        return None
    return Turns(busy, covered, int(rows.sum()))
