"""The wait for the first token, split into the engine's queue and its prefill.

Everything is read off the streams themselves. A step of a continuously batching engine ends with a token for each
decoding request; requests are admitted at the end of a step, first come first served, while the step's budget of tokens
lasts; a first token comes at the end of the step that computes the last of its prompt. So the queue ended at one of the
marks that the neighbours' tokens set, and which one follows from three facts:

* not before the first mark after the arrival, nor before the step in which the prompt of the last one ahead was
  finished: the rest of that step's budget is the earliest that there was for us;
* not so early that the prompt would have been finished before it was: it takes as many steps as its uncached tokens
  fill (`BudgetVotes`). Where there are more, the engine was full and the admission came later;
* nobody with the engine: no queue at all. These waits teach what a prefill costs (`PrefillCost`).

What remains open is stated as the error: the distance to the other marks that explain the same.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.inference.budget_votes import WHOLE, BudgetVotes, steps_of
from tailrace.measure.inference.prefill_cost import PrefillCost
from tailrace.measure.inference.scene import Heard, Scene
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS

_MOST_MARKS: Final = 256
_FLOOR_NS: Final = 5 * MS
"""No split is known better: sending, parsing, templating and reading are not told from the queue."""
_NEAR_NS: Final = 4 * MS
"""An arrival this short before a mark, at least, may have been seen by the engine only after it."""
_PROMPT_NS: Final = 30 * MS
"""An engine whose status lines nearly all come within this time, however long the wait, sends them at once."""
_LONG_NS: Final = 100 * MS
"""Waits from which on a status line tells whether it waits too."""
_RECENT: Final = 200
"""Readings of which the scatter and the calibration are the 90th percentile."""
_RENEW: Final = 20
_FEW: Final = 5
_LIGHT: Final = 4
"""A prefill beside at most so many decoding requests costs what it does alone, to a few per cent."""


_PARALLEL: Final = 0.03
_FULL: Final = 0.03
_PARALLEL_MEMORY: Final = 100


class Method(StrEnum):
    """How a split was found; the names stand in the source of the stages."""

    IDLE = "idle engine"
    BOUNDARIES = "step boundaries"
    REGRESSION = "prefill regression"


class Quality(msgspec.Struct, frozen=True):
    """The largest stated error with which a stage is shown: the larger of a share of it and a time."""

    share: float = 0.15
    floor_ns: int = 10 * MS

    def enough(self, value_ns: int, error_ns: int) -> bool:
        """Whether a stage of `value_ns` that may be off by `error_ns` is worth showing."""
        return error_ns <= max(self.share * value_ns, self.floor_ns)


class Split(msgspec.Struct, frozen=True):
    """Queue and prefill of one wait. Both are off by at most `error_ns`, in nine of ten cases."""

    queue_ns: int
    prefill_ns: int
    error_ns: int
    method: Method

    def timings(self, quality: Quality, said: EngineTimings = NO_TIMINGS) -> EngineTimings:
        """As the ledger takes them, beside what the engine `said`: each stage only where it is known well enough.

        A long queue may be, and the short prefill after it not: that is then left unattributed.
        """
        queue = self.queue_ns if quality.enough(self.queue_ns, self.error_ns) else None
        prefill = self.prefill_ns if quality.enough(self.prefill_ns, self.error_ns) else None
        if queue is None and prefill is None:
            return said
        text = self.source
        if said is NO_TIMINGS:
            return EngineTimings(queue_ns=queue, prefill_ns=prefill, sources={"queue": text, "prefill": text})
        return msgspec.structs.replace(
            said, queue_ns=queue, prefill_ns=prefill, sources={**said.sources, "queue": text, "prefill": text}
        )

    @property
    def source(self) -> str:
        """As records keep it: `inferred(step boundaries, ±2 ms)`."""
        return _spelled(self.method, -(-self.error_ns // MS))


@lru_cache(maxsize=256)
def _spelled(method: Method, error_ms: int) -> str:
    return source(SourceKind.INFERRED, f"{method.value}, ±{error_ms} ms")


class _Percentile:
    """The 90th percentile of the last readings, renewed now and then."""

    def __init__(self, start: float) -> None:
        self._last: deque[float] = deque(maxlen=_RECENT)
        self._new = 0
        self.value = start

    def note(self, reading: float) -> None:
        self._last.append(reading)
        self._new += 1
        if self._new >= _RENEW or _FEW <= len(self._last) < _RENEW:
            self._new = 0
            ordered = sorted(self._last)
            self.value = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]


class Wait(msgspec.Struct, kw_only=True):
    """One request whose wait is to be split."""

    heard: Heard
    """With its first token."""
    prompt_tokens: int | None
    cached_tokens: int | None
    """`None` where the engine does not say: then anything from none to nearly all may have been cached."""
    headers: int | None = None
    """When the status line came: of an engine that sends it at once, the arrival as it saw it."""


class _Steps(msgspec.Struct, frozen=True):
    """What bounds an admission: indices into `marks`, which are newest first."""

    marks: list[int]
    earliest: int
    """The first mark at which there can have been a turn."""
    arrived: int
    """The first mark after the arrival."""
    seen: bool
    """Whether the marks reach back so far that these two are known."""
    alone: bool
    """Whether nobody was ahead."""
    shares: bool
    """Whether the step after `earliest` was shared with the last one ahead."""
    left: bool
    """Whether somebody's end made room when the step after `earliest` was over."""
    late: bool
    """Whether the arrival was so short before `earliest` that the engine may have seen it only after."""


