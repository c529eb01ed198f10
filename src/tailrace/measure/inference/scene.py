"""The requests of one engine side by side: who was there, and what their tokens say of the engine's steps.

A step of the engine gives each decoding request a token, so the stamps of any one stream mark the ends of the steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

NEVER: Final = 1 << 62
_LOOK: Final = 48
"""Streams looked at for a witness."""
_SENT: Final[Any] = attrgetter("sent")
_FIRST: Final[Any] = attrgetter("first")
_END: Final[Any] = attrgetter("end")
_SAME_NS: Final = 100_000
"""Stamps of one stream closer than this came out of one read."""


class Heard:
    """One request as the engine's neighbours see it. Absolute ns of one clock."""

    __slots__ = ("dense", "end", "first", "sent", "stamps", "tokens")

    def __init__(
        self,
        sent: int,
        first: int | None,
        end: int | None,
        stamps: Sequence[int] = (),
        *,
        tokens: int | None = None,
        dense: bool = True,
    ) -> None:
        self.sent = sent
        self.first = first
        """Its first token; `None` where none came (yet), or the answer was not streamed."""
        self.end = NEVER if end is None else end
        """Its last token, or when it was given up; `NEVER` while it lives."""
        self.stamps = stamps
        """Of its events, ascending; those before `first` are not looked at."""
        self.tokens = tokens
        """Prompt tokens that it may have had to compute, at most; `None` where nobody knows yet."""
        self.dense = dense
        """A token an event: its stamps mark every step."""


class Scene:
    """What is known of all requests around some instants. Built once for a batch of questions."""

    def __init__(self, heard: Iterable[Heard]) -> None:
        by_sent = sorted(heard, key=_SENT)
        self._sents = list(map(_SENT, by_sent))
        ends = list(map(_END, by_sent))
        self._until = list(accumulate(ends, max))
        self._by_first = sorted([one for one in by_sent if one.first is not None], key=_FIRST)
        self._firsts: list[int] = list(map(_FIRST, self._by_first))
        ends.sort()
        self._ends = ends

    def idle_at(self, sent: int) -> bool:
        """Whether nobody was with the engine when a request was sent."""
        index = bisect_left(self._sents, sent) - 1
        return index < 0 or self._until[index] <= sent

    def decoding(self, at: int) -> int:
        """Requests whose tokens came before and after `at`."""
        return bisect_left(self._firsts, at) - bisect_left(self._ends, at)

    def present(self, at: int) -> int:
        """Requests that were sent and had not ended."""
        return bisect_right(self._sents, at) - bisect_right(self._ends, at)

    def ended_near(self, at: int, slack: int) -> bool:
        """Whether some request ended within `slack` of `at`."""
        index = bisect_left(self._ends, at - slack)
        return index < len(self._ends) and self._ends[index] <= at + slack

    def ended_between(self, low: int, high: int) -> bool:
        """Whether some request ended in [low, high]."""
        index = bisect_left(self._ends, low)
        return index < len(self._ends) and self._ends[index] <= high

    def first_before_me(self, me: Heard, slack: int = 0) -> int | None:
        """The last first token, up to mine, of those that were sent before me and waited with me.

        `slack`: how much later than mine one of the same step may have been read.
        """
        mine = _first(me)
        for index in range(bisect_right(self._firsts, mine + slack) - 1, -1, -1):
            at = self._firsts[index]
            if at <= me.sent:
                return None
            one = self._by_first[index]
            if one is not me and one.sent < me.sent:
                return at
        return None

    def marks_after(self, at: int, most: int) -> list[int]:
        """The first `most` ends of steps after `at`, as each stream marks them; ascending.

        A step is in it as often as streams had a token of it: the engine's answers leave one after another, a
        millisecond or ten apart, and which of them is nearest to the step's end nobody knows.
        """
        out: list[int] = []
        top = bisect_right(self._firsts, at)
        for index in range(top - 1, max(top - 1 - _LOOK, -1), -1):
            one = self._by_first[index]
            if one.end > at:
                found = bisect_right(one.stamps, at)
                out += one.stamps[found : found + most]
        latest = max(out, default=self._firsts[top] if top < len(self._firsts) else at)
        out += self._firsts[top : bisect_right(self._firsts, latest)]
        return sorted(out)

    def steps_of_another(self, me: Heard, low: int, high: int) -> int:
        """The most steps that one other stream had strictly within (low, high), by its tokens."""
        most = 0
        top = bisect_left(self._firsts, high)
        for index in range(top - 1, max(top - 1 - _LOOK, -1), -1):
            one = self._by_first[index]
            if one is me or one.end <= low:
                continue
            stamps = one.stamps
            begin, end = bisect_right(stamps, low), bisect_left(stamps, high)
            last, steps = low, 0
            for at in range(begin, end):
                if stamps[at] - last >= _SAME_NS:
                    steps += 1
                    last = stamps[at]
            most = max(most, steps)
        return most

    def prompts_done(self, at: int, slack: int) -> int | None:
        """Tokens, at most, of the prompts whose first tokens came within `slack` of `at`; `None`: one is unknown."""
        total = 0
        for index in range(bisect_left(self._firsts, at - slack), bisect_right(self._firsts, at + slack)):
            tokens = self._by_first[index].tokens
            if tokens is None:
                return None
            total += tokens
        return total

    def marks(self, me: Heard, most: int) -> tuple[list[int], int]:
        """Ends of steps, newest first: my first token, then back to the last one before I was sent, at most `most`.

        Ends early where nobody's tokens mark the steps. Beside them, how far my first token's stamp is from its
        neighbour's (ns).
        """
        out = [_first(me)]
        scatter = 0
        while out[-1] > me.sent and len(out) <= most:
            before = len(out)
            witness = self._witness(out[-1], me)
            if witness is None:
                break
            if before == 1:
                scatter = abs(witness.stamps[_nearest(witness.stamps, out[0])] - out[0])
            self._walk(witness, out, me.sent, most)
            if len(out) == before:
                break
        return out, scatter

    def _witness(self, at: int, me: Heard) -> Heard | None:
        """The stream that has decoded through `at` for longest, of those nearby."""
        top = bisect_left(self._firsts, at - _SAME_NS)
        for one in self._by_first[max(top - _LOOK, 0) : top]:
            if one.end >= at and one is not me and one.dense and one.stamps and _beats(one, at):
                return one
        return None

    @staticmethod
    def _walk(witness: Heard, out: list[int], until: int, most: int) -> None:
        stamps, begin = witness.stamps, _first(witness)
        at = out[-1]
        index = _nearest(stamps, at)
        last = stamps[index]
        while index > 0 and len(out) <= most:
            index -= 1
            stamp = stamps[index]
            if stamp < begin:
                return
            if last - stamp < _SAME_NS:
                continue
            last = stamp
            out.append(stamp)
            if stamp <= until:
                return


def _nearest(stamps: Sequence[int], at: int) -> int:
    index = bisect_left(stamps, at)
    if index == len(stamps) or (index > 0 and at - stamps[index - 1] < stamps[index] - at):
        index -= 1
    return index


def _beats(one: Heard, at: int) -> bool:
    """Whether it got a token in the step that ended at `at`: it may have been preempted then, or folded away."""
    stamps = one.stamps
    index = _nearest(stamps, at)
    if index < 1:
        return False
    before = stamps[index] - stamps[index - 1]
    return abs(stamps[index] - at) * 3 <= max(before, _SAME_NS)


def _first(one: Heard) -> int:
    assert one.first is not None
    return one.first
