"""Plans: the sequence of requests that a workload and a seed stand for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from tailrace.workload.arrivals import ArrivalKind, Arrivals, senders
from tailrace.workload.clients import drawers
from tailrace.workload.mix import TrafficClass, draws
from tailrace.workload.trace import TraceRow

TRACE_CLASS = "trace"


class PlannedRequest(NamedTuple):
    """Request `number` (from 0). `at_ns` is its intended send time from the start, `None` in a closed loop."""

    number: int
    at_ns: int | None
    name: str
    """Its class."""
    prompt_tokens: int
    output_tokens: int
    client: int | None = None
    """Which of the arrivals' clients sends it; `None` where there are no clients."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Arrivals with the mix, or the recorded rows, that they carry."""

    arrivals: Arrivals
    mix: list[TrafficClass] = []
    trace: list[TraceRow] = []
    """Rows of a recorded trace. With `trace` arrivals they are played at their own times; otherwise their lengths
    are taken in order (and again from the beginning) at the times of the arrivals."""


class Generators(NamedTuple):
    """Independent sources of randomness, so that a change of one kind of draw leaves the others alone."""

    arrivals: np.random.Generator
    lengths: np.random.Generator


def generators(seed: int, phase: int = 0) -> Generators:
    """The generators of one phase (0 the measured one, 1 the warm-up) of a run with this seed."""
    first, second = np.random.SeedSequence([seed, phase]).spawn(2)
    return Generators(np.random.default_rng(first), np.random.default_rng(second))


def plan(workload: Workload, rng: Generators) -> Iterator[PlannedRequest]:
    """The requests in order; endless, except for a trace played at its own times and a rate that comes to rest."""
    arrivals, rows = workload.arrivals, workload.trace
    if arrivals.kind is ArrivalKind.TRACE:
        for i, row in enumerate(rows):
            yield PlannedRequest(i, row.at_ns, TRACE_CLASS, row.prompt_tokens, row.output_tokens)
        return
    times = senders(arrivals, rng.arrivals) if arrivals.open_loop else None
    clients = arrivals.clients
    own = None if clients is None or clients.own_mix is None or rows else drawers(clients, workload.mix, rng.lengths)
    lengths = None if rows or own is not None else draws(workload.mix, rng.lengths)
    for number in itertools.count():
        at, client = (None, None) if times is None else next(times, (None, None))
        if times is not None and at is None:
            return
        who = None if clients is None else client
        if rows:
            row = rows[number % len(rows)]
            yield PlannedRequest(number, at, TRACE_CLASS, row.prompt_tokens, row.output_tokens, who)
        else:
            drawn = next(own[client or 0] if own is not None else lengths or iter(()))
            yield PlannedRequest(number, at, drawn.name, drawn.prompt_tokens, drawn.output_tokens, who)


def part(requests: Iterator[PlannedRequest], index: int, count: int) -> Iterator[PlannedRequest]:
    """Every `count`-th request from `index` on: the share of one of several load generators.

    The shares of all of them together are the plan, each request exactly once.
    """
    return islice(requests, index, None, count)
