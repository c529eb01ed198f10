"""Arrivals: when requests are meant to be sent, as offsets from the start of a run.

An open loop follows an absolute schedule that no answer can delay: a request that had to be sent late is late
against its own time, and the next one is not pushed back. The schedule is never rescaled to hit a total, which
would shrink the variance of a Poisson count. A closed loop has no schedule: each worker sends when its last
answer has ended.

A rate that changes with time is a `Shape`. The process keeps its kind: it is drawn at rate 1 and its time is stretched
(`shape.Clock`), so that constant arrivals are exact and Poisson counts are Poisson over any window of a ramp.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.workload.clients import Clients, superpose
from tailrace.workload.process import ArrivalKind, Process
from tailrace.workload.shape import LEAST, MOST, Shape, number_text
from tailrace.workload.shape_clock import Clock, reached_ns, rises

__all__ = ["ArrivalKind", "Arrivals", "offsets", "senders", "worker_starts"]

LEAST_BURSTINESS: Final = 0.001
MOST_BURSTINESS: Final = 1e6
"""Beyond these, gaps are all 0 or all the same in the arithmetic, and the rate is no longer kept."""
_BLOCK: Final = 1024
"""Draws a block. Fixed, so that the schedule does not depend on how much of it is consumed at a time."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """How requests arrive.

    `rate` is requests a second (open loop); where it changes with time it is `None` and `shape` says it. `burstiness`
    is the shape of the gamma distribution of the gaps: 1 is Poisson, below 1 burstier (coefficient of variation
    1/sqrt(burstiness)), above 1 more regular. `clients` share the rate, each with a process of its own of this kind.
    `concurrency` is the number of workers of a closed loop, who come in as `shape` says, if there is one; in an open
    loop it caps the requests in flight (a request that waits for a slot keeps its intended time).
    """

    kind: ArrivalKind = ArrivalKind.CLOSED
    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    shape: Shape | None = None
    clients: Clients | None = None

    def __post_init__(self) -> None:
        """Refuse a description that means nothing."""
        timed = self.kind not in (ArrivalKind.CLOSED, ArrivalKind.TRACE)
        if timed and self.shape is None and not (self.rate is not None and 0 < self.rate < float("inf")):
            raise InputError("an open loop needs a rate above 0", place="--rate", remedy="For example --rate 5")
        if self.rate is not None and not LEAST <= self.rate <= MOST:
            raise InputError(f"the rate {self.rate:g} is not between {LEAST:g} and {MOST:g}", place="--rate")
        if timed and self.shape is not None and self.rate is not None:
            raise InputError("the rate is given twice", place="--rate")
        if self.kind is ArrivalKind.CLOSED:
            self._check_workers()
        elif not timed and (self.shape is not None or self.clients is not None):
            raise InputError("a trace played at its own times has no rate", place="--rate")
        if self.concurrency is not None and self.concurrency < 1:
            raise InputError(f"must be at least 1, got {self.concurrency}", place="--concurrency")
        if not LEAST_BURSTINESS <= self.burstiness <= MOST_BURSTINESS:
            raise InputError(
                f"must be between {LEAST_BURSTINESS:g} and {MOST_BURSTINESS:g}, got {self.burstiness:g}",
                place="--burstiness",
                remedy="1 is Poisson, below 1 burstier, above more regular",
            )

    def _check_workers(self) -> None:
        if self.concurrency is None:
            raise InputError("a closed loop needs a number of workers", place="--concurrency")
        if self.clients is not None:
            raise InputError("clients have a rate, a closed loop has none", place="--arrival", remedy="Add --rate 5")
        if self.shape is not None and not rises(self.shape):
            raise InputError(
                f"workers can come in, not leave: '{self.shape}' falls", place="--concurrency",
                remedy="Write '1..32 over 60s' or '4 for 30s, 16'",
            )  # fmt: skip
        if self.shape is not None and round(self.shape.peak) != self.concurrency:
            raise InputError(f"{self.concurrency} workers are not the most of '{self.shape}'", place="--concurrency")

    @property
    def open_loop(self) -> bool:
        """Whether there is a schedule that answers cannot delay."""
        return self.kind is not ArrivalKind.CLOSED

    @property
    def peak_rate(self) -> float | None:
        """The highest rate of an open loop with a rate; `None` for a closed loop or a trace."""
        if not self.open_loop:
            return None
        return self.rate if self.shape is None else self.shape.peak

    @property
    def gap_shape(self) -> float:
        """The shape of the gamma distribution of gaps: infinite for constant arrivals, 1 for Poisson."""
        if self.kind is ArrivalKind.CONSTANT:
            return math.inf
        return self.burstiness if self.kind is ArrivalKind.GAMMA else 1.0

    @property
    def rate_text(self) -> str:
        """The rate as `--rate` reads it; empty where there is none."""
        if not self.open_loop:
            return ""
        if self.shape is not None:
            return str(self.shape)
        return "" if self.rate is None else number_text(self.rate)

    @property
    def process(self) -> Process:
        """What `--arrival` says: the kind of process, and who sends."""
        return Process(self.kind, self.burstiness, self.clients)

    def __str__(self) -> str:
        """What a person reads: `poisson arrivals at 5/s`, `closed loop of 8`."""
        if self.kind is ArrivalKind.TRACE:
            return "a recorded trace at its own times"
        if self.kind is ArrivalKind.CLOSED:
            coming = f", coming in as '{self.shape}'" if self.shape is not None else ""
            return f"closed loop of {self.concurrency}{coming}"
        rate = f"{self.rate_text}/s" if self.shape is None else f"'{self.shape}' requests/s"
        cap = f", at most {self.concurrency} in flight" if self.concurrency else ""
        return f"{self.process} arrivals at {rate}{cap}"


def worker_starts(arrivals: Arrivals) -> list[int]:
    """When each worker of a closed loop begins (ns from the start), in the order of their numbers."""
    count, shape = arrivals.concurrency or 0, arrivals.shape
    if shape is None:
        return [0] * count
    return [reached_ns(shape, min(number, shape.peak)) or 0 for number in range(1, count + 1)]


# -- the schedule


def offsets(arrivals: Arrivals, rng: np.random.Generator) -> Iterator[int]:
    """Intended send times of an open loop (ns from the start, non-decreasing); endless, unless the rate comes to rest.

    A constant schedule starts at 0 and is exact: request `i` at `i / rate`, without accumulated rounding. The
    random ones start after their first gap, so that a count over any window has the distribution it should have.
    """
    return (at for at, _ in senders(arrivals, rng))


def senders(arrivals: Arrivals, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """As `offsets`, each time with the number of the client that sends (0 where there are no clients)."""
    rate, shape = arrivals.rate, arrivals.shape
    if rate is None and shape is None:
        raise InputError(f"{arrivals.kind} arrivals have no rate", place="--rate")
    if arrivals.clients is not None:
        yield from superpose(arrivals, arrivals.clients, rng)
    elif shape is not None:
        clock = Clock(shape)
        for unit in _units(arrivals.gap_shape, rng):
            at = clock.at(unit)
            if at == math.inf:
                return
            yield round(at * S), 0
    elif arrivals.kind is ArrivalKind.CONSTANT:
        assert rate is not None
        yield from ((round(i * S / rate), 0) for i in itertools.count())
    else:
        assert rate is not None
        for block in _blocks(arrivals.gap_shape, rng):
            yield from ((at, 0) for at in (block / rate * S).astype(np.int64).tolist())


def _units(gap_shape: float, rng: np.random.Generator) -> Iterator[float]:
    """Times of a process of rate 1."""
    if gap_shape == math.inf:
        yield from (float(i) for i in itertools.count())
    for block in _blocks(gap_shape, rng):
        yield from block.tolist()


def _blocks(gap_shape: float, rng: np.random.Generator) -> Iterator[np.ndarray]:
    start = 0.0
    while True:
        gaps = (
            rng.standard_exponential(_BLOCK) if gap_shape == 1.0 else rng.standard_gamma(gap_shape, _BLOCK) / gap_shape
        )
        times = start + np.cumsum(gaps)
        start = float(times[-1])
        yield times
