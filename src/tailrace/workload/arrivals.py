"""Arrivals: when requests are meant to be sent, as offsets from the start of a run.

An open loop follows an absolute schedule that no answer can delay: a request that had to be sent late is late
against its own time, and the next one is not pushed back. The schedule is never rescaled to hit a total, which
would shrink the variance of a Poisson count. A closed loop has no schedule: each worker sends when its last
answer has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import StrEnum

import msgspec
import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.thresholds import S

_BLOCK = 1024
"""Draws a block. Fixed, so that the schedule does not depend on how much of it is consumed at a time."""


class ArrivalKind(StrEnum):
    """The name says what it does: `constant` is evenly spaced, `poisson` has exponential gaps."""

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    TRACE = "trace"


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """How requests arrive.

    `rate` is requests a second (open loop). `burstiness` is the shape of the gamma distribution of the gaps:
    1 is Poisson, below 1 burstier (coefficient of variation 1/sqrt(burstiness)), above 1 more regular.
    `concurrency` is the number of workers of a closed loop; in an open loop it caps the requests in flight (a
    request that waits for a slot keeps its intended time).
    """

    kind: ArrivalKind = ArrivalKind.CLOSED
    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        """Refuse a description that means nothing."""
        open_loop = self.kind not in (ArrivalKind.CLOSED, ArrivalKind.TRACE)
        if open_loop and not (self.rate is not None and 0 < self.rate < float("inf")):
            raise InputError("an open loop needs a rate above 0", place="--rate", remedy="For example --rate 5")
        if self.kind is ArrivalKind.CLOSED and self.concurrency is None:
            raise InputError("a closed loop needs a number of workers", place="--concurrency")
        if self.concurrency is not None and self.concurrency < 1:
            raise InputError(f"must be at least 1, got {self.concurrency}", place="--concurrency")
        if not 0 < self.burstiness < float("inf"):
            raise InputError(f"must be above 0, got {self.burstiness:g}", place="--burstiness")

    @property
    def open_loop(self) -> bool:
        """Whether there is a schedule that answers cannot delay."""
        return self.kind is not ArrivalKind.CLOSED


def offsets(arrivals: Arrivals, rng: np.random.Generator) -> Iterator[int]:
    """Endless intended send times of an open loop (ns from the start, non-decreasing).

    A constant schedule starts at 0 and is exact: request `i` at `i / rate`, without accumulated rounding. The
    random ones start after their first gap, so that a count over any window has the distribution it should have.
    """
    rate = arrivals.rate
    if rate is None:
        raise InputError(f"{arrivals.kind} arrivals have no rate", place="--rate")
    if arrivals.kind is ArrivalKind.CONSTANT:
        yield from (round(i * S / rate) for i in itertools.count())
    shape = arrivals.burstiness if arrivals.kind is ArrivalKind.GAMMA else 1.0
    start = 0.0
    while True:
        gaps = rng.standard_exponential(_BLOCK) if shape == 1.0 else rng.standard_gamma(shape, _BLOCK) / shape
        times = start + np.cumsum(gaps) / rate
        start = float(times[-1])
        yield from (times * S).astype(np.int64).tolist()
