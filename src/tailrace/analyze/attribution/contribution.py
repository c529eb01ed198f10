"""Whose requests make the tail: each tenant's, route's, lane's share of the slow against its share of the traffic."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import codes_of
from tailrace.stats.blocks import Blocks, drawn, interval, p_value
from tailrace.stats.tests import benjamini_hochberg, fisher_p_value
from tailrace.store.table import RecordTable

__all__ = ["DIMENSIONS", "Contribution", "contributions"]

DIMENSIONS: Final = ("tenant", "route", "lane", "backend", "model", "endpoint")
_RESAMPLES: Final = 400
_VALUES: Final = 20
_TIMES: Final = 1.5
_RATE: Final = 0.05
_MANY: Final = 500


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one dimension."""

    dimension: str
    name: str
    n: int
    traffic_share: float
    tail_share: float
    low: float
    high: float
    """95 % interval of `tail_share`, by blocks of time."""
    p_value: float
    named: bool
    """It has at least 1.5 x its share of the traffic, its interval lies above that share, and it stands after
    Benjamini-Hochberg over all values of all dimensions."""

    @property
    def times(self) -> float:
        """Share of the tail over share of the traffic."""
        return self.tail_share / self.traffic_share if self.traffic_share > 0 else 0.0

    @property
    def sentence(self) -> str:
        """The row in words."""
        return (
            f"{self.dimension} {self.name or '(none)'} has {self.tail_share:.0%} [{self.low:.0%}, {self.high:.0%}] of "
            f"the slowest requests and {self.traffic_share:.0%} of the traffic ({self.times:.1f} x, n = {self.n})"
        )


def contributions(
    table: RecordTable,
    slow: NDArray[np.bool_],
    blocks: Blocks,
    rng: np.random.Generator,
    dimensions: tuple[str, ...] = DIMENSIONS,
) -> list[Contribution]:
    """Every value of every dimension that has at least two, the largest `times` first among those that are named.

    `slow` marks the rows that make the tail, `blocks` cuts the window in time (both one a row of `table`).
    """
    total, hits = len(table), int(slow.sum())
    if not total or not hits:
        return []
    weights = drawn(blocks, rng, _RESAMPLES).astype(np.float64)
    out: list[Contribution] = []
    for dimension in dimensions:
        codes, names = codes_of(table.column(dimension))
        if len(names) < 2:
            continue
        sizes = np.bincount(codes, minlength=len(names))
        every, tail = (
            np.bincount(blocks.of[rows] * len(names) + codes[rows], minlength=blocks.pieces * len(names)).reshape(
                blocks.pieces, len(names)
            )
            for rows in (slice(None), slow)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            of_all = (weights @ every) / (weights @ every.sum(axis=1))[:, None]
            of_tail = (weights @ tail) / (weights @ tail.sum(axis=1))[:, None]
        for code in np.argsort(-sizes, kind="stable")[:_VALUES].tolist():
            mine = int(tail[:, code].sum())
            share, traffic = mine / hits, int(sizes[code]) / total
            low, high = interval(share, of_tail[:, code], blocks.widen)
            differs = of_tail[:, code] - of_all[:, code]
            by_block = p_value(share - traffic, differs, inflate=blocks.inflate, blocks=blocks.pieces)
            # With many slow requests the blocks alone decide: the exact test would only be slow, and hardly larger.
            exact = fisher_p_value(mine, hits, int(sizes[code]) - mine, total - hits) if hits <= _MANY else 0.0
            out.append(
                Contribution(
                    dimension=dimension,
                    name=names[code],
                    n=int(sizes[code]),
                    traffic_share=traffic,
                    tail_share=share,
                    low=max(0.0, low),
                    high=min(1.0, high),
                    p_value=max(by_block, exact),
                    named=False,
                )
            )
    stands = benjamini_hochberg([one.p_value for one in out], _RATE)
    out = [
        msgspec.structs.replace(one, named=bool(stand and one.times >= _TIMES and one.low > one.traffic_share))
        for one, stand in zip(out, stands, strict=True)
    ]
    return sorted(out, key=lambda one: (not one.named, -one.times if one.named else -one.n, one.dimension, one.name))
