"""Arrivals as a run file states them, and what its statement is in words and in options."""

from __future__ import annotations

from tailrace.store.run_file import Arrival
from tailrace.workload.arrivals import ArrivalKind, Arrivals

__all__ = ["arrival_of", "arrival_options", "arrival_words"]


def arrival_of(arrivals: Arrivals, seed: int) -> Arrival:
    """What the header of a run file says of its arrivals."""
    return Arrival(
        kind=arrivals.kind.value,
        rate=arrivals.rate,
        shape="" if arrivals.shape is None else str(arrivals.shape),
        burstiness=arrivals.burstiness if arrivals.kind is ArrivalKind.GAMMA else None,
        clients="" if arrivals.clients is None else str(arrivals.clients),
        concurrency=arrivals.concurrency,
        seed=seed,
    )


def arrival_words(arrival: Arrival) -> str:
    """All that makes one load another: `gamma 0.3 arrivals at 5/s, at most 8 in flight`, `closed loop of 8`."""
    if arrival.kind == "closed":
        of = f" of {arrival.concurrency}" if arrival.concurrency else ""
        return f"closed loop{of}" + (f", coming in as '{arrival.shape}'" if arrival.shape else "")
    rate = f" at {arrival.rate:g}/s" if arrival.rate is not None else ""
    if arrival.shape:
        rate = f" at '{arrival.shape}' requests/s"
    cap = "" if arrival.concurrency is None else f", at most {arrival.concurrency} in flight"
    return f"{_process(arrival)} arrivals{rate}{cap}"


def arrival_options(arrival: Arrival) -> str:
    """The options of `tailrace bench` that send this load again; whoever reads them knows which file was replayed."""
    if arrival.kind == "trace":
        return "--trace FILE"
    if arrival.kind == "closed" or not (arrival.shape or arrival.rate):
        return f"--concurrency '{arrival.shape}'" if arrival.shape else f"--concurrency {arrival.concurrency or 8}"
    out = []
    if " every " not in arrival.clients:  # which says the rate
        out.append(f"--rate '{arrival.shape}'" if arrival.shape else f"--rate {arrival.rate:g}")
    if _process(arrival) not in ("poisson", "unknown"):
        out.append(f"--arrival '{_process(arrival)}'")
    if arrival.concurrency:
        out.append(f"--concurrency {arrival.concurrency}")
    return " ".join(out)


def _process(arrival: Arrival) -> str:
    kind = arrival.kind if arrival.burstiness is None else f"{arrival.kind} {arrival.burstiness:g}"
    return f"{arrival.clients}, {kind}" if arrival.clients else kind
