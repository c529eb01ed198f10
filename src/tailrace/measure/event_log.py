"""The bounded log of a stream's events: thinned when full, never grown."""

from __future__ import annotations

from heapq import nlargest
from itertools import pairwise
from typing import Final

from tailrace.measure.gaps import GapDigest
from tailrace.model.timeline import EventKind, Timeline

MIN_LIMIT: Final = 256
_LAST_TOKEN_KIND: Final = int(EventKind.REFUSAL)
_KIND_MASK: Final = 15
_KIND_BITS: Final = 4
_EDGE: Final = 16
"""Token events kept untouched at either end of the log; more than the stall window of 10 gaps."""
_TELLING: Final = frozenset(
    int(kind) for kind in (EventKind.ROLE, EventKind.USAGE, EventKind.FINISH, EventKind.ERROR, EventKind.DONE)
)


def entry(kind: int, tokens: int) -> int:
    """Kind and token count (-1: not said) of an event in one integer, as `EventLog.what` keeps them."""
    return kind | (tokens + 1) << _KIND_BITS


class EventLog:
    """Stamps, kinds and token counts of events, at most `limit` of them, and the exact statistics of all gaps.

    The owner appends to `at` (absolute ns) and `what` (see `entry`) itself, because a method call a token is what this
    path cannot afford, and calls `thin()` when `at` reaches `limit`. Both lists keep their identity.
    """

    __slots__ = ("_last_settled", "_merged", "_settled", "at", "gaps", "limit", "thinned", "what")

    def __init__(self, limit: int) -> None:
        if limit < MIN_LIMIT:
            raise ValueError(
                f"timeline_limit is {limit}; at least {MIN_LIMIT} are needed to keep ends and longest gaps"
            )
        self.limit = limit
        self.at: list[int] = []
        self.what: list[int] = []
        self.gaps = GapDigest()
        self.thinned = 0
        self._merged: list[int] = []
        self._settled = 0
        self._last_settled: int | None = None

    def settle(self) -> None:
        """Bring the gaps of all events so far into `gaps`."""
        if self._settled == len(self.at):
            return
        fresh: list[int] = []
        last = self._last_settled
        for at, what in zip(self.at[self._settled :], self.what[self._settled :], strict=True):
            if what & _KIND_MASK <= _LAST_TOKEN_KIND:
                if last is not None:
                    fresh.append(at - last)
                last = at
        self._last_settled = last
        self._settled = len(self.at)
        self.gaps.extend(fresh)

    def recent_gaps(self, count: int) -> list[int]:
        """The last `count` gaps between token events, oldest first; fewer where there were fewer."""
        stamps: list[int] = []
        at, what = self.at, self.what
        for index in range(len(at) - 1, -1, -1):
            if what[index] & _KIND_MASK <= _LAST_TOKEN_KIND:
                stamps.append(at[index])
                if len(stamps) > count:
                    break
        stamps.reverse()
        return [after - before for before, after in pairwise(stamps)]

    def thin(self) -> None:
        """Halve the log. First and last token events, the longest gaps and telling events survive."""
        self.settle()
        at, what = self.at, self.what
        size = len(at)
        merged = self._merged + [0] * (size - len(self._merged))
        keep = self._survivors(merged)
        new_at: list[int] = []
        new_what: list[int] = []
        new_merged: list[int] = []
        carried_tokens = carried_events = 0
        unknown = False
        for index in range(size):
            code = what[index]
            tokens = (code >> _KIND_BITS) - 1
            is_token = code & _KIND_MASK <= _LAST_TOKEN_KIND
            if keep[index]:
                events = merged[index]
                if is_token and (carried_events or carried_tokens):
                    events += carried_events
                    tokens = -1 if unknown or tokens < 0 else tokens + carried_tokens
                    code = entry(code & _KIND_MASK, tokens)
                    carried_tokens = carried_events = 0
                    unknown = False
                new_at.append(at[index])
                new_what.append(code)
                new_merged.append(events)
                continue
            if is_token:
                carried_events += 1 + merged[index]
                self.thinned += 1
                unknown = unknown or tokens < 0
            if tokens > 0:
                carried_tokens += tokens
        at[:] = new_at
        what[:] = new_what
        self._merged = new_merged
        self._settled = len(at)

    def _survivors(self, merged: list[int]) -> bytearray:
        at, what = self.at, self.what
        size = len(at)
        keep = bytearray(size)
        tokens = [index for index, code in enumerate(what) if code & _KIND_MASK <= _LAST_TOKEN_KIND]
        share = self.limit // 8
        true_gaps = [(at[after] - at[before], before, after) for before, after in pairwise(tokens) if not merged[after]]
        for _, before, after in nlargest(share, true_gaps):
            keep[before] = keep[after] = 1
        for index in (*tokens[:_EDGE], *tokens[-_EDGE:], size - 1):
            keep[index] = 1
        telling = [index for index, code in enumerate(what) if code & _KIND_MASK in _TELLING]
        for index in telling[:share]:
            keep[index] = 1
        room = self.limit // 2 - sum(keep)
        if room > 0:
            rest = [index for index in range(size) if not keep[index]]
            stride = -(-len(rest) // room)
            for index in rest[::stride] if stride else ():
                keep[index] = 1
        return keep

    def timeline(self, origin_ns: int) -> Timeline:
        """The log as offsets from `origin_ns`."""
        merged = self._merged
        return Timeline(
            at_ns=[at - origin_ns for at in self.at],
            kind=[code & _KIND_MASK for code in self.what],
            tokens=[(code >> _KIND_BITS) - 1 for code in self.what],
            thinned=self.thinned,
            merged=merged + [0] * (len(self.at) - len(merged)) if self.thinned else [],
        )
