"""CLIENT_SLOW_READER: the client does not take its answer; the engine is not to blame."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.reader_on_arms import reader_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.proxy_stages import client_in_access
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.series_evidence.slow_reader_in_chunks import slow_reader_in_chunks
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.stats.quantiles import median, or_zero

__all__ = ["SlowReader"]

SHARE: Final = 0.3
GAPS_EQUAL: Final = 1.5
LEAST_BESIDE: Final = 3
"""Requests that ran beside the slow readers, from which on only they are compared with them: how many streams share a
step sets the pace of all of them.
"""


class SlowReader(Cause):
    """The `response` stage carries the excess while the engine's own gaps are normal."""

    code: ClassVar[str] = "CLIENT_SLOW_READER"
    stage: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = ("records of the gateway (client blocked)", "upstream gaps")
    disproof: ClassVar[str] = "The engine's own gaps are longer for the requests whose readers were slow."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Only a gateway stands between engine and client."""
        known = ~np.isnan(evidence.now.done.column("response_ns"))
        return "" if known.any() else "records of the gateway (time in which the client held it up)"

    def observe(self, observed: Observed) -> Finding | None:
        """From a table of chunks with stamps on both sides, or of stages; from nginx's access log."""
        chunks, arms = slow_reader_in_chunks(self, observed), reader_on_arms(self, observed)
        return surest([chunks, arms, client_in_access(self, observed)])

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Response time above 30 % of what the tail lost, with normal upstream gaps."""
        window = evidence.now
        if self.cannot_run(evidence) or not window.n:
            return None
        response = window.lost.response
        explains = window.explain(self.code, response)
        if explains < SHARE * window.tail_lost_ms or not self.carries(evidence, explains):
            return None
        blocked = response > 50.0
        # Gaps are longer where the gateway stopped reading for a slow client; the decode stage leaves that out.
        gap = window.done.ms("decode") / np.maximum(window.done.column("output_tokens") - 1.0, 1.0)
        usual = window.done.ms("chunk_gap_p50")
        gap = np.where(np.isnan(usual), np.nan, np.where(np.isnan(gap), usual, gap))
        paced = ~np.isnan(gap)
        beside = paced & ~blocked & _beside(window, blocked)
        together = int(beside.sum()) >= LEAST_BESIDE
        theirs, others = gap[blocked & paced], gap[beside if together else paced & ~blocked]
        missing, facts, checked = [], [], []
        if theirs.size and others.size:
            ratio = median(theirs) / max(median(others), 1e-9)
            whose = "one of those that ran beside them" if together else "one of the others'"
            checked.append(f"a token of theirs takes the engine {ratio:.2f} x as long as {whose}")
            if ratio > GAPS_EQUAL:
                return None
            facts.append(Evidence(text=checked[0], source="record:decode_ns", name="gap_ratio", value=round(ratio, 3)))
        else:
            missing.append("upstream gaps of slow and normal readers")
        return self.finding(
            statement=f"{int(blocked.sum())} clients read their answers slowly: the slowest requests lost "
            f"{explains:.0f} of {window.tail_lost_ms:.0f} ms waiting for them.",
            evidence=[
                Evidence(
                    text=f"{int(blocked.sum())} of {window.n} requests were held up by their client for over 50 ms",
                    source="record:response_ns",
                    name="blocked",
                    value=float(blocked.sum()),
                ),
                Evidence(
                    text=f"the slowest interactive requests lost {explains:.0f} of {window.tail_lost_ms:.0f} ms so",
                    source="record:response_ns",
                    name="explains_ms",
                    value=round(explains, 1),
                    unit="ms",
                ),
                *facts,
            ],
            explains_ms=explains,
            relation=f"response / lost = {explains:.0f} / {window.tail_lost_ms:.0f} ms = "
            f"{explains / max(window.tail_lost_ms, 1e-9):.0%} in the tail",
            n=int(blocked.sum()),
            advice="Look at those clients (buffer, network, rendering while reading); the engine is not to blame.",
            price="None at the server.",
            verify="tailrace diagnose http://127.0.0.1:9480  # after the client was changed",
            missing=missing,
            disproof_checked=checked,
        )


def _beside(window: Window, blocked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows whose tokens came while the engine made some for a row of `blocked`."""
    first = np.where(np.isnan(window.first), window.start, window.first)
    engine_ms = window.done.ms("e2e") - or_zero(window.done.ms("response"))
    last = np.maximum(first, window.start + or_zero(engine_ms) * 1e6)
    begun = np.searchsorted(np.sort(first[blocked]), last, side="right")
    ended = np.searchsorted(np.sort(last[blocked]), first, side="left")
    return np.asarray(begun > ended)
