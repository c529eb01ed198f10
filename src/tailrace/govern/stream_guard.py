"""A lane's demands on its streams beside the idle budget: no gap beyond a limit, and no trickle.

Nothing is done for a token. A stream is looked at when the earliest of its demands may be broken, about once a limit,
by whoever sweeps; what happened in between stands in the stamps that its meter keeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from tailrace.model.thresholds import S

NEVER: Final = 1 << 62


class GapAction(StrEnum):
    """What a gap beyond the limit has done."""

    WARN = "warn"
    """It is told and counted."""
    DEGRADE = "degrade"
    """It presses the degradation ladder, too."""
    ABORT = "abort"
    """It is told, presses the ladder, and ends the stream, if that has not gone on meanwhile."""


class StreamGuard(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane demands; `None` demands nothing."""

    gap_ns: int | None = None
    gap_action: GapAction = GapAction.WARN
    tokens_per_s: float | None = None
    """The fewest tokens a second, over each `window_ns` from the first token on."""
    window_ns: int = 5 * S


class Breach(StrEnum):
    """Which demand ends a stream."""

    GAP = "gap"
    PACE = "pace"


class Paced(Protocol):
    """What is asked of a stream's meter."""

    @property
    def last_progress_ns(self) -> int | None:
        """The last token event, or progress before the first."""

    @property
    def event_stamps(self) -> list[int]:
        """Stamps of the last events, ascending (ns)."""

    @property
    def tokens(self) -> int:
        """Output tokens so far, as well as they are known."""


class StreamWatch:
    """One stream against its lane's demands. All stamps are the clock of the meter (ns)."""

    __slots__ = ("_awaited", "_look_at", "_mark", "_tell", "_told", "guard")

    def __init__(self, guard: StreamGuard, tell: Callable[[int, int], None]) -> None:
        """`tell` gets every gap beyond the limit: its length and when it was noticed."""
        self.guard = guard
        self._tell = tell
        self._awaited: int | None = None
        """The token whose successor is due; its gap is judged at `_look_at` or later."""
        self._told: int | None = None
        """The token after which a gap has been told."""
        self._look_at = 0
        self._mark: tuple[int, int] | None = None
        """Since when the pace is measured, and the tokens until then."""

    def due(self, meter: Paced, unblocked_at: int) -> int:
        """The earliest instant at which a demand may be broken."""
        last = meter.last_progress_ns
        if last is None:
            return NEVER
        at = NEVER
        guard = self.guard
        if guard.gap_ns is not None:
            if self._awaited is None:
                self._awaited = last
            at = max(self._awaited, unblocked_at) + guard.gap_ns if self._told != last else self._look_at
        if guard.tokens_per_s is not None:
            if self._mark is None:
                self._mark = (last, meter.tokens)
            at = min(at, self._mark[0] + guard.window_ns)
        return at

    def look(self, meter: Paced, now: int, unblocked_at: int, *, blocked: bool) -> Breach | None:
        """Judge what has come since the last look. While its client blocks, or has, the engine is not to blame."""
        last = meter.last_progress_ns
        if last is None:
            return None
        guard = self.guard
        if guard.gap_ns is not None and self._gap(guard.gap_ns, meter, last, now, unblocked_at, blocked=blocked):
            return Breach.GAP
        if guard.tokens_per_s is not None and self._mark is not None:
            since, tokens = self._mark
            if blocked or unblocked_at > since:
                self._mark = (now, meter.tokens)
            elif now - since >= guard.window_ns:
                so_far = meter.tokens
                if (so_far - tokens) * S < guard.tokens_per_s * (now - since):
                    return Breach.PACE
                self._mark = (now, so_far)
        return None

    def _gap(self, limit: int, meter: Paced, last: int, now: int, unblocked_at: int, *, blocked: bool) -> bool:
        """Whether a gap ends the stream."""
        awaited = self._awaited
        if awaited is None:
            awaited = last
        if last > awaited and self._told != awaited:
            # The token came before us, and perhaps too late all the same. A stream that goes on is not ended for it.
            came = _after(meter.event_stamps, awaited)
            gap = came - max(awaited, unblocked_at)
            if came <= last and gap > limit:
                self._tell(gap, came)
        self._awaited = last
        self._look_at = now + limit
        if blocked or self._told == last:
            return False
        gap = now - max(last, unblocked_at)
        if gap < limit:
            return False
        self._told = last
        self._tell(gap, now)
        return self.guard.gap_action is GapAction.ABORT


def _after(stamps: Sequence[int], at: int) -> int:
    """The first stamp later than `at`; `NEVER` where it is not kept any more."""
    if not stamps or stamps[0] > at:
        return NEVER  # folded away: it cannot be told which one followed
    index = bisect_right(stamps, at)
    return stamps[index] if index < len(stamps) else NEVER
