"""How much is at work, in every unit in which it may be bounded, and whether one more fits."""

from __future__ import annotations

from typing import Final

import msgspec

ROOM_IN_PREFILL: Final = "prefill"
ROOM_TO_RUN: Final = "running"


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What one request takes, as it is predicted when it arrives."""

    prompt: int = 0
    """Tokens."""
    tokens: int = 0
    """Prompt and the output that is expected."""
    kv: int = 0
    """Prompt and the output at the high end of the prediction, of each sequence."""
    work: float = 1.0
    """For how long it holds its place, in output tokens; a prompt token is worth less than one."""
    least_work: float = 0.0
    """The same at the low end of the prediction."""
    known: int = 0
    """Finished requests that the prediction rests on; 0: it is a guess."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Bounds; `None` where there is none."""

    requests: int | None = None
    tokens: int | None = None
    kv: int | None = None
    prefill_requests: int | None = None
    prefill_tokens: int | None = None

    @property
    def in_prefill(self) -> bool:
        """Whether prefill is bounded at all."""
        return self.prefill_requests is not None or self.prefill_tokens is not None

    def divided(self, processes: int) -> Limits:
        """One process's part, where `processes` share them and no keeper counts: everything but `requests`."""
        if processes <= 1:
            return self
        return Limits(
            self.requests,
            *(
                None if value is None else max(1, value // processes)
                for value in (self.tokens, self.kv, self.prefill_requests, self.prefill_tokens)
            ),
        )


class Occupancy:
    """The running requests of one lane, or of all, added up."""

    __slots__ = ("kv", "prefill_requests", "prefill_tokens", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.kv = 0
        self.prefill_requests = 0
        self.prefill_tokens = 0

    def begin(self, demand: Demand) -> None:
        """It runs, and is in prefill."""
        self.requests += 1
        self.tokens += demand.tokens
        self.kv += demand.kv
        self.prefill_requests += 1
        self.prefill_tokens += demand.prompt

    def leave_prefill(self, demand: Demand) -> None:
        """Its first token has come."""
        self.prefill_requests -= 1
        self.prefill_tokens -= demand.prompt

    def end(self, demand: Demand, *, in_prefill: bool) -> None:
        """It runs no longer."""
        if in_prefill:
            self.prefill_requests -= 1
            self.prefill_tokens -= demand.prompt
        self.requests -= 1
        self.tokens -= demand.tokens
        self.kv -= demand.kv

    def lacks(self, limits: Limits, demand: Demand) -> str:
        """What there is no room of for one more: `running`, `prefill`, or nothing.

        Whoever would be alone always fits: a bound in tokens below a single request must not shut it out for ever.
        """
        if limits.requests is not None and self.requests >= limits.requests:
            return ROOM_TO_RUN
        if self.requests and (
            (limits.tokens is not None and self.tokens + demand.tokens > limits.tokens)
            or (limits.kv is not None and self.kv + demand.kv > limits.kv)
        ):
            return ROOM_TO_RUN
        if self.prefill_requests and (
            (limits.prefill_requests is not None and self.prefill_requests >= limits.prefill_requests)
            or (limits.prefill_tokens is not None and self.prefill_tokens + demand.prompt > limits.prefill_tokens)
        ):
            return ROOM_IN_PREFILL
        return ""
