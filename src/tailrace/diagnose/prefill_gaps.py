"""Longest gaps of streams laid beside the prefills that they decoded through: what can be told without timelines.

A stop of a few hundred milliseconds keeps no timeline, but every record has its longest gap. If prefills that take a
whole step are what stops the streams, that gap is as long as the longest of the prefills that ended meanwhile.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.loop_work import longest_within
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import median, or_zero

__all__ = ["PrefillGaps", "prefill_gaps", "stops_are_new"]

Floats = NDArray[np.float64]

LEAST: Final = 50
FEW: Final = 0.2
"""Timelines of a larger share of the streams tell more by themselves."""
FELT: Final = 10
"""Streams that decoded through a prefill that is long enough to stop them."""
ALIKE: Final = 0.25
"""A gap is as long as the prefill, as the usual share of it, within this."""
AGREE: Final = 0.6
WHOLE: Final = 0.5
MOST: Final = 1.3
NEW: Final = 0.5
LIKE: Final = 0.7
"""Prompts of before that are so long, over the median long prompt, are as long."""
FEW_PROMPTS: Final = 10
"""Long prompts of a window before from which it says that these alone stop nobody."""
EXPLAINED: Final = 0.5
"""Of the streams that stop; less, and something else stops them."""


class PrefillGaps(NamedTuple):
    """Streams against the longest prefill of another that began and ended while they decoded."""

    streams: int
    """Streams whose longest such prefill lasts for at least the least stop."""
    fill: float
    """Longest gap over that prefill (median): near 1 where a prompt is computed in one step."""
    agree: float
    """Of those streams, the ones whose gap is that share of their prefill, within a quarter."""
    stopped: int
    """Streams with a stop."""
    explained: float
    """Of them, those that decoded through a prefill as long as their gap asks for."""
    gap_ms: float
    """Longest gap of those (median)."""
    prefill_ms: float
    """The prefill that they decoded through (median)."""
    tokens: float
    """Prompt tokens of long prompts (median), of those that are computed."""
    lost: Floats
    """By row of `done`: its longest gap beyond the usual one, where such a prefill explains it (ms)."""

    @property
    def holds(self) -> bool:
        """Whether the streams' longest gaps are the prefills of others, each computed in about one step."""
        return WHOLE <= self.fill <= MOST and self.fits

    @property
    def fits(self) -> bool:
        """The same where a prompt may be computed in pieces, each of which stops the streams for its own time."""
        enough = min(self.streams, self.stopped) >= FELT
        return enough and self.fill <= MOST and self.agree >= AGREE and self.explained >= EXPLAINED


def stops_are_new(before: Window | None, window: Window) -> bool:
    """Whether prompts as long came in the window before as well, and at most half as many of its streams stopped."""
    if before is None or not before.reported or not window.long.any():
        return False
    as_long = or_zero(before.tokens) >= LIKE * float(np.median(window.tokens[window.long]))
    if as_long.sum() < FEW_PROMPTS:
        return False
    shares = []
    for side in (before, window):
        gap = side.done.ms("chunk_gap_max")
        gap = gap[~np.isnan(gap)]
        if gap.size < LEAST:
            return False
        shares.append(float((gap >= window.stall_ms).mean()))
    return shares[0] <= NEW * shares[1]


@once_a_window
def prefill_gaps(window: Window) -> PrefillGaps | None:
    """`None` where the timelines tell more, the engine does not report prefills, or too few streams have a gap."""
    gap, usual = window.done.ms("chunk_gap_max"), or_zero(window.done.ms("chunk_gap_p50"))
    known = np.flatnonzero(~np.isnan(gap) & ~np.isnan(window.first) & (window.end > window.first))
    prefills, of_row = window.prefills, replicas(window).of_row
    if not window.reported or known.size < LEAST or not prefills.row.size or window.gaps.rows > FEW * window.n:
        return None
    longest = np.zeros(window.n)
    for place in np.unique(of_row[prefills.row]).tolist():
        theirs = np.flatnonzero(of_row[prefills.row] == place)
        theirs = theirs[np.argsort(prefills.end[theirs], kind="stable")]
        begin, end = prefills.begin[theirs], prefills.end[theirs]
        mine = known[of_row[known] == place]
        # Whoever was there before a prefill began has seen all of it. Its own prefill ended with its first token.
        low = np.searchsorted(np.minimum.accumulate(begin[::-1])[::-1], window.first[mine], side="right")
        high = np.searchsorted(end, window.end[mine] + 1e6, side="right")
        longest[mine] = longest_within(end - begin, low, np.maximum(high, low)) / 1e6
    hit = known[longest[known] >= window.stall_ms]
    stopped = known[gap[known] >= window.stall_ms]
    if not hit.size or not stopped.size:
        return None
    ratio = gap[hit] / longest[hit]
    fill = median(ratio)
    near = np.abs(ratio / fill - 1.0) <= ALIKE
    with np.errstate(divide="ignore"):
        fits = np.abs(gap[stopped] / (fill * longest[stopped]) - 1.0) <= ALIKE
    told = stopped[fits]
    lost = np.zeros(window.n)
    lost[told] = gap[told] - usual[told]
    return PrefillGaps(
        int(hit.size),
        fill,
        float(near.mean()),
        int(stopped.size),
        float(fits.mean()),
        median(gap[told]) if told.size else 0.0,
        median(longest[told]) if told.size else 0.0,
        median(prefills.tokens),
        lost,
    )
