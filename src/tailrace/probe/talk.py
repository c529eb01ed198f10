"""A talk: one session under way, its history made of what the server really answered. Nothing of it is stored."""

from __future__ import annotations

from tailrace.probe.request import Message
from tailrace.workload.leave import Leave
from tailrace.workload.plan import PlannedRequest
from tailrace.workload.session import Turn


class Talk:
    """One session: which turn comes next, and what was said before it."""

    __slots__ = ("began_at", "history", "measured", "planned", "session_id", "tokens", "turn")

    def __init__(self, planned: PlannedRequest, session_id: str, *, measured: bool) -> None:
        self.planned = planned
        self.session_id = session_id
        self.measured = measured
        self.turn = 0
        self.history: list[Message] = []
        if planned.system:
            self.history.append({"role": "system", "content": planned.system})
        self.tokens = 0
        """Of the history, as the server counted or the plan says."""

    def said(self, text: str, answer: str, *, prompt_tokens: int, output_tokens: int) -> None:
        """A turn is over: its message and what was answered, as far as it came."""
        self.history.append({"role": "user", "content": text})
        self.history.append({"role": "assistant", "content": answer})
        self.tokens = prompt_tokens + output_tokens

    def next(self) -> Turn | None:
        """The next turn, or `None` when the session is over."""
        if self.turn >= len(self.planned.later):
            return None
        self.turn += 1
        return self.planned.later[self.turn - 1]

    @property
    def left(self) -> int:
        """Turns still to come."""
        return len(self.planned.later) - self.turn

    def as_planned(self, turn: Turn) -> PlannedRequest:
        """The turn as a request of its own; its prompt tokens are those of its message, without the history."""
        leave: Leave | None = turn.leave
        return self.planned._replace(
            at_ns=None,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.output_tokens,
            turn=self.turn,
            later=(),
            prefix=(),
            text=turn.text,
            system="",
            leave=leave,
        )
