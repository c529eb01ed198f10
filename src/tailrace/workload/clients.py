"""Clients: arrivals as the sum of many senders, each with a rhythm and, if asked, a mix of classes of its own.

What a service sees is the superposition of clients of very unequal size. That, more than any one process, makes its
bursts and its drift: in the traces behind ServeGen (Xiang et al., NSDI 2026) the ten largest clients send 63-93 % of
all requests. Each client here is a renewal process (constant, Poisson or gamma) with its share of the whole rate.

A client is in the middle of its life when the run begins: its first gap is what is left of a gap in progress (the
equilibrium distribution). Starting all of them at once would begin the run with a burst of one request each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import StrEnum
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.workload.mix import Drawn, TrafficClass, draws
from tailrace.workload.shape import Segment, Shape, number_text, span_text
from tailrace.workload.shape_clock import Clock

if TYPE_CHECKING:
    from tailrace.workload.arrivals import Arrivals

_BLOCK: Final = 64
"""Gaps drawn at a time for one client. Fixed, so that the schedule does not depend on how much of it is consumed."""
MOST: Final = 100_000


class Spread(StrEnum):
    """How unequal the clients are."""

    EVEN = "even"
    ZIPF = "zipf"
    """The k-th has a share proportional to k^-x."""
    LOGNORMAL = "lognormal"
    """Shares are log-normal with shape x: the quantiles of that distribution, the same ones for every seed."""


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends. `rate` of the arrivals is that of all clients together."""

    count: int
    spread: Spread = Spread.EVEN
    skew: float = 0.0
    """The exponent of `zipf`, the shape of `lognormal`."""
    start_over_ns: int = 0
    """They come in at random over so long; before that a client sends nothing."""
    own_mix: float | None = None
    """Each client's class weights are drawn around the mix (Dirichlet): 0.1 makes nearly each a client of one class,
    100 makes all of them alike. `None`: every request is drawn from the mix."""
    every_ns: int | None = None
    """Mean time between two requests of a client of average size: gives the rate, where there is no other."""

    def __post_init__(self) -> None:
        """Refuse what means nothing. InputError without a place: whoever parses adds it."""
        if not 1 <= self.count <= MOST:
            raise InputError(f"{self.count} is no number of clients between 1 and {MOST}")
        if not 0 <= self.skew <= 10 or (self.spread is Spread.EVEN) != (self.skew == 0):
            raise InputError(
                f"'{self.spread} {self.skew:g}' is no spread", remedy="Write 'zipf 1.1' or 'lognormal 1.5'"
            )
        if self.own_mix is not None and not 1e-3 <= self.own_mix <= 1e6:
            raise InputError(f"own mix {self.own_mix:g} is not between 0.001 and 1000000", remedy="Write 'own mix 0.5'")
        if self.start_over_ns < 0 or (self.every_ns is not None and self.every_ns <= 0):
            raise InputError("a time must be above 0")

    def __str__(self) -> str:
        text = f"{self.count} clients"
        if self.spread is not Spread.EVEN:
            text += f" {self.spread} {number_text(self.skew)}"
        if self.every_ns is not None:
            text += f" every {span_text(self.every_ns)}"
        if self.start_over_ns:
            text += f" starting over {span_text(self.start_over_ns)}"
        return text if self.own_mix is None else f"{text} own mix {number_text(self.own_mix)}"


def shares(clients: Clients) -> NDArray[np.float64]:
    """Each client's share of the rate, the largest first; they add up to 1."""
    if clients.spread is Spread.ZIPF:
        weights = np.arange(1, clients.count + 1, dtype=np.float64) ** -clients.skew
    elif clients.spread is Spread.LOGNORMAL:
        normal = NormalDist()
        weights = np.exp(
            [clients.skew * normal.inv_cdf(1 - (k + 0.5) / clients.count) for k in range(clients.count)]
        ).astype(np.float64)
    else:
        weights = np.ones(clients.count)
    out: NDArray[np.float64] = weights / weights.sum()
    return out


def superpose(arrivals: Arrivals, clients: Clients, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """`(intended time in ns, client)` of all clients together, in order of time."""
    shape = arrivals.shape
    if shape is None:
        assert arrivals.rate is not None
        shape = Shape(segments=[Segment(start=arrivals.rate, end=arrivals.rate)])
    heap: list[tuple[int, int]] = []
    sources = []
    for number, (share, own) in enumerate(zip(shares(clients).tolist(), rng.spawn(clients.count), strict=True)):
        source = _one(arrivals.gap_shape, share, shape, clients.start_over_ns, own)
        first = next(source, None)
        sources.append(source)
        if first is not None:
            heap.append((first, number))
    heapq.heapify(heap)
    while heap:
        at, number = heap[0]
        yield at, number
        following = next(sources[number], None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following, number))


def _one(gap_shape: float, share: float, shape: Shape, start_over_ns: int, rng: np.random.Generator) -> Iterator[int]:
    """One client's times (ns). `gap_shape` is that of the gamma distribution of its gaps; infinite: they are even."""
    clock = Clock(shape)
    phase, begins = rng.random(2).tolist()
    unit = clock.count(begins * start_over_ns / S) * share
    # What is left of a gap in progress is U times a gap drawn by its length; that of a gamma(k) is a gamma(k + 1).
    unit += phase if gap_shape == np.inf else phase * float(rng.standard_gamma(gap_shape + 1)) / gap_shape
    while True:
        gaps = np.ones(_BLOCK) if gap_shape == np.inf else rng.standard_gamma(gap_shape, _BLOCK) / gap_shape
        for gap in gaps.tolist():
            at = clock.at(unit / share)
            if at == np.inf:
                return
            yield round(at * S)
            unit += gap


def drawers(clients: Clients, mix: list[TrafficClass], rng: np.random.Generator) -> list[Iterator[Drawn]]:
    """Each client's own endless draws of classes and lengths."""
    weights = np.array([one.weight for one in mix])
    concentration = (clients.own_mix or 1.0) * weights / weights.sum()
    out = []
    for own in rng.spawn(clients.count):
        # Gamma draws instead of `dirichlet`, which gives NaN where all of a small concentration underflow.
        drawn = own.standard_gamma(concentration) if len(mix) > 1 else np.ones(1)
        if not drawn.sum() > 0.0:
            drawn = (np.arange(len(mix)) == own.choice(len(mix), p=weights / weights.sum())).astype(np.float64)
        mine = [
            msgspec.structs.replace(one, weight=weight)
            for one, weight in zip(mix, drawn.tolist(), strict=True)
            if weight > 0.0
        ]
        out.append(draws(mine, own))
    return out
