"""When a request's time is over: its budgets as instants, asked by the one sweeper.

Knows the stamps of one request and nothing of sockets: it says which budget is over, and the exchange acts on it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.gateway.verdict import Phase
from tailrace.govern.stream_guard import Breach, StreamWatch
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import Budgets

NEVER: Final = 1 << 62


class Overrun(NamedTuple):
    """A budget that is over."""

    outcome: OutcomeKind
    reason: Reason
    budget: str
    """Its name in the configuration, or `deadline`."""


DEADLINE: Final = Overrun(OutcomeKind.CANCELLED, Reason.DEADLINE, "deadline")
_TOTAL: Final = Overrun(OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT, "total")
_UNSTREAMED: Final = Overrun(OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT, "unstreamed_total")
_QUEUE: Final = Overrun(OutcomeKind.TIMED_OUT, Reason.QUEUE_TIMEOUT, "queue")
_FIRST_TOKEN: Final = Overrun(OutcomeKind.TIMED_OUT, Reason.FIRST_TOKEN_TIMEOUT, "first_token")
_IDLE: Final = Overrun(OutcomeKind.TIMED_OUT, Reason.IDLE_TIMEOUT, "idle")
_BREACHES: Final = {
    Breach.GAP: Overrun(OutcomeKind.TIMED_OUT, Reason.GAP_LIMIT, "gap"),
    Breach.PACE: Overrun(OutcomeKind.TIMED_OUT, Reason.SLOW_STREAM, "pace"),
}


class BudgetClock:
    """The budgets of one request. All stamps are our monotonic clock (ns)."""

    __slots__ = (
        "begun",
        "budgets",
        "connect_by",
        "deadline_at",
        "received",
        "sent_at",
        "streamed",
        "timed_only",
        "unblocked_at",
        "watch",
    )

    def __init__(self, received: int, budgets: Budgets) -> None:
        self.received = received
        self.begun = received
        """From when the total counts: the end of a body that went upstream as it came, whose time is the client's."""
        self.budgets = budgets
        self.deadline_at: int | None = None
        """The client's own deadline, which only shortens."""
        self.connect_by = NEVER
        """While it waits for a connection: when its queue budget is over."""
        self.sent_at: int | None = None
        self.unblocked_at = 0
        """When the client last took everything: silence in which it held us up is not the engine's."""
        self.streamed = False
        self.timed_only = False
        """Relayed without being read: it may be an event stream for all we know."""
        self.watch: StreamWatch | None = None
        """What its lane demands of its stream beside the budgets."""

    @property
    def in_one_piece(self) -> bool:
        """The answer comes as one body: it has a total budget of its own."""
        return not self.streamed and not self.timed_only

    def total_at(self) -> int:
        """When the request is over, whatever it does."""
        budget = self.budgets.unstreamed_total_ns if self.in_one_piece else self.budgets.total_ns
        at = self.begun + budget
        return at if self.deadline_at is None else min(at, self.deadline_at)

    def _first_token_at(self) -> int:
        return NEVER if not self.streamed or self.sent_at is None else self.sent_at + self.budgets.first_token_ns

    def _idle_at(self, meter: StreamMeter | None) -> int:
        if meter is None or meter.last_progress_ns is None:
            return NEVER
        return max(meter.last_progress_ns, self.unblocked_at) + self.budgets.idle_ns

    def next_check(self, phase: Phase, meter: StreamMeter | None, hold_until: int) -> int:
        """The earliest instant at which a budget may be over, or the hold of the head (`NEVER`: none is held)."""
        at = min(self.total_at(), hold_until)
        if phase is Phase.WAITING:
            at = min(at, self._first_token_at())
        elif phase is Phase.STREAMING:
            at = min(at, self._idle_at(meter))
            if self.watch is not None and meter is not None:
                at = min(at, self.watch.due(meter, self.unblocked_at))
        elif phase is Phase.CONNECTING:
            at = min(at, self.connect_by)
        return at

    def over(self, phase: Phase, meter: StreamMeter | None, now: int, *, blocked: bool) -> Overrun | None:
        """The budget that is over at `now`, if any. While the client blocks, the engine is not called idle."""
        if now >= self.total_at():
            if self._past_deadline(now):
                return DEADLINE
            return _UNSTREAMED if self.in_one_piece else _TOTAL
        if phase is Phase.WAITING and now >= self._first_token_at():
            return _FIRST_TOKEN
        if phase is Phase.STREAMING:
            return self._in_stream(meter, now, blocked=blocked)
        if phase is Phase.CONNECTING and now >= self.connect_by:
            return _QUEUE
        return None

    def _in_stream(self, meter: StreamMeter | None, now: int, *, blocked: bool) -> Overrun | None:
        if not blocked and now >= self._idle_at(meter):
            return _IDLE
        if self.watch is None or meter is None or meter.finish_reason or meter.done:
            return None  # nothing is demanded, or all text is out and what is still to come is counts
        breach = self.watch.look(meter, now, self.unblocked_at, blocked=blocked)
        return None if breach is None else _BREACHES[breach]

    def deadline_over(self, now: int) -> Overrun | None:
        """Whether the client's deadline has passed before anything was done for it."""
        return DEADLINE if self._past_deadline(now) else None

    def queue_over(self, now: int, queued: int | None = None) -> Overrun:
        """Which of the two ended the wait in the lane, begun at `queued`: the queue budget, or the client's deadline.

        Within the budget it was the deadline, which could no longer be met.
        """
        early = self.deadline_at is not None and queued is not None and now < queued + self.budgets.queue_ns
        return DEADLINE if early or self._past_deadline(now) else _QUEUE

    def sentence(self, over: Overrun, stage: str) -> str:
        """What a person is told: which budget, how long it was, and in which stage it ran out."""
        if over.budget == "pace" and self.watch is not None:
            guard = self.watch.guard
            demand = f"{guard.tokens_per_s:g} tokens/s over {guard.window_ns / 1e9:g} s"
            return f"the stream brought fewer than the {demand} that its lane demands, in stage {stage}"
        return f"the {over.budget} budget of {self.length_ns(over.budget) / 1e9:g} s is over in stage {stage}"

    def length_ns(self, budget: str) -> int:
        """How long a budget was."""
        if budget == "deadline":
            return (self.deadline_at or 0) - self.received
        if budget == "gap" and self.watch is not None:
            return self.watch.guard.gap_ns or 0
        value: int = getattr(self.budgets, f"{budget}_ns")
        return value

    def _past_deadline(self, now: int) -> bool:
        return self.deadline_at is not None and now >= self.deadline_at
