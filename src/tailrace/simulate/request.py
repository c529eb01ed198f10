"""A request inside the simulated engine: what it asks for, and what the engine knows about it."""

from __future__ import annotations

from enum import IntEnum

from tailrace.simulate.blocks import Unit


class State(IntEnum):
    """Where a request is."""

    NEW = 0
    WAITING = 1
    PREFILL = 2
    DECODE = 3
    FINISHED = 4
    ABORTED = 5
    REFUSED = 6
    """It exceeds the model's length or the whole KV cache."""


class SimRequest:
    """One request. Times are integer picoseconds on the simulation's clock.

    `prompt` and `output` are token counts; the engine generates exactly `output` tokens. `prefix` are chained hashes
    of consecutive stretches of `prefix_tokens` prompt tokens each: equal hashes mean an equal prompt up to there.
    `abort_at` is when the client leaves, if it does.
    """

    __slots__ = (
        "abort_at",
        "arrival",
        "base",
        "cached",
        "computed",
        "ended_at",
        "finish_at",
        "first_at",
        "first_step",
        "generated",
        "kv_at_arrival",
        "kv_at_first",
        "label",
        "max_tokens",
        "order",
        "output",
        "owns",
        "preemptions",
        "prefix",
        "prefix_tokens",
        "priority",
        "private_from",
        "prompt",
        "received",
        "run_at",
        "run_count",
        "run_from",
        "run_full",
        "running_at_arrival",
        "running_at_first",
        "scheduled_at",
        "seq",
        "spans",
        "state",
        "tag",
        "target",
        "units",
        "waiting_at_arrival",
        "waiting_at_first",
    )

    def __init__(  # noqa: PLR0915  (one line a field)
        self,
        label: str,
        prompt: int,
        output: int,
        arrival: int,
        *,
        priority: int = 0,
        prefix: tuple[int, ...] = (),
        prefix_tokens: int = 16,
        abort_at: int | None = None,
        max_tokens: int | None = None,
        tag: object = None,
    ) -> None:
        self.label = label
        self.prompt = prompt
        self.output = output
        self.arrival = arrival
        self.priority = priority
        self.prefix = prefix
        self.prefix_tokens = prefix_tokens
        self.abort_at = abort_at
        self.max_tokens = max_tokens
        self.tag = tag
        """The caller's own: a traffic class, a connection."""
        self.received = arrival
        """When a gateway before the engine received it; the engine's own arrival where there is none."""
        self.state = State.NEW
        self.order = 0
        """Position in the order of arrivals."""
        self.seq = 0
        """Position in the order of admissions; the running list is in this order."""
        self.computed = 0
        """Tokens whose KV is computed; while decoding it is `engine.step + base` instead."""
        self.target = prompt
        """Tokens to compute before the next token comes out: the prompt, and on resume what was generated."""
        self.generated = 0
        """Output tokens so far; while decoding it is `computed - prompt + 1` instead."""
        self.base = 0
        self.finish_at = 0
        """Count of steps after which the last token is out."""
        self.scheduled_at: int | None = None
        self.first_at: int | None = None
        self.ended_at = 0
        self.first_step = 0
        self.run_from = 0
        """Count of steps after which the first token of the present span came out."""
        self.spans: list[tuple[int, int]] = []
        """Closed spans of steps that each brought a token: (first, last), inclusive."""
        self.cached: int | None = None
        """Prompt tokens hit in the prefix cache at first admission."""
        self.preemptions = 0
        self.units: list[Unit] = []
        self.owns: list[tuple[Unit, int]] = []
        """Units that this request computes, each with the number of blocks before it."""
        self.private_from = 0
        """Blocks that belong to units; those after it are the request's own."""
        self.run_at = 0
        """The run that its own blocks left in the free queue when it was preempted: position, blocks, hashed ones."""
        self.run_count = 0
        self.run_full = 0
        self.running_at_arrival = 0
        self.waiting_at_arrival = 0
        self.kv_at_arrival = 0.0
        self.running_at_first = 0
        self.waiting_at_first = 0
        self.kv_at_first = 0.0

    def __repr__(self) -> str:
        return f"SimRequest({self.label!r}, {self.prompt}+{self.output} tokens, {State(self.state).name.lower()})"
