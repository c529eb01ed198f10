"""MIX_SHIFT: the tail grew because other traffic came, not because anything became slower."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from tailrace.analyze.attribution.mix_split import NAMED_SHARE, MixSplit
from tailrace.diagnose.arm_evidence.longer_on_arms import longer_on_arms
from tailrace.diagnose.arm_evidence.mix_on_arms import mix_on_arms
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.heavier_mix import heavier_mix
from tailrace.diagnose.series_evidence.mix_in_requests import mix_in_requests
from tailrace.diagnose.shorter_prompts import shorter_prompts_of
from tailrace.model.finding import Evidence, Finding

__all__ = ["MixShift"]

_NAMES = {"ttft": "TTFT", "e2e": "E2E"}


class MixShift(Cause):
    """The mix part of the change of a p99 is larger than the part within equal requests."""

    code: ClassVar[str] = "MIX_SHIFT"
    stage: ClassVar[str] = "ingress"
    needs: ClassVar[tuple[str, ...]] = ("a window from before", "prompt, output or audio lengths")
    disproof: ClassVar[str] = "With B weighted to the traffic of A the p99 is still as high."
    only_with_before: ClassVar[bool] = True

    def observe(self, observed: Observed) -> Finding | None:
        """From a table with a row a class, and from two arms with a row a request."""
        return mix_on_arms(self, observed) or mix_in_requests(self, observed) or longer_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """For TTFT and E2E: mix above within, above a tenth of the p99, and its interval above 0."""
        found = [item for metric in _NAMES if (item := self._metric(evidence, metric)) is not None]
        whole = heavier_mix(self, evidence)
        first = max(found, key=lambda item: item.explains_ms or 0.0, default=None)
        if first is None or whole is None:
            return first or whole
        work = [item for item in whole.evidence if item.name == "work"]
        return msgspec.structs.replace(first, evidence=[*first.evidence, *work])

    def _metric(self, evidence: EvidenceSet, metric: str) -> Finding | None:
        split = evidence.attributed.split(metric)
        if split is None:
            return None
        # Kinds that only B has are other traffic too; what they did to the quantile is exact, not resampled.
        mix = split.mix.value + split.traffic
        new = split.traffic > NAMED_SHARE * split.a
        if mix <= abs(split.within.value) or mix < NAMED_SHARE * split.a or not (split.mix.low > 0 or new):
            return None
        before = evidence.before
        assert before is not None
        lengths = all(
            not np.isnan(side.tokens).all() or not np.isnan(side.done.column("audio_seconds")).all()
            for side in (before, evidence.now)
        )
        missing = [] if lengths else ["prompt lengths (only lanes are known)"]
        name = f"{_NAMES[metric]} p{split.p * 100:g}"
        within = f"{split.within.value:+.0f} ms"
        return self.finding(
            statement=f"{name} rose from {split.a:.0f} to {split.b:.0f} ms because the traffic changed: the mix "
            f"explains {mix:+.0f} ms, the same requests became {within}.",
            evidence=[
                Evidence(
                    text=f"{name} {split.a:.0f} -> {split.b:.0f} ms: mix {mix:+.0f} ms (95 % interval of the shares' "
                    f"part {split.mix.low:+.0f} to {split.mix.high:+.0f}), within {within} "
                    f"({split.within.low:+.0f} to {split.within.high:+.0f})",
                    source=f"record:{metric}_ns by kind of traffic",
                    name="mix_ms",
                    value=round(mix, 1),
                    unit="ms",
                ),
                *_moved(split),
                Evidence(
                    text=f"the mean went from {split.mean_a:.0f} to {split.mean_b:.0f} ms",
                    source=f"record:{metric}_ns",
                    name="mean_ms",
                    value=round(split.mean_b, 1),
                    unit="ms",
                ),
            ],
            explains_ms=mix,
            relation=f"mix {mix:+.0f} + within {split.within.value:+.0f} = {split.b - split.a:+.0f} ms",
            n=split.n_b,
            advice="Give the traffic that grew a lane with its own limits, or capacity for the new mix; "
            + (
                f"equal requests became slower besides ({within}): look for that apart from it"
                if split.within.low > 0
                else "nothing became slower, so do not tune the engine for it"
            )
            + f". Where prompts grew: {shorter_prompts_of(evidence.now)}",
            price="The lane that is limited waits longer.",
            verify="tailrace compare before.run after.run  # it weights B to the traffic of A",
            missing=missing,
            disproof_checked=[f"within equal requests the {name} changed by {within}"],
        )


def _moved(split: MixSplit) -> list[Evidence]:
    out = []
    if split.grown is not None:
        out.append(
            Evidence(
                text=f"the share of {split.grown.name} went from {split.grown.share_a:.1%} to "
                f"{split.grown.share_b:.1%}",
                source="record:lane, record:prompt_tokens, record:output_tokens, record:audio_seconds",
                name="share",
                value=round(split.grown.share_b, 4),
            )
        )
    if split.new:
        name = max(split.new, key=lambda one: (split.new[one], one))
        out.append(
            Evidence(
                text=f"new: {name}, {split.new[name]:.1%} of the requests (before fewer than 30)",
                source="record:prompt_tokens",
                name="new_share",
                value=round(split.new[name], 4),
            )
        )
    return out
