"""MIX_SHIFT: the tail grew because other traffic came, not because anything became slower."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.decomposition import BUCKET_ROWS, MixWithin, mix_within

__all__ = ["MixShift"]

Floats = NDArray[np.float64]

_EDGES: Final = (0, 256, 1024, 4096, 16384)
_OUTPUT_EDGES: Final = (0, 64, 256, 1024)
_DRAWS: Final = 100
NAMED_SHARE: Final = 0.10


def _buckets(window: Window, metric: str) -> dict[str, Floats]:
    values = window.done.ms(metric)
    prompt = np.searchsorted(_EDGES, np.nan_to_num(window.tokens, nan=-1.0), side="right")
    key = np.char.add(window.done.column("lane").astype(str), np.char.add("|", prompt.astype(str)))
    if metric == "e2e":
        output = np.searchsorted(
            _OUTPUT_EDGES, np.nan_to_num(window.done.column("output_tokens"), nan=-1.0), side="right"
        )
        key = np.char.add(key, np.char.add("|", output.astype(str)))
    known = ~np.isnan(values)
    return {str(name): values[known & (key == name)] for name in np.unique(key[known])}


def _split(a: dict[str, Floats], b: dict[str, Floats]) -> MixWithin | None:
    names = [name for name in a if min(len(a[name]), len(b.get(name, ()))) >= BUCKET_ROWS]
    return mix_within({name: a[name] for name in names}, {name: b[name] for name in names}, 0.99)


class MixShift(Cause):
    """The mix part of the change of a p99 is larger than the part within equal requests."""

    code: ClassVar[str] = "MIX_SHIFT"
    stage: ClassVar[str] = "ingress"
    needs: ClassVar[tuple[str, ...]] = ("a window from before", "prompt and output lengths")
    disproof: ClassVar[str] = "With B weighted to the traffic of A the p99 is still as high."
    only_with_before: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """For TTFT and E2E: mix above within, above a tenth of the p99, and its interval above 0."""
        before = evidence.before
        if before is None or not before.n or not evidence.now.n:
            return None
        found = [item for item in (self._metric(evidence, before, metric) for metric in ("ttft", "e2e")) if item]
        return max(found, key=lambda item: item.explains_ms or 0.0, default=None)

    def _metric(self, evidence: EvidenceSet, before: Window, metric: str) -> Finding | None:
        window = evidence.now
        a, b = _buckets(before, metric), _buckets(window, metric)
        split = _split(a, b)
        if split is None or split.mix <= abs(split.within) or split.mix < NAMED_SHARE * split.a:
            return None
        low, high = self._interval(a, b)
        if low <= 0:
            return None
        n_a, n_b = sum(map(len, a.values())), sum(map(len, b.values()))
        moved = max(set(a) & set(b), key=lambda name: len(b[name]) / n_b - len(a[name]) / n_a)
        shares = (len(a[moved]) / n_a, len(b[moved]) / n_b)
        known = [not np.isnan(side.tokens).all() for side in (before, window)]
        missing = [] if all(known) else ["prompt lengths (only lanes are known)"]
        lane, _, place = moved.partition("|")
        bucket = f"lane {lane}" + (f", prompts of {_edge(int(place.split('|')[0]))} tokens" if all(known) else "")
        name = {"ttft": "TTFT", "e2e": "E2E"}[metric]
        return self.finding(
            statement=f"{name} p99 rose from {split.a:.0f} to {split.b:.0f} ms because the traffic changed: the mix "
            f"explains {split.mix:+.0f} ms, the same requests became {split.within:+.0f} ms.",
            evidence=[
                Evidence(
                    text=f"p99 {split.a:.0f} -> {split.b:.0f} ms: mix {split.mix:+.0f} ms (95 % interval {low:+.0f} to "
                    f"{high:+.0f}), within {split.within:+.0f} ms",
                    source=f"record:{metric}_ns by bucket",
                    name="mix_ms",
                    value=round(split.mix, 1),
                    unit="ms",
                ),
                Evidence(
                    text=f"the share of {bucket} went from {shares[0]:.1%} to {shares[1]:.1%}",
                    source="record:prompt_tokens",
                    name="share",
                    value=round(shares[1], 4),
                ),
            ],
            explains_ms=split.mix,
            relation=f"mix {split.mix:+.0f} + within {split.within:+.0f} = {split.total:+.0f} ms",
            n=n_b,
            advice="Give the traffic that grew a lane with its own limits, or capacity for the new mix; nothing became "
            "slower, so do not tune the engine for it.",
            price="The lane that is limited waits longer.",
            verify="tailrace compare before.run after.run (it weights B to the traffic of A)",
            missing=missing,
            disproof_checked=[f"within equal requests the p99 changed by {split.within:+.0f} ms"],
        )

    @staticmethod
    def _interval(a: dict[str, Floats], b: dict[str, Floats]) -> tuple[float, float]:
        rng = np.random.default_rng(20)
        draws = []
        for _ in range(_DRAWS):
            sides = []
            for side in (a, b):
                names, sizes = list(side), np.array([len(side[name]) for name in side])
                counts = rng.multinomial(int(sizes.sum()), sizes / sizes.sum())
                sides.append({name: rng.choice(side[name], count) for name, count in zip(names, counts, strict=True)})
            split = _split(*sides)
            if split is not None:
                draws.append(split.mix)
        if not draws:
            return 0.0, 0.0
        low, high = np.quantile(draws, (0.025, 0.975))
        return float(low), float(high)


def _edge(place: int) -> str:
    if place == 0:
        return "unknown"
    low = _EDGES[place - 1]
    return f"{low}+" if place == len(_EDGES) else f"{low}-{_EDGES[place] - 1}"
