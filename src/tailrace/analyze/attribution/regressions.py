"""Which kinds of requests became slower: a table of kinds, each with its interval, and the false discoveries bounded.

The aggregate's p99 is blind to a kind that lies below it: a quarter of the traffic may become 60 % slower and the p99
of all not move. So every kind is compared by itself, at its median and at the highest quantile that its n supports, and
of all these tests only those stand that Benjamini and Hochberg's rule lets stand at 5 %.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.attribution.traffic import Traffic, kinds_of_traffic
from tailrace.analyze.labels import labelled
from tailrace.analyze.timebase import starts_ns
from tailrace.stats.blocks import blocks_of
from tailrace.stats.mixtures import BucketChange, Side, bucket_changes
from tailrace.stats.quantiles import supported
from tailrace.stats.tests import benjamini_hochberg
from tailrace.store.table import RecordTable

__all__ = ["DIMENSIONS", "KindChange", "regressions", "regressions_of"]

Floats = NDArray[np.float64]
DIMENSIONS: Final = ("tenant", "route", "backend", "model", "endpoint")
"""Columns by which the requests are cut once more, besides the kinds of traffic."""
_RATE: Final = 0.05
_LEAST: Final = 0.05
"""A change of less than this is no regression, however certain."""
_VALUES: Final = 12
"""Values of a dimension that are compared, the most frequent."""


class KindChange(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: one kind at one quantile (ms)."""

    kind: str
    p: float
    n_a: int
    n_b: int
    a: float
    b: float
    change: float
    """q_B / q_A - 1."""
    low: float
    high: float
    """95 % interval of `change`, by blocks of time."""
    p_value: float
    slower: bool
    """It stands after Benjamini-Hochberg over the whole table, and is more than 5 % slower."""
    faster: bool

    @property
    def sentence(self) -> str:
        """The row in words."""
        return (
            f"{self.kind}: p{self.p * 100:g} {self.a:.0f} -> {self.b:.0f} ms ({self.change:+.0%} "
            f"[{self.low:+.0%}, {self.high:+.0%}], n = {self.n_a} and {self.n_b})"
        )


def regressions(
    a: RecordTable,
    b: RecordTable,
    rng: np.random.Generator,
    *,
    metric: str = "ttft",
    dimensions: tuple[str, ...] = DIMENSIONS,
) -> list[KindChange]:
    """The table over kinds of traffic, and over tenant, route, backend, model and endpoint where they differ.

    Rows in order of their p-value. Kinds with fewer than 30 requests in a window are not compared.
    """
    sides = []
    for table in (a, b):
        known = ~np.isnan(table.ms(metric))
        sides.append(table if known.all() else table.where(known))
    one, two = sides
    cuts = [kinds_of_traffic(one, two, metric)]
    for name in dimensions:
        codes, names = labelled(sides, name)
        if len(names) > 1:
            cuts.append(_frequent(Traffic(codes[0], codes[1], [f"{name} {value or '(none)'}" for value in names])))
    return regressions_of((one.ms(metric), starts_ns(one) / 1e9), (two.ms(metric), starts_ns(two) / 1e9), cuts, rng)


def regressions_of(
    a: tuple[Floats, Floats], b: tuple[Floats, Floats], cuts: list[Traffic], rng: np.random.Generator
) -> list[KindChange]:
    """As `regressions`, from (values in ms, their times in s) and the kinds of each cut."""
    if not a[0].size or not b[0].size:
        return []
    blocks = [blocks_of(*side) for side in (a, b)]
    found: list[tuple[str, BucketChange]] = []
    for traffic in cuts:
        sizes = [np.bincount(side, minlength=len(traffic.names)) for side in (traffic.a, traffic.b)]
        wanted: dict[int, tuple[float, ...]] = {}
        for k in np.flatnonzero(traffic.comparable()).tolist():
            n = int(min(sizes[0][k], sizes[1][k]))
            top = next((p for p in (0.99, 0.95, 0.9) if supported(p, n)), None)
            wanted[k] = (0.5,) if top is None else (0.5, top)
        mine, theirs = Side(a[0], traffic.a, blocks[0]), Side(b[0], traffic.b, blocks[1])
        found += [(traffic.names[one.bucket], one) for one in bucket_changes(mine, theirs, wanted, rng)]
    stands = benjamini_hochberg([one.p_value for _, one in found], _RATE)
    rows = [
        KindChange(
            kind=name,
            p=one.p,
            n_a=one.n_a,
            n_b=one.n_b,
            a=one.a,
            b=one.b,
            change=one.change.value,
            low=one.change.low,
            high=one.change.high,
            p_value=one.p_value,
            slower=stand and one.change.value > _LEAST and one.change.low > 0,
            faster=stand and one.change.value < -_LEAST and one.change.high < 0,
        )
        for (name, one), stand in zip(found, stands, strict=True)
    ]
    return sorted(rows, key=lambda row: (row.p_value, -abs(row.change), row.kind, row.p))


def _frequent(traffic: Traffic) -> Traffic:
    sizes = sum(np.bincount(side, minlength=len(traffic.names)) for side in (traffic.a, traffic.b))
    if len(traffic.names) <= _VALUES:
        return traffic
    keep = np.zeros(len(traffic.names), dtype=bool)
    keep[np.argsort(-np.asarray(sizes), kind="stable")[:_VALUES]] = True
    place = np.where(keep, np.cumsum(keep) - 1, _VALUES).astype(np.int64)
    names = [name for name, kept in zip(traffic.names, keep, strict=True) if kept]
    return Traffic(place[traffic.a], place[traffic.b], [*names, f"{names[0].split(' ')[0]} (others)"])
