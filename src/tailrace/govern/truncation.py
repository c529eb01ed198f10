"""An over-long conversation made to fit: what stays whole, what is cut, what is left out.

Kept, in this order: the system text; the last turn (the last user message and all behind it: tool calls, their results,
a begun answer); then, of what is left of the budget, the first turn, the newest turns, the turns that bear on the last
message, and the next newest. A turn is a user message with everything up to the next one, so a tool's call never loses
its result, and roles follow each other as they did before. Where even system and last turn are too much, their texts
are cut, on the boundaries of `text_cut`; none of them is ever emptied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.govern.choice import choose
from tailrace.govern.relevance import question_of, scores
from tailrace.govern.text_cut import Count, cut_text

HEAD: Final = 0.2
TAIL: Final = 0.4
"""Shares of the room for earlier turns that the first and the newest ones take before relevance is asked."""
_HEAD_WHOLE: Final = 0.35
"""A first turn that is a little larger than its share stays whole: a cut costs a marker and the sense of a text."""
_SYSTEM_SHARE: Final = 0.4
"""Of a budget that the last turn and the system text cannot share: the most that the system text gets."""
_EARLIER_SHARE: Final = 0.1
"""Of the budget, left to earlier turns where the last turn must be cut anyway."""
LEAST: Final = 12.0
"""Tokens: no text is cut to less."""
_WORTH: Final = 48.0
"""Tokens of room from which on a turn is cut to fit instead of left out."""


class Turn(msgspec.Struct):
    """What stays or goes together."""

    texts: list[str]
    """The texts that may be cut."""
    hidden: list[str] = []
    """What else is counted with it: a tool call's arguments."""
    messages: int = 1
    system: bool = False
    """Always kept, wherever it stands."""
    asks: str = ""
    """The user's own words in it; of the last turn, what relevance is judged by."""


Kept = list[list[str] | None]
"""Of each turn its texts as they are now, or `None` where it was left out."""


def truncate(turns: Sequence[Turn], budget: float, count: Count, *, a_message: float, marker: str) -> Kept | None:
    """What is kept of `turns` within `budget` tokens; `None` where nothing sound fits.

    `a_message`: what a message costs beside its text. `marker` is a line put where something was left out; an empty one
    puts nothing. All sizes are those of `count`, and the caller measures the whole afterwards: a tokenizer's sizes need
    not add up.
    """
    return _Conversation(turns, budget, count, a_message, marker).kept()


