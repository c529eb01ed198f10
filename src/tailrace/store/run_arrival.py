"""Arrivals as a run file states them."""

from __future__ import annotations

from tailrace.store.run_file import Arrival
from tailrace.workload.arrivals import Arrivals

__all__ = ["arrival_of"]


def arrival_of(arrivals: Arrivals, seed: int) -> Arrival:
    """What the header of a run file says of its arrivals."""
    return Arrival(
        kind=arrivals.kind.value,
        rate=arrivals.rate,
        shape="" if arrivals.shape is None else str(arrivals.shape),
        clients="" if arrivals.clients is None else str(arrivals.clients),
        concurrency=arrivals.concurrency,
        seed=seed,
    )
