"""SCHED_PREFILL_STEALS_DECODE: a long prompt's prefill occupies the step, and every stream waits for it."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arm_evidence.steals_on_arms import steals_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.log_evidence.prefill import prefill_in_load, prefill_in_steps
from tailrace.diagnose.log_evidence.prefill_runs import prefill_runs
from tailrace.diagnose.log_evidence.stated_prefill import prefill_beside_requests, prefill_stated
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.prefill_gaps import prefill_gaps, stops_are_new
from tailrace.diagnose.prefill_stalls import PrefillStalls, prefill_stalls
from tailrace.diagnose.series_evidence.chunk_long_stops import chunk_long_stops
from tailrace.diagnose.series_evidence.gaps_in_prefills import gaps_in_prefills
from tailrace.diagnose.shorter_prompts import shorter_prompts_of
from tailrace.model.finding import Evidence, Finding

__all__ = ["PrefillStealsDecode"]

COVERED: Final = 0.5
"""Less of the stall time than this inside prefills, and something else makes the stalls."""
SHARED: Final = 0.5
"""A prefill that takes the whole step stops every stream; one stream in two is the least that fits."""
MIN_PREFILLS: Final = 3
STALLING: Final = 0.3
"""Share of the long prefills that stop somebody; with chunks of a sensible size hardly one does."""
WHOLE: Final = 0.5
CHUNK_STALL_MS: Final = 500.0
"""The prompt is computed in (about) one step: a stall fills half of its prefill. A stall that fills less is one chunk
of many, and chunking is at fault only when a single chunk stops the streams for half a second, or where long prompts
came before as well and their chunks stopped hardly anybody."""
FIT: Final = 0.35
"""Largest median error of gap = tokens / rate for the relation to hold."""
_PRICE: Final = (
    "The first token of long prompts comes later, because their prefill now shares each step; the chunk gap p95 of all "
    "streams rises a little while its maximum falls."
)


class PrefillStealsDecode(Cause):
    """Simultaneous gaps in the streams that lie inside the prefill of one long prompt, as long as that prefill."""

    code: ClassVar[str] = "SCHED_PREFILL_STEALS_DECODE"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "timelines",
        "prompt tokens",
        "prefill times from the engine",
        "KV usage or the preemption counter",
    )
    disproof: ClassVar[str] = (
        "KV usage at 98 % or preemptions in the same window, or stalls of the same size while no long prompt is in "
        "prefill."
    )

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines, or the engine's own prefill times, and some prompt lengths."""
        if not evidence.now.gaps.rows and not evidence.now.reported:
            return "timelines of streams (none was kept)"
        if not evidence.now.long.any():
            return "prompt lengths"
        return ""

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Stalls inside prefills, shared by the streams, gap in proportion to the prompt."""
        if self.cannot_run(evidence):
            return None
        return self._in_timelines(evidence) or self._in_longest_gaps(evidence)

    def _in_timelines(self, evidence: EvidenceSet) -> Finding | None:
        window = evidence.now
        if not window.stalls.row.size:
            return None
        found = prefill_stalls(window)
        # Most streams keep no timeline, and lost as much by their longest gap.
        short = prefill_gaps(window)
        lost = found.excess_by_row if short is None else np.maximum(found.excess_by_row, short.lost)
        explains = window.explain(self.code, lost)
        relation = found.relation
        if (
            found.stalling < MIN_PREFILLS
            or found.covered_share < COVERED
            or found.covered_share < min(0.95, 1.5 * found.chance_share)
            or found.streams_hit < SHARED
            or found.stalling < STALLING * found.prefills
            or (found.fill < WHOLE and found.stall_ms < CHUNK_STALL_MS and not stops_are_new(evidence.before, window))
            or not self.carries(evidence, explains)
        ):
            return None
        if not window.prefills.reported and (relation is None or relation.error > FIT):
            # Without the engine's own word the prompt-to-gap proportion is what tells this from other stalls.
            return None
        missing, rivals = self._weigh(evidence)
        checked = [f"{1 - found.covered_share:.0%} of the stall time lies outside long prefills"]
        return self.finding(
            statement=self._statement(evidence, found),
            evidence=self._evidence(evidence, found, explains),
            explains_ms=explains,
            relation=self._relation(found),
            n=found.stalling,
            advice=f"{self._advice(evidence)} {shorter_prompts_of(evidence.now)}",
            price=_PRICE,
            verify=evidence.verify_command,
            missing=missing,
            rivals=rivals,
            disproof_checked=[*checked, *self._cache(evidence)],
        )

    def _in_longest_gaps(self, evidence: EvidenceSet) -> Finding | None:
        """Stops that are too short to keep a timeline: each stream's longest gap against others' prefills."""
        window = evidence.now
        found = prefill_gaps(window)
        if found is None or not (found.holds or (found.fits and stops_are_new(evidence.before, window))):
            return None
        size = max(10, round(0.025 * window.n))
        explains = max(window.explain(self.code, found.lost), float(np.sort(found.lost)[-size:].mean()))
        if not self.carries(evidence, explains):
            return None
        missing, rivals = self._weigh(evidence)
        share = f"{found.explained:.0%} of the {found.stopped} streams that stop for {window.stall_ms:.0f} ms or more"
        long = "as long as" if found.holds else f"that lasts {1 / found.fill:.1f} x"
        return self.finding(
            statement=f"The prefill of long prompts stops the streams that are decoding: {share} decoded through a "
            f"prefill {long} their longest gap, {found.gap_ms:.0f} ms each (usual gap {window.median_gap_ms:.0f} ms).",
            evidence=[
                Evidence(
                    f"{share} decoded through a prefill {long} that (within a quarter)",
                    "record:chunk_gap_max_ns, record:prefill_ns",
                    "explained",
                    round(found.explained, 4),
                ),
                Evidence(
                    f"of {found.streams} streams that decoded through such a prefill, the longest gap of "
                    f"{found.agree:.0%} goes with it: {found.gap_ms:.0f} ms at a prefill of {found.prefill_ms:.0f} ms "
                    "(medians)",
                    "record:chunk_gap_max_ns, record:prefill_ns",
                    "agree",
                    round(found.agree, 4),
                ),
                Evidence(
                    f"the usual gap is {window.median_gap_ms:.0f} ms, a long prompt has {found.tokens:,.0f} tokens to "
                    "compute (median)",
                    "record:chunk_gap_p50_ns, record:prompt_tokens",
                    "usual_gap_ms",
                    round(window.median_gap_ms, 1),
                    "ms",
                ),
            ],
            explains_ms=explains,
            relation=f"longest gap / prefill = {found.gap_ms:.0f} / {found.prefill_ms:.0f} ms, {found.fill:.2f} "
            f"(median of {found.streams} streams)",
            n=found.streams,
            advice=f"{self._advice(evidence)} {shorter_prompts_of(window)}",
            price=_PRICE,
            verify=evidence.verify_command,
            missing=missing,
            rivals=rivals,
            disproof_checked=[
                f"{1 - found.explained:.0%} of the streams that stop decoded through no such prefill",
                *self._cache(evidence),
            ],
        )

    def observe(self, observed: Observed) -> Finding | None:
        """From an engine's log: lines a step, or load lines; else from requests, stated numbers, or arms."""
        logged = prefill_in_steps(self, observed) or prefill_in_load(self, observed) or prefill_runs(self, observed)
        told = prefill_beside_requests(self, observed) or prefill_stated(self, observed)
        beside = gaps_in_prefills(self, observed)
        return surest([logged or told or beside, chunk_long_stops(self, observed), steals_on_arms(self, observed)])

    @staticmethod
    def _weigh(evidence: EvidenceSet) -> tuple[list[str], list[str]]:
        """(what is missing, rivals)."""
        missing, rivals = [], []
        if not evidence.now.prefills.reported:
            missing.append("prefill times from the engine (run the gateway before an engine that reports them)")
            rivals.append("FE_EVENTLOOP_BLOCK")
        if evidence.kv_usage is None and evidence.preemptions is None:
            missing.append("KV usage or the preemption counter (two scrapes of /metrics)")
        elif (evidence.kv_usage or 0.0) >= KV_FULL or (evidence.preemptions or 0.0) > 0.05 * max(evidence.now.n, 1):
            rivals.append("SCHED_KV_PREEMPTION")
        return missing, rivals

    @staticmethod
    def _cache(evidence: EvidenceSet) -> list[str]:
        """What was looked at of the KV cache."""
        usage = [] if evidence.kv_usage is None else [f"KV usage at most {evidence.kv_usage:.0%}"]
        return usage if evidence.preemptions is None else [*usage, f"{evidence.preemptions:.0f} preemptions"]

    @staticmethod
    def _statement(evidence: EvidenceSet, found: PrefillStalls) -> str:
        window = evidence.now
        seen = f"{found.relation.seen_ms:.0f} ms" if found.relation else f"over {window.stall_ms:.0f} ms"
        return (
            f"The prefill of long prompts stops the streams that are decoding: {found.covered_share:.0%} of the stall "
            f"time lies inside such prefills, {found.streams_hit:.0%} of the streams stall together, for {seen} each "
            f"time (usual gap {window.median_gap_ms:.0f} ms)."
        )

    @staticmethod
    def _relation(found: PrefillStalls) -> str:
        fit = found.relation
        if fit is None:
            return "gap inside prefill (no prefill ended alone, so the proportion to its length was not fitted)"
        return (
            f"gap = prompt / prefill rate: {fit.tokens:,.0f} tokens / {fit.tokens_a_second:,.0f} tokens/s = "
            f"{fit.predicted_ms:.0f} ms, {fit.seen_ms:.0f} ms seen (median error {fit.error:.0%} over {fit.n} prefills)"
        )

    @staticmethod
    def _evidence(evidence: EvidenceSet, found: PrefillStalls, explains: float) -> list[Evidence]:
        window = evidence.now
        source = "record:prefill_ns" if window.prefills.reported else "timeline (inferred from the first token)"
        out = [
            Evidence(
                text=f"{found.covered_share:.0%} of the stall time lies inside the prefill of a long prompt; chance "
                f"would give {found.chance_share:.0%}",
                source=f"timeline + {source}",
                name="covered_share",
                value=round(found.covered_share, 4),
            ),
            Evidence(
                text=f"{found.streams_hit:.0%} of the {found.streams:.0f} streams that decoded through such a prefill "
                f"stalled together (mean over {found.stalling} of {found.prefills} prefills)",
                source="timeline",
                name="streams_hit",
                value=round(found.streams_hit, 4),
            ),
            Evidence(
                text=f"stalls are gaps over {window.stall_ms:.0f} ms; the usual gap is {window.median_gap_ms:.0f} ms "
                f"(n = {window.gaps.size} gaps of {window.gaps.rows} requests)",
                source="timeline",
                name="stall_threshold_ms",
                value=round(window.stall_ms, 1),
                unit="ms",
            ),
            Evidence(
                text=f"the slowest interactive requests lost {explains:.0f} of {window.tail_lost_ms:.0f} ms this way "
                f"(n = {window.tail.size} of {window.n})",
                source="timeline",
                name="explains_ms",
                value=round(explains, 1),
                unit="ms",
            ),
        ]
        if found.relation is not None:
            out.append(
                Evidence(
                    text=f"a stall lasts {found.relation.seen_ms:.0f} ms at {found.relation.tokens:,.0f} prompt tokens",
                    source="timeline + record:prompt_tokens",
                    name="stall_ms",
                    value=round(found.relation.seen_ms, 1),
                    unit="ms",
                )
            )
        if evidence.kv_usage is not None:
            out.append(
                Evidence(
                    text=f"KV usage was at most {evidence.kv_usage:.0%}",
                    source="record:kv_usage",
                    name="kv_usage",
                    value=round(evidence.kv_usage, 4),
                )
            )
        return out

    @staticmethod
    def _advice(evidence: EvidenceSet) -> str:
        knobs = evidence.knobs
        budget = knobs.get("max_num_batched_tokens")
        # Chunking alone keeps first come, first served: the long prompt fills each step's budget, and short prompts
        # that came after it still wait for the whole of it.
        share = (
            " Cap one prompt's share of a step (long_prefill_token_threshold, about a quarter of the budget), or short "
            "prompts still wait behind the long one. Give long prompts a lane of their own with a small running limit."
        )
        if knobs.get("enable_chunked_prefill") is False:
            return (
                "Switch chunked prefill on (enable_chunked_prefill) with a small step budget "
                "(max_num_batched_tokens 1024)." + share
            )
        if isinstance(budget, int) and knobs.get("enable_chunked_prefill") is True:
            return f"Lower the step budget (max_num_batched_tokens, now {budget}, to {max(256, budget // 4)})." + share
        return (
            "Switch chunked prefill on if it is off (enable_chunked_prefill), else lower the step budget "
            "(max_num_batched_tokens)." + share
        )