class _Conversation:
    def __init__(self, turns: Sequence[Turn], budget: float, count: Count, a_message: float, marker: str) -> None:
        self.turns = turns
        self.budget = budget
        self.count = count
        self.marker = marker
        self.gap = count([marker + "\n\n"])[0] if marker else 0.0
        flat = [text for turn in turns for text in (*turn.texts, *turn.hidden)]
        sizes = iter(count(flat))
        self.texts: list[list[float]] = []
        self.fixed: list[float] = []
        for turn in turns:
            self.texts.append([next(sizes) for _ in turn.texts])
            self.fixed.append(sum(next(sizes) for _ in turn.hidden) + a_message * turn.messages)
        self.sizes = [sum(texts) + fixed for texts, fixed in zip(self.texts, self.fixed, strict=True)]
        spoken = [i for i, turn in enumerate(turns) if not turn.system]
        self.last = spoken[-1] if spoken else -1
        self.earlier = spoken[:-1]
        self.systems = [i for i, turn in enumerate(turns) if turn.system]
        self.question = question_of(turns[self.last].asks if spoken else "")

    def kept(self) -> Kept | None:
        if sum(self.sizes) <= self.budget:
            return [list(turn.texts) for turn in self.turns]
        out: Kept = [None] * len(self.turns)
        room = self.budget
        needed = sum(self.sizes[i] for i in self.systems) + (self.sizes[self.last] if self.last >= 0 else 0.0)
        if needed + (self.gap if self.earlier else 0.0) <= room:
            for i in self.systems:
                out[i] = list(self.turns[i].texts)
            out[self.last] = list(self.turns[self.last].texts)
            room -= needed
        else:
            if self.earlier:
                room -= max(self.gap, self.budget * _EARLIER_SHARE)
            spent = self._cut_needed(out, room)
            if spent is None:
                return None
            room = self.budget - spent
        if self.earlier:
            self._add_earlier(out, room)
            self._mark(out)
        return out

    # -- the system text and the last turn, when they do not fit

    def _cut_needed(self, out: Kept, room: float) -> float | None:
        """Cut them into `room`; returns what they take now."""
        system = sum(self.sizes[i] for i in self.systems)
        last = self.sizes[self.last] if self.last >= 0 else 0.0
        for_system = system if self.last < 0 else min(system, max(room * _SYSTEM_SHARE, room - last))
        spent = 0.0
        for group, share in ((self.systems, min(for_system, room)), ([self.last] if self.last >= 0 else [], 0.0)):
            if not group:
                continue
            took = self._cut_turns(out, group, share or room - spent)
            if took is None:
                return None
            spent += took
        return spent

    def _cut_turns(self, out: Kept, group: list[int], room: float) -> float | None:
        """Cut the texts of some turns so that together they fit; short texts stay whole, long ones get equal parts."""
        fixed = sum(self.fixed[i] for i in group)
        level = _water_level([size for i in group for size in self.texts[i]], room - fixed)
        spent = fixed
        for i in group:
            texts: list[str] = []
            for text, size in zip(self.turns[i].texts, self.texts[i], strict=True):
                if size <= level:
                    texts.append(text)
                    spent += size
                    continue
                if level < LEAST:
                    return None
                cut = cut_text(text, level, self.count, question=self.question, marker=self.marker)
                if cut is None:
                    return None
                texts.append(cut)
                spent += self.count([cut])[0]
            out[i] = texts
        return spent if spent <= room else None

    # -- the turns before the last

    def _add_earlier(self, out: Kept, room: float) -> None:
        earlier = self.earlier
        if sum(self.sizes[i] for i in earlier) <= room:
            for i in earlier:
                out[i] = list(self.turns[i].texts)
            return
        # The start says what all this is about: it is kept, whole or in part, wherever there is room for it.
        share = room * (_HEAD_WHOLE if self.sizes[earlier[0]] <= room * _HEAD_WHOLE - self.gap else HEAD) - self.gap
        took = self._cut_turns(out, earlier[:1], share) if share >= min(_WORTH, self.sizes[earlier[0]]) else None
        if took is None:
            out[earlier[0]] = None
        else:
            room -= took
            earlier = earlier[1:]
        sizes = [self.sizes[i] for i in earlier]
        bearing = scores(["\n".join(self.turns[i].texts) for i in earlier], self.question)
        kept = choose(sizes, bearing, room, gap=self.gap, head=0.0, tail=TAIL)
        room -= self.gap * _gaps(kept)
        for keep, i in zip(kept, earlier, strict=True):
            if keep:
                out[i] = list(self.turns[i].texts)
                room -= self.sizes[i]
        newest = next((at for at in range(len(kept) - 1, -1, -1) if not kept[at]), None)
        if newest is not None and room - self.gap >= _WORTH:  # a cut turn may part a gap in two
            i = earlier[newest]
            if self._cut_turns(out, [i], room - self.gap) is None:
                out[i] = None

    def _mark(self, out: Kept) -> None:
        """Say in the first text behind each gap that something was left out."""
        if not self.marker:
            return
        missing = False
        for i in [*self.earlier, self.last]:
            texts = out[i]
            if texts is None:
                missing = True
            elif missing:
                if texts:
                    texts[0] = f"{self.marker}\n\n{texts[0]}"
                missing = False


def _gaps(kept: Sequence[bool]) -> int:
    return sum(not keep and (i == 0 or kept[i - 1]) for i, keep in enumerate(kept))


def _water_level(sizes: Sequence[float], room: float) -> float:
    """The level at which all sizes, cut to it, fill the room: whatever is below stays whole."""
    left, count = room, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return max(0.0, left / count)
        left -= size
        count -= 1
    return max(sizes, default=0.0)
