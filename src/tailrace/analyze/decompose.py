"""Which stage makes the tail, and which stage carries its change.

The stages are averaged over the requests whose total lies near the quantile, so the parts add up to it; "p99 of each
stage" would not, because those maxima sit in different requests.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.timebase import starts_ns
from tailrace.model.stage import STAGES
from tailrace.stats.blocks import Blocks, blocks_of, interval
from tailrace.stats.decomposition import conditional_stage_mean
from tailrace.stats.order import stable_order
from tailrace.stats.quantiles import quantile
from tailrace.stats.stage_draws import stage_draws
from tailrace.store.table import RecordTable

__all__ = [
    "StageChange",
    "StageInterval",
    "TailStages",
    "shift_words",
    "stage_change",
    "stage_columns",
    "stage_intervals",
    "tail_stages",
]

Floats = NDArray[np.float64]

_BEFORE_FIRST_TOKEN: Final = ("ingress", "queue", "preprocess", "encode", "prefill")
_MIN_ROWS: Final = 10
NAMED_SHARE: Final = 0.10
"""A stage is named for a change only if it moved by more of the quantile than this and its interval excludes 0."""


class TailStages(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of the requests near a quantile, against those of the typical request (ms)."""

    total: str
    """`e2e` or `ttft`."""
    p: float
    n: int
    rows: int
    """Requests that the tail's means rest on."""
    value_ms: float
    """The quantile itself."""
    tail_ms: dict[str, float]
    typical_ms: dict[str, float]
    """The same among the requests around the median."""
    excess_ms: dict[str, float]
    """`tail_ms - typical_ms`."""
    leader: str
    """The stage with the largest excess; empty when the tail is no longer than 1.2 x the typical request."""
    members: list[int]
    """Rows of the table that make the tail."""

    @property
    def sentence(self) -> str:
        """The answer in words, with crowding-out stated where a stage is smaller in the tail."""
        if not self.leader:
            return f"The p{self.p * 100:g} of {self.total} is close to the typical request; no stage makes a tail."
        # A mean over the requests near the quantile may lie above the quantile itself: a part of it is never more.
        part, whole = self.tail_ms[self.leader], self.value_ms
        share = f"{part:.0f} ms of {whole:.0f} ms" if part <= whole else f"all of {whole:.0f} ms"
        text = (
            f"{self.leader} makes the tail: {share} at "
            f"p{self.p * 100:g} of {self.total}, against {self.typical_ms[self.leader]:.0f} ms typically "
            f"(n = {self.n})."
        )
        less = [name for name, value in self.excess_ms.items() if value < -NAMED_SHARE * self.value_ms]
        if less:
            text += f" {', '.join(less)} is shorter there only because other requests occupy the tail (crowding-out)."
        return text


def stage_columns(table: RecordTable, total: str = "e2e") -> tuple[dict[str, Floats], Floats]:
    """(stage -> ms, total in ms) of every row; absent stages are 0 here, because they are contained in others.

    For `e2e` the stages add up exactly. For `ttft` they are those before the first token, and what they do not
    explain is `unattributed`.
    """
    whole = table.ms(total)
    if total == "e2e":
        stages = {str(stage): _known(table, str(stage)) for stage in STAGES}
    else:
        stages = {name: _known(table, name) for name in _BEFORE_FIRST_TOKEN}
        stages["unattributed"] = whole - sum(stages.values())
    return {name: values for name, values in stages.items() if np.any(values)}, whole


def _known(table: RecordTable, stage: str) -> Floats:
    """A stage's time of every row (ms), 0 where it is absent."""
    if table.lacks(f"{stage.replace('.', '_')}_ns"):
        return np.zeros(len(table))
    values = table.ms(stage)
    absent = np.isnan(values)
    return np.where(absent, 0.0, values) if absent.any() else values


def half_width(p: float, n: int) -> float:
    """Half-width of the window of ranks: 0.25 % at p99 with many rows, wider so that it holds ten rows."""
    return min(max(0.25 * (1.0 - p), _MIN_ROWS / 2 / max(n, 1)), 1.0 - p if n * (1.0 - p) >= 1 else 1.0)


def tail_stages(table: RecordTable, total: str = "e2e", p: float = 0.99) -> TailStages | None:
    """The stages at a quantile of `total` (`e2e`, `ttft`). None without a row that has the total."""
    keep = np.flatnonzero(~np.isnan(table.ms(total)))
    if not keep.size:
        return None
    stages, whole = stage_columns(table if keep.size == len(table) else table.where(keep), total)
    n = int(whole.size)
    order = stable_order(whole)
    tail = conditional_stage_mean(stages, whole, p, half_width(p, n), order=order)
    typical = conditional_stage_mean(stages, whole, 0.5, 0.05, order=order)
    excess = {name: tail.stages[name] - typical.stages[name] for name in stages}
    leader = max(excess, key=lambda name: excess[name]) if excess and tail.total > 1.2 * typical.total else ""
    return TailStages(
        total=total,
        p=p,
        n=n,
        rows=tail.rows,
        value_ms=quantile(whole, p),
        tail_ms=tail.stages,
        typical_ms=typical.stages,
        excess_ms=excess,
        leader=leader,
        members=[int(keep[row]) for row in tail.members],
    )


