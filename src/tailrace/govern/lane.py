"""Lanes: which class a request belongs to, and the limits of that class. Plain data and pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Final

import msgspec

from tailrace.govern.adaptive_limit import AdaptiveLimitPolicy
from tailrace.govern.stream_guard import StreamGuard
from tailrace.model.thresholds import Budgets, Objectives

DEFAULT_LANE: Final = "default"


class Order(StrEnum):
    """Who is next within a lane."""

    FIRST_COME = "first_come"
    SHORTEST_FIRST = "shortest_first"
    """Least predicted work first: prompt and the output length that was learnt."""
    EARLIEST_DEADLINE = "earliest_deadline"
    """A request without a deadline of its own has that of the lane's total budget."""


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What admission may know about a request before any work is done."""

    request_id: str
    prompt_tokens: int = 0
    """Tokenizer's count or an estimate."""
    max_tokens: int | None = None
    """The output that was asked for; `None`: no bound."""
    sequences: int = 1
    """Answers at once (`n`, `best_of`, beams): each has its output, and its place in the KV cache."""
    audio_seconds: float | None = None
    stream: bool = True
    model: str = ""
    tenant: str = ""
    """Who pays: places are shared between tenants by tokens."""
    key: str = ""
    """The name of the API key, never the key."""
    asked_lane: str = ""
    """The lane that the request names and may name, or that was decided already; it comes before every match."""
    path: str = ""
    headers: Mapping[str, str] = {}
    """Lower-case names."""
    deadline_ns: int | None = None
    """Absolute, on the clock of `now`."""


class LaneMatch(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Conditions that must all hold; an empty match takes everything. `model` and `path` may end with `*`."""

    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    stream: bool | None = None
    header: dict[str, str] = {}
    """Header name -> exact value."""
    model: str | None = None
    tenant: str | None = None
    path: str | None = None
    key: str | None = None
    """The name of an API key, as `keys` has it."""
    min_output_tokens: int | None = None
    """Of the output that was asked for. A request that asks for no bound meets this, and no `max_output_tokens`."""
    max_output_tokens: int | None = None
    min_audio_seconds: float | None = None
    """A request without audio, or with audio of unknown length, meets neither bound."""
    max_audio_seconds: float | None = None

    def accepts(self, facts: RequestFacts) -> bool:
        """Whether `facts` meet every condition."""
        return all(test(facts) for test in self.tests())

    def tests(self) -> list[Test]:
        """One test for each condition that is set, the cheapest first."""
        return [
            *_between("prompt_tokens", self.min_prompt_tokens, self.max_prompt_tokens),
            *(
                _equal(field, value)
                for field in ("stream", "tenant", "key")
                if (value := getattr(self, field)) is not None
            ),
            *(_like(field, value) for field in ("path", "model") if (value := getattr(self, field)) is not None),
            *_between("max_tokens", self.min_output_tokens, self.max_output_tokens, unbounded=True),
            *_between("audio_seconds", self.min_audio_seconds, self.max_audio_seconds),
            *(_header(name, value) for name, value in self.header.items()),
        ]


Test = Callable[[RequestFacts], bool]
"""Whether a request meets one condition."""


def _between(field: str, low: float | None, high: float | None, *, unbounded: bool = False) -> Iterator[Test]:
    """`unbounded`: where the request says nothing, it is more than any bound; else it is within none."""
    read = attrgetter(field)
    if low is not None:
        yield lambda facts: unbounded if (value := read(facts)) is None else bool(value >= low)
    if high is not None:
        yield lambda facts: (value := read(facts)) is not None and bool(value <= high)


def _equal(field: str, value: object) -> Test:
    read = attrgetter(field)
    return lambda facts: bool(read(facts) == value)


def _like(field: str, pattern: str) -> Test:
    read = attrgetter(field)
    if pattern.endswith("*"):
        start = pattern[:-1]
        return lambda facts: bool(read(facts).startswith(start))
    return _equal(field, pattern)


def _header(name: str, value: str) -> Test:
    name = name.lower()  # as `facts` has them: `X-Size` is the same header
    return lambda facts: facts.headers.get(name) == value


class LanePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. `running` and its kind bound what the engine sees, `queued` and its kind bound what waits here.

    A bound in tokens never shuts out a single request that is larger than it: it then runs, or waits, alone.
    """

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
    running_tokens: int | None = None
    """Prompt and predicted output of all that run."""
    running_kv_tokens: int | None = None
    """What they may come to hold in the KV cache: prompt and, of each sequence, the predicted output's high end."""
    queued_tokens: int | None = None
    """Prompt and predicted output of all that wait."""
    prefill_requests: int | None = None
    """Requests of the lane whose first token has not come."""
    prefill_tokens: int | None = None
    """Their prompts."""
    prefill_order: Order | None = None
    """Who is next when it is a place in prefill that became free; `None`: `order`."""
    patience_ns: int | None = None
    """How long anybody may be overtaken: then every second place is for the one that came first. `None`: half of the
    queue budget."""
    weight: float = 1.0
    """The lane's part of a total limit under weighted sharing."""
    backends: tuple[str, ...] = ()
    """Names of the backends that may serve it; empty: all."""
    adaptive: AdaptiveLimitPolicy | None = None
    """Bounds and aims of a running limit that moves below `running`; `None`: it stands still."""

    @property
    def longest_overtaken_ns(self) -> int:
        """`patience_ns`, with its default."""
        return self.budgets.queue_ns // 2 if self.patience_ns is None else self.patience_ns

    guard: StreamGuard | None = None
    """What it demands of its streams beside the budgets."""


class Classifier:
    """Lanes in their order, with the conditions that each sets laid out: most lanes set one or two of a dozen."""

    def __init__(self, policies: Sequence[LanePolicy]) -> None:
        self._named = {policy.name: policy for policy in policies}
        self._lanes = [(policy, policy.match.tests()) for policy in policies]
        self._default = self._named.get(DEFAULT_LANE, _FALLBACK)

    def lane(self, facts: RequestFacts) -> LanePolicy:
        """The lane that the request may name, else the first whose match accepts `facts`.

        Where none does, the lane named `default` or a built-in one.
        """
        if facts.asked_lane:
            asked = self._named.get(facts.asked_lane)
            if asked is not None:
                return asked
        for policy, tests in self._lanes:
            for test in tests:
                if not test(facts):
                    break
            else:
                return policy
        return self._default


def classify(policies: Sequence[LanePolicy], facts: RequestFacts) -> LanePolicy:
    """The lane of one request, where there is no `Classifier` at hand."""
    return Classifier(policies).lane(facts)


_FALLBACK: Final = LanePolicy()
