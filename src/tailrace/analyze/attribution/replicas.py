"""How evenly replicas are loaded: requests in flight on each over time, and the work that each was given."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.classes import prompt_tokens
from tailrace.analyze.labels import codes_of
from tailrace.analyze.timebase import starts_ns, timed
from tailrace.stats.blocks import Blocks, drawn, interval
from tailrace.stats.quantiles import quantile, supported
from tailrace.store.table import RecordTable

__all__ = ["SKEWED", "Replica", "ReplicaSkew", "replica_skew"]

Floats = NDArray[np.float64]
SKEWED: Final = 2.0
"""The fullest replica's requests in flight over the mean of all."""
_MOMENTS: Final = 600
_BLOCKS: Final = 20
_RESAMPLES: Final = 200
_MOST: Final = 64


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's part."""

    name: str
    n: int
    in_flight: float
    """Mean over the window."""
    tokens: float
    """Prompt and output tokens of its requests."""
    p_ms: float | None
    """Its p99 (p95 where n does not support one) of the time to first token; `None` with fewer."""


class ReplicaSkew(msgspec.Struct, frozen=True, kw_only=True):
    """Skew = fullest replica / mean of all, of means over the window; 1 is even, the number of replicas the most."""

    replicas: list[Replica]
    """The fullest first."""
    skew: float
    low: float
    high: float
    """95 % interval of `skew`, by blocks of time."""
    token_skew: float
    skewed_share: float
    """Share of the time, while there was something to share out, in which the skew was above 2."""

    @property
    def skewed(self) -> bool:
        """Whether the skew is above 2 and its interval too, or that of the tokens is above 2."""
        return self.low > SKEWED or (self.token_skew > SKEWED and self.skew > SKEWED)

    @property
    def sentence(self) -> str:
        """The numbers in words."""
        shown = ", ".join(f"{one.name} {one.in_flight:.1f}" for one in self.replicas[:6])
        mean = sum(one.in_flight for one in self.replicas) / len(self.replicas)
        return (
            f"in flight by replica: {shown}; the fullest over the mean is {self.replicas[0].in_flight:.1f} / "
            f"{mean:.1f} = {self.skew:.2f} [{self.low:.2f}, {self.high:.2f}], by tokens {self.token_skew:.2f}."
        )


def replica_skew(table: RecordTable, rng: np.random.Generator) -> ReplicaSkew | None:
    """From records that name their backend; `None` with fewer than two of them, or where nobody says when."""
    codes, names = codes_of(table.column("backend"))
    if names and names[0] == "":
        kept = codes != 0
        table, codes, names = table.where(kept), codes[kept] - 1, names[1:]
    count = len(names)
    if not 2 <= count <= _MOST or len(table) < 10 * count or not timed(table):
        return None
    start = starts_ns(table).astype(np.float64)
    end = start + table.column("e2e_ns")
    span = float(start.max() - start.min())
    if span <= 0:
        return None
    at = start.min() + (np.arange(_MOMENTS) + 0.5) / _MOMENTS * span
    flight = np.empty((count, _MOMENTS))
    for code in range(count):
        mine = codes == code
        begun = np.searchsorted(np.sort(start[mine]), at, side="right")
        flight[code] = begun - np.searchsorted(np.sort(end[mine]), at, side="right")
    mean = flight.mean(axis=1)
    if mean.sum() <= 0:
        return None
    blocks = Blocks(np.arange(_MOMENTS) * _BLOCKS // _MOMENTS, _BLOCKS, span / 1e9 / _BLOCKS, 1.0)
    weights = drawn(blocks, rng, _RESAMPLES).astype(np.float64)
    sums = np.stack([np.bincount(blocks.of, weights=row, minlength=_BLOCKS) for row in flight])
    drawn_means = weights @ sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = drawn_means.max(axis=1) / drawn_means.mean(axis=1)
    skew = float(mean.max() / mean.mean())
    low, high = interval(skew, draws, blocks.widen)
    tokens = np.nan_to_num(prompt_tokens(table)) + np.nan_to_num(table.column("output_tokens"))
    spent = np.bincount(codes, weights=tokens, minlength=count)
    shared = flight.sum(axis=0) >= count
    most = flight[:, shared].max(axis=0) > SKEWED * flight[:, shared].mean(axis=0) if shared.any() else np.zeros(1)
    ttft = table.ms("ttft")
    return ReplicaSkew(
        replicas=[
            Replica(
                name=names[code],
                n=int((codes == code).sum()),
                in_flight=float(mean[code]),
                tokens=float(spent[code]),
                p_ms=_tail(ttft[(codes == code) & ~np.isnan(ttft)]),
            )
            for code in sorted(range(count), key=lambda one: (-mean[one], names[one]))
        ],
        skew=skew,
        low=max(1.0, low),
        high=min(float(count), high),
        token_skew=float(spent.max() / spent.mean()) if spent.sum() > 0 else 1.0,
        skewed_share=float(most.mean()),
    )


def _tail(values: Floats) -> float | None:
    p = next((one for one in (0.99, 0.95) if supported(one, int(values.size))), None)
    return None if p is None else quantile(values, p)
