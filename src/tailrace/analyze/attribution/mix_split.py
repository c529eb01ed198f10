"""Did a metric's tail and mean move because other traffic came, or because the same requests took longer?"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.attribution.traffic import Traffic, kinds_of_traffic
from tailrace.analyze.timebase import starts_ns
from tailrace.stats.blocks import blocks_of
from tailrace.stats.mixtures import Part, Side, split_mean, split_quantile
from tailrace.stats.quantiles import quantile, supported
from tailrace.store.table import RecordTable

__all__ = ["NAMED_SHARE", "MixSplit", "MovedKind", "mix_split", "split_of"]

Floats = NDArray[np.float64]
NAMED_SHARE: Final = 0.10
"""A part is named only if it is more than this share of the quantile in A, and its interval excludes 0."""
_UNMOVED: Final = 0.05
_WORDS: Final = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT"}


class MovedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of traffic and what it has to do with the change."""

    name: str
    share_a: float
    share_b: float
    within: Part
    """Its part of *within* (ms)."""


class MixSplit(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a quantile and of the mean from A to B, split (ms). 95 % intervals, resampled by blocks of time."""

    metric: str
    p: float
    n_a: int
    n_b: int
    a: float
    b: float
    """The quantile of all requests of the window, whatever kind."""
    mix: Part
    within: Part
    traffic: float
    """What kinds that only one window holds (fewer than 30 rows in the other) did to the quantile: they are new or
    vanished traffic, and nothing is extrapolated for them. `mix + within + traffic = b - a`."""
    mean_a: float
    mean_b: float
    mean_mix: Part | None
    mean_within: Part | None
    grown: MovedKind | None
    """The kind whose share grew most."""
    slower: MovedKind | None
    """The kind with the largest part of *within*, where its interval is above 0."""
    new: dict[str, float]
    """Kinds that only B holds -> their share of it."""

    @property
    def mean_moved(self) -> bool:
        """Whether the mean changed by more than 5 %."""
        return abs(self.mean_b - self.mean_a) > _UNMOVED * self.mean_a

    @property
    def verdict(self) -> str:
        """`mix`, `within`, `both`, or empty: which part is large and certain."""
        large = NAMED_SHARE * self.a
        # New traffic is other traffic: it counts as mix. Its size is what it is, an interval belongs to shares.
        mix = self.mix.value + self.traffic
        by_mix = abs(mix) > large and (self.mix.certain or abs(self.traffic) > large)
        by_within = abs(self.within.value) > large and self.within.certain
        return "both" if by_mix and by_within else "mix" if by_mix else "within" if by_within else ""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        name = f"{_WORDS.get(self.metric, self.metric)} p{self.p * 100:g}"
        text = f"{name} {self.a:.0f} -> {self.b:.0f} ms: other traffic {_part(self.mix)}, the same requests "
        text += f"{_part(self.within)}"
        if self.traffic:
            text += f", traffic that only one of the windows has {self.traffic:+.0f} ms"
        mean = f"the mean {self.mean_a:.0f} -> {self.mean_b:.0f} ms"
        if not self.mean_moved and self.verdict:
            mean += " did not move"
            if self.mean_mix is not None and self.mean_within is not None:
                mean += f" (other traffic {_part(self.mean_mix)}, the same requests {_part(self.mean_within)})"
        return f"{text}; {mean}."


def _part(part: Part) -> str:
    return f"{part.value:+.0f} ms [{part.low:+.0f}, {part.high:+.0f}]"


def mix_split(
    a: RecordTable, b: RecordTable, rng: np.random.Generator, *, metric: str = "ttft", p: float = 0.99
) -> MixSplit | None:
    """Split the change of a metric between two windows of completed requests.

    The quantile is lowered to p95 or p50 where the smaller window does not support it; `None` where a window has fewer
    than 30 rows with the metric, or no kind of traffic in common.
    """
    sides = []
    for table in (a, b):
        known = ~np.isnan(table.ms(metric))
        sides.append(table if known.all() else table.where(known))
    one, two = sides
    traffic = kinds_of_traffic(one, two, metric)
    return split_of(
        (one.ms(metric), starts_ns(one) / 1e9),
        (two.ms(metric), starts_ns(two) / 1e9),
        traffic,
        rng,
        metric=metric,
        p=p,
    )


def split_of(
    a: tuple[Floats, Floats],
    b: tuple[Floats, Floats],
    traffic: Traffic,
    rng: np.random.Generator,
    *,
    metric: str = "ttft",
    p: float = 0.99,
) -> MixSplit | None:
    """As `mix_split`, from (values in ms, their times in s) and the kind of each."""
    n = min(a[0].size, b[0].size)
    common = traffic.comparable()
    chosen = next((q for q in (p, 0.95, 0.5) if q <= p and supported(q, n)), None)
    if chosen is None or n < 30 or not common.any():
        return None
    sides = []
    for (values, at), kind in ((a, traffic.a), (b, traffic.b)):
        keep = common[kind]
        blocks = blocks_of(values, at)
        sides.append(Side(values[keep], kind[keep], blocks._replace(of=blocks.of[keep])))
    kinds = len(traffic.names)
    found = split_quantile(sides[0], sides[1], kinds, chosen, rng)
    mean = split_mean(sides[0], sides[1], kinds, rng)
    if found is None:
        return None
    shares = traffic.shares()
    whole = [quantile(side[0], chosen) for side in (a, b)]
    rest = (whole[1] - whole[0]) - found.mix.value - found.within.value
    if common.all():
        # The two definitions of a quantile differ by less than the distance of two neighbours.
        whole, rest = [found.a, found.b], 0.0
    grown = max(range(kinds), key=lambda k: (shares[1][k] - shares[0][k], -k))
    slowest = max(found.buckets, key=lambda k: (found.buckets[k].value, -k))
    return MixSplit(
        metric=metric,
        p=chosen,
        n_a=int(a[0].size),
        n_b=int(b[0].size),
        a=whole[0],
        b=whole[1],
        mix=found.mix,
        within=found.within,
        traffic=rest,
        mean_a=float(a[0].mean()),
        mean_b=float(b[0].mean()),
        mean_mix=None if mean is None else mean.mix,
        mean_within=None if mean is None else mean.within,
        grown=_moved(grown, traffic, shares, found.buckets) if shares[1][grown] > shares[0][grown] else None,
        slower=_moved(slowest, traffic, shares, found.buckets) if found.buckets[slowest].low > 0 else None,
        new={traffic.names[k]: float(shares[1][k]) for k in np.flatnonzero(~common & (shares[1] > shares[0])).tolist()},
    )


def _moved(kind: int, traffic: Traffic, shares: tuple[Floats, Floats], parts: dict[int, Part]) -> MovedKind:
    return MovedKind(
        name=traffic.names[kind],
        share_a=float(shares[0][kind]),
        share_b=float(shares[1][kind]),
        within=parts.get(kind, Part(0.0, 0.0, 0.0)),
    )
