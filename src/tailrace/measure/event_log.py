"""The bounded log of a stream's events: folded when full, never grown."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from itertools import pairwise
from operator import sub
from typing import Final

from tailrace.measure.gaps import GapDigest
from tailrace.model.timeline import EventKind, Timeline

MIN_LIMIT: Final = 256
KIND_BITS: Final = 4
_LAST_TOKEN_KIND: Final = int(EventKind.REFUSAL)
_KIND_MASK: Final = (1 << KIND_BITS) - 1
_EDGE: Final = 16
"""Events left untouched at either end: more than the stall window of 10 gaps."""
_TELLING: Final = frozenset(
    int(kind) for kind in (EventKind.ROLE, EventKind.USAGE, EventKind.FINISH, EventKind.ERROR, EventKind.DONE)
)


def entry(kind: int, tokens: int) -> int:
    """Kind and token count (-1: not said) of an event in one integer, as `EventLog.what` keeps them."""
    return kind | (tokens + 1) << KIND_BITS


def _is_token(code: int) -> bool:
    return code & _KIND_MASK <= _LAST_TOKEN_KIND


class EventLog:
    """Stamps, kinds and token counts of at most `limit` events, and the statistics of all their gaps.

    The owner appends to `at` (absolute ns) and `what` (see `entry`) itself, because a method call a token is what that
    path cannot afford, counts events without token in `others`, and calls `fold()` when `at` reaches `room`. Both
    lists keep their identity.

    Up to `limit` events everything is kept. Beyond, older events are folded: of each batch the longest gaps with both
    their ends, telling events (role, finish, usage, error, end) and every n-th event survive, the others are merged
    into the next survivor. The first and the last events, and the longest gaps of the stream, are always there.
    """

    __slots__ = (
        "_kept_at", "_kept_merged", "_kept_what", "_last_settled", "_settled", "_stride", "at", "gaps", "limit",
        "others", "room", "thinned", "what",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        if limit < MIN_LIMIT:
            raise ValueError(
                f"timeline_limit is {limit}; at least {MIN_LIMIT} are needed to keep ends and longest gaps"
            )
        self.limit = limit
        self.room = limit
        self.at: list[int] = []
        self.what: list[int] = []
        self.others = 0
        self.gaps = GapDigest()
        self.thinned = 0
        self._kept_at: list[int] = []
        self._kept_what: list[int] = []
        self._kept_merged: list[int] = []
        self._stride = 8
        self._settled = 0
        self._last_settled: int | None = None

    def __len__(self) -> int:
        return len(self._kept_at) + len(self.at)

    def settle(self) -> None:
        """Bring the gaps of all events so far into `gaps`."""
        at, begin = self.at, self._settled
        if begin == len(at):
            return
        stamps = at[begin:]
        if self.others:
            codes = self.what[begin:]
            stamps = [at for at, code in zip(stamps, codes, strict=True) if code & _KIND_MASK <= _LAST_TOKEN_KIND]
        self._settled = len(at)
        if not stamps:
            return
        last = self._last_settled
        before = stamps if last is None else [last, *stamps]
        self._last_settled = stamps[-1]
        self.gaps.extend(list(map(sub, before[1:], before)))

    def recent_gaps(self, count: int) -> list[int]:
        """The last `count` gaps between token events, oldest first; fewer where there were fewer."""
        stamps: list[int] = []
        at, what = self.at, self.what
        for index in range(len(at) - 1, -1, -1):
            if _is_token(what[index]):
                stamps.append(at[index])
                if len(stamps) > count:
                    break
        stamps.reverse()
        return [after - before for before, after in pairwise(stamps)]

    def fold(self) -> int:
        """Fold all but the newest events; the new `room`."""
        self.settle()
        cut = self._tail_start()
        at, what = self.at[:cut], self.what[:cut]
        tokens: Sequence[int] = range(cut)
        stamps = at
        if self.others:
            tokens = [index for index, code in enumerate(what) if _is_token(code)]
            stamps = [at[index] for index in tokens]
        chosen = set(range(0, cut, self._stride))
        if tokens:
            chosen.update((tokens[0], tokens[-1]))
            if not self._kept_at:
                chosen.update(tokens[:_EDGE])
        gaps = list(map(sub, stamps[1:], stamps))
        for index in _longest(gaps, self.limit // 64):
            chosen.update((tokens[index], tokens[index + 1]))
        if self.others:
            telling = [index for index, code in enumerate(what) if code & _KIND_MASK in _TELLING]
            chosen.update(telling[: self.limit // 32])
        self._keep(at, what, [0] * cut, sorted(chosen))
        del self.at[:cut]
        del self.what[:cut]
        self._settled = len(self.at)
        self.others = sum(not _is_token(code) for code in self.what)
        if len(self._kept_at) > self.limit // 2:
            self._rethin()
        self.room = self.limit // 2
        return self.room

    def _tail_start(self) -> int:
        """Where the newest events begin that stay untouched: enough of them for the stall window."""
        size = len(self.at)
        if not self.others:
            return size - _EDGE
        seen = 0
        lowest = size - self.limit // 8
        for index in range(size - 1, lowest, -1):
            seen += _is_token(self.what[index])
            if seen == _EDGE:
                return index
        return lowest

    def _keep(self, at: list[int], what: list[int], merged: list[int], order: list[int]) -> None:
        """Append the events at the indices `order`; those between are merged into the next token event kept."""
        kept_at, kept_what, kept_merged = self._kept_at, self._kept_what, self._kept_merged
        # Without counts an event's code is its kind alone: nothing is to be added up.
        counted = max(what) > _KIND_MASK
        # Nothing but token events alike, none merged before: what lies between survivors is a difference and a sum.
        plain = not self.others and not any(merged) and (not counted or min(what) > _KIND_MASK)
        brought = [code >> KIND_BITS for code in what] if plain and counted else []
        events = tokens = 0
        unknown = False
        previous = -1
        for index in order:
            if plain:
                events = index - previous - 1
                self.thinned += events
                unknown = not counted
                if counted and events:
                    tokens = sum(brought[previous + 1 : index]) - events
            elif index - previous > 1:
                for skipped in range(previous + 1, index):
                    code = what[skipped]
                    if code & _KIND_MASK <= _LAST_TOKEN_KIND:
                        events += 1 + merged[skipped]
                        self.thinned += 1
                        unknown = unknown or code <= _KIND_MASK
                    if counted and code > _KIND_MASK:
                        tokens += (code >> KIND_BITS) - 1
            previous = index
            code = what[index]
            swallowed = merged[index]
            if code & _KIND_MASK <= _LAST_TOKEN_KIND and (events or tokens):
                swallowed += events
                known = not unknown and code > _KIND_MASK
                code = entry(code & _KIND_MASK, (code >> KIND_BITS) - 1 + tokens if known else -1)
                events = tokens = 0
                unknown = False
            kept_at.append(at[index])
            kept_what.append(code)
            kept_merged.append(swallowed)

    def _rethin(self) -> None:
        """Halve the folded part, by the same rules over all of it."""
        at, what, merged = self._kept_at, self._kept_what, self._kept_merged
        size = len(at)
        self._stride *= 2
        tokens = [index for index, code in enumerate(what) if _is_token(code)]
        chosen = {*tokens[:_EDGE], *tokens[-1:]}
        ends = [(before, after) for before, after in pairwise(tokens) if not merged[after]]
        for index in _longest([at[after] - at[before] for before, after in ends], self.limit // 32):
            chosen.update(ends[index])
        telling = [index for index, code in enumerate(what) if code & _KIND_MASK in _TELLING]
        chosen.update(telling[: self.limit // 32])
        room = self.limit // 4 - len(chosen)
        if room > 0:
            chosen.update(range(0, size, max(size // room, 1)))
        self._kept_at, self._kept_what, self._kept_merged = [], [], []
        self._keep(at, what, merged, sorted(chosen))

    def timeline(self, origin_ns: int) -> Timeline:
        """The log as offsets from `origin_ns`."""
        codes = self._kept_what + self.what
        return Timeline(
            at_ns=[at - origin_ns for at in self._kept_at + self.at],
            kind=[code & _KIND_MASK for code in codes],
            tokens=[(code >> KIND_BITS) - 1 for code in codes],
            thinned=self.thinned,
            merged=self._kept_merged + [0] * len(self.at) if self.thinned else [],
        )


def _longest(gaps: list[int], count: int) -> list[int]:
    """Indices of the `count` longest gaps at most, the longest always among them. Ties at the bound are left out."""
    if not gaps:
        return []
    if len(gaps) <= count:
        return list(range(len(gaps)))
    longest = nlargest(count, gaps)
    floor = longest[-1]
    if floor == longest[0]:
        return [gaps.index(floor)]
    return [index for index, gap in enumerate(gaps) if gap > floor]
