"""How many processes a load asks for."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

from tailrace.model.errors import InputError
from tailrace.probe.spec import BenchSpec

AUTO: Final = 0
"""For `processes`: as many as the load asks for."""
EVENTS_PER_S: Final = 12_000
"""Token events that one process takes at less than half of its core, so that stamps do not queue."""
REQUESTS_PER_S: Final = 800
"""Requests that one process sends and reads likewise."""
STREAM_EVENTS_PER_S: Final = 50
"""What one stream is taken to send: a common rate of decoding. The real one is only known in the run."""
_UNKNOWN_TOKENS: Final = 200
"""Of an answer whose length the workload does not say."""
_LOOPBACK: Final = ("localhost", "127.", "[::1]", "::1")
_CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")


def cores() -> int:
    """Processors that this process may use: its affinity, and its control group's quota where there is one."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    try:
        quota, period = _CPU_MAX.read_text(encoding="ascii").split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count


def load_of(spec: BenchSpec) -> tuple[float, float]:
    """Token events and requests a second that the run would have, as far as its spec tells."""
    workload = spec.workload
    whole = sum(one.weight for one in workload.mix)
    if whole > 0:
        tokens = sum(one.output.mean() * one.weight for one in workload.mix) / whole
    elif workload.trace:
        tokens = sum(row.output_tokens for row in workload.trace) / len(workload.trace)
    else:
        tokens = float(_UNKNOWN_TOKENS)
    arrivals = workload.arrivals
    if arrivals.peak_rate is not None:
        requests = arrivals.peak_rate
    elif arrivals.concurrency is not None:
        requests = arrivals.concurrency * STREAM_EVENTS_PER_S / max(1.0, tokens)
        if not spec.stream:
            # An answer that comes whole takes as long as it takes; a tenth of a second is a fast one.
            requests = min(requests, arrivals.concurrency * 10.0)
    elif len(workload.trace) > 1:
        span = (workload.trace[-1].at_ns - workload.trace[0].at_ns) / 1e9
        requests = len(workload.trace) / span if span > 0 else float(len(workload.trace))
    else:
        requests = 1.0
    return (requests * tokens if spec.stream else 0.0), requests


def processes_for(spec: BenchSpec, asked: int = AUTO, *, available: int | None = None) -> int:
    """The number of processes: `asked`, or as many as the load asks for and this machine has processors for.

    A target on this machine keeps one processor. Never more than there are requests at once to share. InputError for
    a number below 1, or above what can be shared.
    """
    most = spec.workload.arrivals.concurrency
    if spec.requests is not None:
        most = min(most or spec.requests, spec.requests)
    if asked != AUTO:
        if asked < 1:
            raise InputError(f"must be at least 1, got {asked}", place="--processes")
        if most is not None and asked > most:
            raise InputError(
                f"{asked} processes cannot share {most} requests at once",
                place="--processes",
                remedy=f"Give at most {most}, or leave it out",
            )
        return asked
    events, requests = load_of(spec)
    wanted = math.ceil(events / EVENTS_PER_S + requests / REQUESTS_PER_S)
    room = cores() if available is None else available
    host = spec.url.partition("://")[2] or spec.url
    if host.startswith(_LOOPBACK):
        room -= 1
    return max(1, min(wanted, room, most or wanted))
