"""Clients of a simulated gateway: what they ask for, how long they wait, and what they do when they are refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from tailrace.model.thresholds import S
from tailrace.workload.plan import PlannedRequest
from tailrace.workload.trace import TraceRow

_OBEYED_UP_TO_S: Final = 60
"""The OpenAI SDK waits as long as Retry-After says, up to a minute; a longer one it takes for no advice."""
_BACKOFF_NS: Final = S // 2
_BACKOFF_CAP_NS: Final = 8 * S


class ClientPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How one class of clients behaves. Durations in ns, from the send of each try; `None` waits for ever.

    `first_token_ns` and `total_ns` are the client's own timeouts, of which the server knows nothing: the client closes
    its connection. `deadline_ns` is told to the gateway (`x-deadline-ms`), which may then refuse or stop in time.
    """

    first_token_ns: int | None = None
    total_ns: int | None = None
    deadline_ns: int | None = None
    retries: int = 0
    """Further tries after a refusal (429, 503)."""
    obeys_retry_after: bool = True
    """Waits as long as the answer says. Otherwise, and where it says nothing: exponential backoff with jitter."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants: one answer, over as many tries as its policy allows."""

    name: str
    """The id of its record; later tries append `.1`, `.2`."""
    at_ns: int
    """When it is first sent."""
    prompt_tokens: int
    output_tokens: int
    """How long the answer will be. The gateway does not know it."""
    kind: str = ""
    """Its class of traffic: the key of its client's policy."""
    max_tokens: int | None = None
    """What the request allows; unset as most chat clients leave it."""
    stream: bool = True
    tenant: str = ""
    headers: Mapping[str, str] = {}
    prefix: tuple[int, ...] = ()
    prefix_tokens: int = 16


def backoff_ns(policy: ClientPolicy, tries: int, retry_after_s: int | None, rng: np.random.Generator) -> int:
    """How long a client waits after its `tries`-th refusal (from 1), as the OpenAI SDK does.

    Retry-After as it is, up to 60 s; else min(0.5 s * 2^(tries - 1), 8 s), of which up to a quarter is left out by
    chance.
    """
    if policy.obeys_retry_after and retry_after_s is not None and 0 < retry_after_s <= _OBEYED_UP_TO_S:
        return retry_after_s * S
    longest = min(_BACKOFF_NS << min(tries - 1, 10), _BACKOFF_CAP_NS)
    return round(longest * (1 - 0.25 * rng.random()))


def calls_from_plan(
    requests: Iterable[PlannedRequest], *, max_model_len: int | None = None, max_tokens: int | None = None
) -> Iterator[Call]:
    """Planned requests of an open loop as calls. Answers are cut where prompt and answer exceed the model.

    `max_tokens` is what every request allows; an answer is not longer.
    """
    for planned in requests:
        if planned.at_ns is None:
            raise ValueError("a closed loop has no arrivals to simulate")
        output = planned.output_tokens if max_tokens is None else min(planned.output_tokens, max_tokens)
        if max_model_len is not None:
            output = max(1, min(output, max_model_len - planned.prompt_tokens))
        yield Call(
            name=f"sim-{planned.number:07d}",
            at_ns=planned.at_ns,
            prompt_tokens=planned.prompt_tokens,
            output_tokens=output,
            kind=planned.name,
            max_tokens=max_tokens,
        )


def calls_from_trace(rows: Iterable[TraceRow], *, prefix_tokens: int) -> Iterator[Call]:
    """Rows of a recorded trace at their own times, as calls; `prefix_tokens` is how much prompt one hash stands for."""
    for number, row in enumerate(rows):
        yield Call(
            name=f"trace-{number:07d}",
            at_ns=row.at_ns,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            kind="trace",
            prefix=row.blocks,
            prefix_tokens=prefix_tokens,
        )
