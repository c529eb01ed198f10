"""Lanes: which class a request belongs to, and the limits of that class. Plain data and one pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tailrace.model.thresholds import Budgets, Objectives

DEFAULT_LANE: Final = "default"


class Order(StrEnum):
    """Who is next within a lane."""

    FIRST_COME = "first_come"
    SHORTEST_FIRST = "shortest_first"
    """Least predicted work first; nobody waits longer than half the queue budget for it."""
    EARLIEST_DEADLINE = "earliest_deadline"


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What admission may know about a request before any work is done."""

    request_id: str
    prompt_tokens: int = 0
    """Tokenizer's count or an estimate."""
    max_tokens: int | None = None
    stream: bool = True
    model: str = ""
    tenant: str = ""
    path: str = ""
    lane: str = ""
    """Decided already: no match is asked. A shortened prompt stays in the lane whose limit it was shortened to."""
    headers: Mapping[str, str] = {}
    """Lower-case names."""
    deadline_ns: int | None = None
    """Absolute, on the clock of `now`."""


class LaneMatch(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Conditions that must all hold; an empty match takes everything."""

    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    stream: bool | None = None
    header: dict[str, str] = {}
    """Lower-case header name -> exact value."""
    model: str | None = None
    tenant: str | None = None
    path: str | None = None

    def accepts(self, facts: RequestFacts) -> bool:
        """Whether `facts` meet every condition."""
        low, high = self.min_prompt_tokens, self.max_prompt_tokens
        return (
            (low is None or facts.prompt_tokens >= low)
            and (high is None or facts.prompt_tokens <= high)
            and (self.stream is None or facts.stream is self.stream)
            and (self.model is None or facts.model == self.model)
            and (self.tenant is None or facts.tenant == self.tenant)
            and (self.path is None or facts.path == self.path)
            and all(facts.headers.get(name) == value for name, value in self.header.items())
        )


class LanePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. `running` bounds what the engine sees, `queued` bounds what waits here."""

    name: str = DEFAULT_LANE
    match: LaneMatch = LaneMatch()
    running: int = 256
    """vLLM's smallest default `max_num_seqs` on a GPU: the gateway does not throttle an engine below its own limit."""
    queued: int = 1024
    order: Order = Order.FIRST_COME
    priority: int = 0
    """Lower goes first when lanes share a total limit."""
    budgets: Budgets = Budgets()
    objectives: Objectives = msgspec.field(default_factory=Objectives)


def classify(policies: Sequence[LanePolicy], facts: RequestFacts) -> LanePolicy:
    """The first lane whose match accepts `facts`; where none does, the lane named `default` or a built-in one."""
    for policy in policies:
        if policy.name == facts.lane if facts.lane else policy.match.accepts(facts):
            return policy
    for policy in policies:
        if policy.name == DEFAULT_LANE:
            return policy
    return _FALLBACK


_FALLBACK: Final = LanePolicy()