class WaitModel:
    """What was learned of one engine, and the splits that follow. Bounded; times in ns."""

    def __init__(self, *, budget: int | None = None) -> None:
        """`budget`: the engine's tokens a step, where a fact says so."""
        self.cost = PrefillCost()
        self.votes = BudgetVotes(budget)
        self._parallel = 0.0
        """The share of prompts that began before their turn: they are computed side by side."""
        self._full = 0.0
        """The share of prompts that must have waited for a place, whatever was ahead."""
        self._scatter = _Percentile(0.0)
        """By how much two streams' stamps of one step differ (ns)."""
        self._lines = _Percentile(float("inf"))
        """From the send to the status line (ns)."""
        self._heads = _Percentile(float("inf"))
        """From the send to the status line, of long waits (ns)."""
        self._misses = _Percentile(1.0)
        """True error over stated error, of the waits whose truth became known."""

    def split(self, wait: Wait, scene: Scene, *, partial: bool = False) -> Split | None:
        """The split of one wait and what it teaches, or `None` where nothing can be said.

        `partial`: others use the engine whose requests are not in the scene. Steps are marked all the same, but nobody
        there does not mean that nobody was.
        """
        found = self._split(wait, scene, partial=partial)
        if found is None:
            return None
        error = max(found.error_ns, _FLOOR_NS, 2 * self._scatter.value, self._sending())
        return Split(found.queue_ns, found.prefill_ns, round(error * max(self._misses.value, 1.0)), found.method)

    def _sending(self) -> int:
        """How long sending and reading may take (ns): by the status lines, where those do not wait for a token."""
        lines = self._lines.value
        return round(1.5 * lines) if lines <= _PROMPT_NS else 2 * _FLOOR_NS

    def check(self, found: Split, queue_ns: int, prefill_ns: int) -> None:
        """The engine told the truth about a wait that was split: what is stated from now on has learnt from it.

        The engine's two need not fill the wait (sending and templating are in neither): the split is as far off as the
        one that it misses by more.
        """
        off = min(abs(found.prefill_ns - prefill_ns), abs(found.queue_ns - queue_ns))
        self._misses.note(off * max(self._misses.value, 1.0) / found.error_ns)

    def _split(self, wait: Wait, scene: Scene, *, partial: bool) -> Split | None:
        me = wait.heard
        first = me.first
        if first is None or first <= me.sent:
            return None
        tokens = wait.prompt_tokens
        if tokens is None:
            return None
        uncached = max(tokens - (wait.cached_tokens or 0), 1)
        arrived = self._arrival(me.sent, first, wait.headers)
        certain = wait.cached_tokens is not None
        if not scene.idle_at(me.sent):
            found = self._among(me, arrived, first, scene, uncached, certain=certain)
        elif partial:
            return None
        else:
            found = self._idle(arrived, first, uncached)
        return None if partial and found is not None and found.method is Method.REGRESSION else found

    def _arrival(self, sent: int, first: int, headers: int | None) -> int:
        """When the engine's queue began, by its status line where that does not wait for anything.

        It comes after parsing and templating, and its way back is that of the tokens: what is left is the queue. The
        time before it stays unattributed.
        """
        if headers is None or not sent < headers < first:
            return sent
        took = headers - sent
        self._lines.note(took)
        if first - sent >= _LONG_NS:
            self._heads.note(took)
        return headers if self._heads.value <= _PROMPT_NS and took <= _PROMPT_NS else sent

    # -- nobody there

    def _idle(self, arrived: int, first: int, uncached: int) -> Split | None:
        waited = first - arrived
        off = None
        if self.cost.known and self.cost.covers(uncached):
            # Had something hidden kept the engine busy, the wait would exceed what such a prefill takes.
            off = max(round(waited - self.cost.predict(uncached) * (1 + self.cost.error_share)), 0)
        self.cost.note(uncached, waited)
        if off is None:
            return None
        return Split(0, waited, off, Method.IDLE)

    # -- among others

    def _among(self, me: Heard, begin: int, first: int, scene: Scene, uncached: int, *, certain: bool) -> Split | None:
        marks, scatter = scene.marks(me, _MOST_MARKS)
        if len(marks) < 2:
            return self._blind(me, begin, first, scene, uncached)
        self._scatter.note(scatter)
        steps = self._bounds(me, begin, scene, marks)
        decodes = scene.decoding(first - 1)
        # Nobody ahead, nobody's place to wait for: it was computed from the first mark on, by itself.
        if steps.alone and steps.earliest > 0 and not scene.ended_between(begin, marks[1]):
            self.votes.note(uncached, steps.earliest, decodes, at_most=not certain)
            if decodes <= _LIGHT:
                self.cost.note(uncached, first - marks[steps.earliest])
        budgets = self.votes.plausible() or ([WHOLE] if steps.earliest <= 1 else [])
        places: set[int] = set()
        for budget in budgets:
            most = steps_of(uncached, budget, decodes)
            if steps.seen and certain:
                self._parallel += ((steps.earliest < most) - self._parallel) / _PARALLEL_MEMORY
                self._full += ((steps.earliest > most + 1) - self._full) / _PARALLEL_MEMORY
            spills = steps.shares and self._spills(scene, steps, budget - decodes - uncached)
            places |= self._places(steps, least=most if certain else 1, most=most, spills=spills)
        places = {place for place in places if 0 < place < len(marks)}
        if not places:
            return None
        chosen = sorted(places)[len(places) // 2]
        at = max(marks[chosen], begin)
        error = max(abs(marks[place] - at) for place in places)
        return Split(at - begin, first - at, error, Method.BOUNDARIES)

    def _bounds(self, me: Heard, begin: int, scene: Scene, marks: list[int]) -> _Steps:
        """Where there can have been a turn: after the arrival, and after the last one ahead."""
        earliest = arrived = _last_not_before(marks, begin)
        seen = marks[-1] <= begin
        shares = False
        ahead = scene.first_before_me(me, (marks[0] - marks[1]) // 3)
        place = None if ahead is None else _nearest_mark(marks, ahead)
        if place is not None and place < arrived:
            if place + 1 < len(marks):
                earliest, shares, seen = place + 1, True, True
            else:
                earliest = place
        return _Steps(
            marks,
            earliest,
            arrived,
            seen=seen,
            alone=seen and ahead is None,
            shares=shares,
            left=shares and scene.ended_near(marks[earliest - 1], (marks[earliest - 1] - marks[earliest]) // 3),
            late=earliest == arrived and marks[arrived] - begin < max(_NEAR_NS, 2 * self._scatter.value),
        )

    def _places(self, steps: _Steps, *, least: int, most: int, spills: bool) -> set[int]:
        """Marks at which the admission may have been, by how many steps back they are.

        `least` and `most`: the steps that the prompt fills; `spills`: the rest of the step before may have been its.
        """
        out = self._turns(steps, least=least, most=most, spills=spills)
        if steps.late and steps.earliest in out and steps.earliest > least:
            out.add(steps.earliest - 1)
        return out

    def _turns(self, steps: _Steps, *, least: int, most: int, spills: bool) -> set[int]:
        earliest = steps.earliest
        if not steps.seen:
            # Where it could have been first is not known; how many steps it took is.
            return set(range(least, most + 1)) | ({most + 1} if spills else set())
        if earliest < least:
            # Sooner than the steps allow: prompts are computed side by side, and it began before its turn.
            return {min(least, steps.arrived)}
        if earliest <= most:
            return {earliest} if self._parallel < _PARALLEL else {earliest, min(most + 1, steps.arrived)}
        if spills and earliest == most + 1:
            # The rest of the step before was ours, unless the engine was full then and had a place only after it.
            return {earliest, most} if steps.left and self._full >= _FULL else {earliest}
        return set(range(least, most + 1))

    @staticmethod
    def _spills(scene: Scene, steps: _Steps, room: int) -> bool:
        """Whether the step that finished the last one ahead may have been full, so that only a part was left for us.

        Had all that finished in it and we fitted into its budget, we would have been through with it.
        """
        joint = steps.marks[steps.earliest - 1]
        done = scene.prompts_done(joint, (joint - steps.marks[steps.earliest]) // 3)
        return done is None or done > room

    def _blind(self, me: Heard, begin: int, first: int, scene: Scene, uncached: int) -> Split | None:
        """No neighbour's tokens mark the steps: what such a prefill takes, held against the instants that are known.

        Others may have been computed in the same steps, which nobody can see. So it is believed only where the time
        that it says leads back to the arrival, or to the first token of the last one ahead.
        """
        if not self.cost.known or not self.cost.covers(uncached):
            return None
        takes = round(self.cost.predict(uncached))
        ahead = scene.first_before_me(me)
        known = [begin] if ahead is None else [begin, ahead]
        at = min(known, key=lambda instant: abs(first - takes - instant))
        error = max(abs(first - takes - at), round(takes * self.cost.error_share))
        return Split(at - begin, first - at, error, Method.REGRESSION)


def _last_not_before(marks: list[int], sent: int) -> int:
    """The largest index whose mark is not before `sent`; marks are newest first."""
    low, high = 0, len(marks)
    while low < high:
        middle = (low + high) // 2
        if marks[middle] >= sent:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _nearest_mark(marks: list[int], at: int) -> int | None:
    """The index of the mark at `at`, or `None` where there is none near."""
    index = _last_not_before(marks, at)
    best = None
    for place in (index, index + 1):
        if 0 <= place < len(marks) and (best is None or abs(marks[place] - at) < abs(marks[best] - at)):
            best = place
    if best is None:
        return None
    step = marks[best] - marks[best + 1] if best + 1 < len(marks) else marks[best - 1] - marks[best]
    return best if abs(marks[best] - at) * 3 <= abs(step) else None
