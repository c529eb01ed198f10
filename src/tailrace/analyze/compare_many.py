"""Several arms: each against the baseline, with what several looks allow, and a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.arms import ArmData, Source
from tailrace.analyze.compare import compare, prepare
from tailrace.analyze.verdict_words import name_words
from tailrace.model.measurement import Comparison, ComparisonSet, RankedArm, Verdict
from tailrace.model.thresholds import Objectives
from tailrace.stats.tests import holm

__all__ = ["compare_many"]

_DECIDED: Final = (Verdict.IMPROVED, Verdict.REGRESSED)
_WORST_FIRST: Final = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.NO_DIFFERENCE)
LEVEL: Final = 0.05


def compare_many(
    arms: Mapping[str, Source | Sequence[Source]],
    *,
    baseline: str = "",
    objectives: Objectives | None = None,
    dropped: Mapping[str, float] | None = None,
    rng: np.random.Generator | None = None,
) -> ComparisonSet:
    """Compare each arm with `baseline` (the first one without it). KeyError for a baseline that is no arm.

    An arm is called improved or regressed if its deciding p-value survives Holm's step-down test over all arms at 5 %:
    ten arms without an effect together are called different as rarely as one.
    """
    names = list(arms)
    base = baseline or names[0]
    lost = dropped or {}
    ready = {name: prepare(source, name, dropped=lost.get(name, 0.0)) for name, source in arms.items()}
    found = {
        name: compare(ready[base], ready[name], objectives=objectives, rng=rng, names=(base, name))
        for name in names
        if name != base
    }
    found = _corrected(found)
    metric = _common_metric(found)
    verdict = next((one for one in _WORST_FIRST if any(c.verdict is one for c in found.values())), Verdict.INCONCLUSIVE)
    ranking = _ranking(base, ready[base], found, metric)
    return ComparisonSet(
        verdict=verdict,
        summary=_summary(base, found, ranking, metric),
        baseline=base,
        correction="holm",
        comparisons=found,
        ranking=ranking,
        metric=metric,
    )


def _corrected(found: Mapping[str, Comparison]) -> dict[str, Comparison]:
    decided = [name for name, one in found.items() if one.verdict in _DECIDED and one.p_value is not None]
    # All arms are looked at, so all of them count, whether they were decided or not.
    p_values = [found[name].p_value if name in decided else 1.0 for name in found]
    kept = dict(zip(found, holm([1.0 if p is None else p for p in p_values], LEVEL), strict=True))
    out = {}
    for name, one in found.items():
        if name in decided and not kept[name]:
            one = msgspec.structs.replace(  # noqa: PLW2901
                one,
                verdict=Verdict.INCONCLUSIVE,
                observed=one.verdict,
                summary=f"Inconclusive among {len(found)} arms (p = {one.p_value:.3g} does not survive Holm's "
                f"correction). Alone it would be: {one.summary}",
            )
        out[name] = one
    return out


def _common_metric(found: Mapping[str, Comparison]) -> str:
    """The first headline that every comparison with metrics has; empty where there is none."""
    told = [one for one in found.values() if one.metrics]
    if not told:
        return ""
    for name in told[0].headline:
        if all(name in one.metrics for one in told):
            return name
    return ""


def _ranking(base: str, first: ArmData, found: Mapping[str, Comparison], metric: str) -> list[RankedArm]:
    """By verdict, and among arms of one verdict by the metric; equal verdicts other than `improved` or `regressed`
    share the baseline's rank, since nobody could tell them from it.
    """
    value = next((one.metrics[metric].a for one in found.values() if metric in one.metrics), None)
    total = max(len(first.every), 1)
    rows = [
        RankedArm(
            name=base,
            rank=0,
            n=len(first.every),
            verdict=None,
            value_ms=value,
            failed_share=round(first.failed / total, 6),
        )
    ]
    for name, one in found.items():
        delta = one.metrics.get(metric)
        rows.append(
            RankedArm(
                name=name,
                rank=0,
                n=one.n_b,
                verdict=one.verdict,
                value_ms=None if delta is None else delta.b,
                failed_share=one.failed_share[1] if one.failed_share else 0.0,
                comparable=not one.refused,
            )
        )

    def place(row: RankedArm) -> int:
        return {Verdict.IMPROVED: 0, Verdict.REGRESSED: 2}.get(row.verdict or Verdict.NO_DIFFERENCE, 1)

    rows.sort(key=lambda row: (not row.comparable, place(row), float("inf") if row.value_ms is None else row.value_ms))
    out: list[RankedArm] = []
    for i, row in enumerate(rows):
        shared = bool(out) and place(row) == 1 == place(out[-1]) and row.comparable == out[-1].comparable
        out.append(msgspec.structs.replace(row, rank=out[-1].rank if shared else i + 1))
    return out


def _summary(base: str, found: Mapping[str, Comparison], ranking: Sequence[RankedArm], metric: str) -> str:
    groups = []
    for verdict in (Verdict.IMPROVED, Verdict.REGRESSED, Verdict.NO_DIFFERENCE, Verdict.INCONCLUSIVE):
        names = [name for name, one in found.items() if one.verdict is verdict]
        if names:
            groups.append(f"{str(verdict).replace('_', ' ')}: {', '.join(names)}")
    text = f"Against {base}: " + "; ".join(groups) + "."
    best = ranking[0]
    if best.verdict is Verdict.IMPROVED and best.value_ms is not None:
        text += f" Best is {best.name} ({name_words(metric)}: {best.value_ms:.0f} ms)."
    return text
