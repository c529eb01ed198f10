"""Every metric of every class of two arms, with its interval and verdict."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.arms import FROM_SCHEDULE, METRICS, ArmData
from tailrace.analyze.classes import Classes, prompt_tokens
from tailrace.analyze.exceedance import Exceedance, exceedance
from tailrace.analyze.verdict import Headline, judge_metric
from tailrace.model.measurement import MetricDelta
from tailrace.stats.bootstrap import Arm, QuantileChange, block_length, compare_quantiles
from tailrace.stats.decomposition import BUCKET_ROWS, mix_within
from tailrace.stats.quantiles import needed, quantile, supported

__all__ = ["MIN_N", "Judged"]

QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)
MIN_N: Final = needed(0.75)
"""With fewer values than support any quantile above the median, a metric is not compared at all."""
_HEADLINE: Final = ("longest_wait_ms", "ttft_ms", "longest_gap_ms", "e2e_ms")
_OTHERS: Final = ("ttft_ms", "e2e_ms")
_LADDER: Final = (0.99, 0.95, 0.9, 0.5)
"""A headline stands at the highest of these that both arms support, and where that is the p99 at p95 as well."""
_PROMPT_EDGES: Final = (0, 256, 1024, 4096, 16384)
_INTERACTIVE: Final = "interactive"


class Judged:
    """Every metric of every class, judged."""

    def __init__(
        self,
        arms: tuple[ArmData, ArmData],
        classes: Classes,
        *,
        paired: bool,
        intended: bool = False,
        without: Container[str] = (),
    ) -> None:
        """`intended` adds the latencies from the schedule, on which the headline then stands; `without` are metrics
        that the arms cannot be compared in.
        """
        self.arms = arms
        self.classes = classes
        self.paired = paired
        self.intended = intended
        names = [name for name in METRICS if name not in without]
        self._metrics = names + ([FROM_SCHEDULE[name] for name in names if name in FROM_SCHEDULE] if intended else [])
        self.metrics: dict[str, MetricDelta] = {}
        self.changes: dict[str, QuantileChange] = {}
        self.splits: dict[str, dict[str, float | None]] = {}
        self._doubtless: dict[str, Exceedance] = {}
        self._labels = [
            classes.labels[i][arm.done_rows].astype(str) if len(arm.done_rows) else np.empty(0, dtype=str)
            for i, arm in enumerate(arms)
        ]

    def scopes(self) -> dict[str, list[NDArray[np.bool_]]]:
        """Scope -> which rows of `done` it holds in each arm. The empty scope is everything."""
        out = {"": [np.ones(len(label), dtype=bool) for label in self._labels]}
        if len(self.classes.names) > 1:
            for name in self.classes.names:
                out[name] = [label == name for label in self._labels]
            if 1 < len(self.classes.interactive) < len(self.classes.names):
                out[_INTERACTIVE] = [np.isin(label, list(self.classes.interactive)) for label in self._labels]
        return out

    @property
    def interactive_scope(self) -> str:
        """The scope that holds exactly the interactive requests."""
        if len(self.classes.interactive) == len(self.classes.names):
            return ""
        return _INTERACTIVE if len(self.classes.interactive) > 1 else next(iter(self.classes.interactive))

    def told(self, metric: str) -> str:
        """The name of `metric` counted from where latency counts."""
        return FROM_SCHEDULE.get(metric, metric) if self.intended else metric

    def measure_all(self, rng: np.random.Generator, *, adjust_mix: bool) -> None:
        """Fill `metrics` and `changes`. With `adjust_mix`, B is weighted to the traffic of A."""
        for scope, keep in self.scopes().items():
            prefix = f"{scope}/" if scope else ""
            weights = self._mix_weights(keep) if adjust_mix else None
            for metric in self._metrics:
                self._measure(prefix, metric, keep, weights, rng)
            if adjust_mix and scope == self.interactive_scope:
                for metric in map(self.told, _HEADLINE):
                    if metric in self._metrics:
                        self._split(prefix, metric, keep)

    def _measure(
        self,
        prefix: str,
        metric: str,
        keep: list[NDArray[np.bool_]],
        weights: NDArray[np.float64] | None,
        rng: np.random.Generator,
    ) -> None:
        one, two = self.arms[0].series(metric, keep[0]), self.arms[1].series(metric, keep[1], weights)
        if two.weights is not None:
            # Traffic that A did not have is in no figure of B, nor in its n.
            kept = two.weights > 0
            two = Arm(two.values[kept], two.at_s[kept], two.weights[kept], None if two.run is None else two.run[kept])
        if one.values.size < MIN_N or two.values.size < MIN_N:
            return
        residence = max(quantile(one.values, 0.99), quantile(two.values, 0.99)) / 1e3
        block_s = block_length(one, two, residence)
        for change in compare_quantiles(one, two, QUANTILES, block_s=block_s, rng=rng, paired=self.paired):
            name = f"{prefix}{metric}.p{change.p * 100:g}"
            doubtless = exceedance(one, two, change)
            if doubtless is not None:
                change = change._replace(p_value=doubtless.p_value)  # noqa: PLW2901
                self._doubtless[name] = doubtless
            self.changes[name] = change
            self.metrics[name] = MetricDelta(
                a=round(change.a, 4),
                b=round(change.b, 4),
                delta_pct=round(change.change * 100, 2),
                ci_pct=[round(change.low * 100, 2), round(change.high * 100, 2)],
                n_a=change.n_a,
                n_b=change.n_b,
                verdict=judge_metric(change) if doubtless is None else doubtless.verdict,
                detectable_pct=round(change.detectable * 100, 2),
                note=_rests_on(change) + ("" if doubtless is None else f"; {doubtless.words}"),
            )
        top = [float(arm.values.max()) for arm in (one, two)]
        self.metrics[f"{prefix}{metric}.max"] = MetricDelta(
            a=round(top[0], 4),
            b=round(top[1], 4),
            delta_pct=round((top[1] / top[0] - 1) * 100, 2) if top[0] > 0 else None,
            ci_pct=[None, None],  # a maximum is one request: nothing bounds it
            n_a=int(one.values.size),
            n_b=int(two.values.size),
        )

    def _buckets(self, arm: int) -> NDArray[np.str_]:
        tokens = prompt_tokens(self.arms[arm].done)
        place = np.searchsorted(_PROMPT_EDGES, np.nan_to_num(tokens, nan=-1.0), side="right")
        return np.char.add(np.char.add(self._labels[arm].astype(str), "|"), place.astype(str))

    def _mix_weights(self, keep: list[NDArray[np.bool_]]) -> NDArray[np.float64] | None:
        """Weight of each row of B that gives B the shares of A; 0 for traffic that A did not have."""
        a, b = (self._buckets(i)[keep[i]] for i in (0, 1))
        if not a.size or not b.size:
            return None
        weights = np.zeros(len(keep[1]))
        inside = np.flatnonzero(keep[1])
        for bucket in np.unique(b):
            mine, theirs = int((b == bucket).sum()), int((a == bucket).sum())
            if theirs:
                weights[inside[b == bucket]] = (theirs / a.size) / (mine / b.size)
        return weights if weights.any() else None

    def _split(self, prefix: str, metric: str, keep: list[NDArray[np.bool_]]) -> None:
        sides = []
        for i, arm in enumerate(self.arms):
            values, bucket = arm.column(metric), self._buckets(i)
            known = keep[i] & ~np.isnan(values)
            sides.append({str(name): values[known & (bucket == name)] for name in np.unique(bucket[known])})
        common = [
            name
            for name in sides[0]
            if len(sides[0][name]) >= BUCKET_ROWS and len(sides[1].get(name, ())) >= BUCKET_ROWS
        ]
        split = mix_within({k: sides[0][k] for k in common}, {k: sides[1][k] for k in common}, 0.99)
        if split is not None:
            self.splits[f"{prefix}{metric}.p99"] = {
                "mix_ms": split.mix,
                "within_ms": split.within,
                "total_ms": split.total,
            }

    def headlines(self) -> list[Headline]:
        """The statistics of the verdict, the most telling first; a quantile lower than p99 where n asks for it."""
        out: list[Headline] = []
        scope = self.interactive_scope
        for metric in _HEADLINE:
            self._add(out, scope, self.told(metric), interactive=True, decisive=metric in ("longest_wait_ms", "e2e_ms"))
        for name in self.classes.names:
            if name not in self.classes.interactive:
                for metric in _OTHERS:
                    self._add(out, name, self.told(metric), interactive=False, decisive=False)
        if out and not any(item.decisive for item in out):
            out[0] = out[0]._replace(decisive=True)  # a source that holds neither: what it holds must do
        return out

    def _add(self, out: list[Headline], scope: str, metric: str, *, interactive: bool, decisive: bool) -> None:
        prefix = f"{scope}/" if scope else ""
        for p in _LADDER:
            name = f"{prefix}{metric}.p{p * 100:g}"
            delta = self.metrics.get(name)
            if delta is not None and supported(p, min(delta.n_a, delta.n_b)):
                out.append(Headline(name, interactive, decisive, delta, self.changes[name]))
                if p == _LADDER[0] and interactive:
                    decisive = False  # the p95 beside it: it may decide a change, equality is told of the p99
                    continue
                break
        top = f"{prefix}{metric}.p{_LADDER[0] * 100:g}"
        if interactive and top in self._doubtless and out and out[-1].name.startswith(f"{prefix}{metric}."):
            out.append(Headline(top, interactive, decisive=False, delta=self.metrics[top], change=self.changes[top]))


def _rests_on(change: QuantileChange) -> str:
    """How few samples an unsupported quantile rests on."""
    n = min(change.n_a, change.n_b)
    if supported(change.p, n):
        return ""
    above = max(1, math.floor(n * (1.0 - change.p) + 1e-9))
    return f"rests on {above} sample{'' if above == 1 else 's'}"