class StageInterval(msgspec.Struct, frozen=True, kw_only=True):
    """A stage's part of the quantile (ms), with a 95 % interval by blocks of time."""

    stage: str
    value: float
    low: float
    high: float
    typical: float
    """The same among the requests around the median."""

    @property
    def share(self) -> str:
        """For a reader."""
        return f"{self.stage} {self.value:.0f} ms [{self.low:.0f}, {self.high:.0f}], typically {self.typical:.0f}"


def stage_intervals(
    table: RecordTable, tail: TailStages, rng: np.random.Generator, *, resamples: int = 200
) -> list[StageInterval]:
    """The stages of `tail_stages(table, ...)` with intervals, the largest excess first."""
    known = ~np.isnan(table.ms(tail.total))
    kept = table if known.all() else table.where(known)
    stages, whole = stage_columns(kept, tail.total)
    blocks = blocks_of(whole, starts_ns(kept) / 1e9)
    draws = stage_draws(stages, whole, blocks, tail.p, half_width(tail.p, int(whole.size)), rng, resamples)
    out = []
    for name in sorted(stages, key=lambda one: (-tail.excess_ms[one], one)):
        low, high = interval(tail.tail_ms[name], draws[name], blocks.widen)
        out.append(
            StageInterval(
                stage=name, value=tail.tail_ms[name], low=max(0.0, low), high=high, typical=tail.typical_ms[name]
            )
        )
    return out


class StageChange(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage's part of the quantile changed from A to B (ms), with a 95 % block-bootstrap interval."""

    a: float
    b: float
    delta: float
    low: float
    high: float
    named: bool
    """The change is larger than a tenth of the quantile in A and its interval excludes 0."""


def stage_change(
    a: RecordTable,
    b: RecordTable,
    rng: np.random.Generator,
    *,
    total: str = "e2e",
    p: float = 0.99,
    block_s: float | None = 10.0,
    resamples: int = 200,
) -> dict[str, StageChange]:
    """Change of each stage's contribution at the quantile. Negative ones beside a positive one are crowding-out.

    `block_s`: `None` chooses the blocks by the length of the dependence (`stats.blocks`).
    """
    arms = []
    for table in (a, b):
        known = ~np.isnan(table.ms(total))
        kept = table if known.all() else table.where(known)
        if not len(kept):
            return {}
        arms.append((*stage_columns(kept, total), starts_ns(kept) / 1e9))
    names = [name for name in map(str, STAGES) if name in arms[0][0] or name in arms[1][0]]
    points, draws, widen = [], [], 1.0
    for stages, whole, at in arms:
        full = {name: stages.get(name, np.zeros_like(whole)) for name in names}
        h = half_width(p, int(whole.size))
        blocks = blocks_of(whole, at) if block_s is None else _cut(at, block_s)
        widen = max(widen, blocks.widen)
        points.append(conditional_stage_mean(full, whole, p, h).stages)
        draws.append(stage_draws(full, whole, blocks, p, h, rng, resamples))
    level = quantile(arms[0][1], p)
    out = {}
    for name in names:
        delta = points[1][name] - points[0][name]
        low, high = interval(delta, draws[1][name] - draws[0][name], widen)
        named = abs(delta) > NAMED_SHARE * level and (low > 0 or high < 0)
        out[name] = StageChange(a=points[0][name], b=points[1][name], delta=delta, low=low, high=high, named=named)
    return out


def shift_words(changes: dict[str, StageChange]) -> str:
    """The stages that carry a change, in words; what became smaller beside them is called crowding-out."""
    named = sorted((name for name in changes if changes[name].named), key=lambda name: -abs(changes[name].delta))
    grown = [name for name in named if changes[name].delta > 0]
    if not named:
        return "no stage carries a change that is large and certain"
    text = ", ".join(
        f"{name} {changes[name].delta:+.0f} ms [{changes[name].low:+.0f}, {changes[name].high:+.0f}]"
        for name in (grown or named)
    )
    less = [name for name in named if changes[name].delta < 0]
    if grown and less:
        text += f"; {', '.join(less)} is smaller there because other requests make the tail now (crowding-out)"
    return text


def _cut(at_s: Floats, block_s: float) -> Blocks:
    """Blocks of a given length."""
    span = float(at_s.max() - at_s.min())
    count = max(2, int(span / block_s)) if span > 0 else 2
    of = np.minimum((at_s - at_s.min()) / max(span, 1e-9) * count, count - 1).astype(np.int64)
    return Blocks(of, count, block_s, math.sqrt(count / (count - 1)))
