"""INSUFFICIENT_EVIDENCE of numbers that contradict each other, or of which too many were lost on their way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from tailrace.diagnose.arms.as_written import shown
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.validity.bench_load import waves_of
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.lost_on_the_way import MOST, lost_on_the_way
from tailrace.diagnose.observed import Arm, Observed
from tailrace.model.finding import Action, Finding

__all__ = ["Contradiction"]

APART: Final = 1.3
"""Two ways to one number that differ by more than this factor do not speak of one run."""
_MOST: Final = 3


class Contradiction(Cause):
    """n, duration and rate of one run disagree; it holds more requests at once than it was allowed; records, spans or
    samples were dropped before anybody could read them.
    """

    code: ClassVar[str] = "INSUFFICIENT_EVIDENCE"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("numbers of one run that agree",)
    disproof: ClassVar[str] = "The numbers are of different runs or windows."
    action: ClassVar[Action] = Action.COLLECT
    ends: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Records that were dropped on their way."""
        if evidence.dropped <= MOST:
            return None
        return self.insufficient(
            f"all records: {evidence.dropped:.1%} of them were dropped, above 1 % nothing is concluded"
        )

    def forbids(self, evidence: EvidenceSet) -> bool:
        """Always: those that are missing are not missing at random."""
        return evidence.dropped > MOST

    def observe(self, observed: Observed) -> Finding | None:
        """What was dropped by an exporter; what contradicts what, with the arithmetic."""
        found = lost_on_the_way(observed)
        found += [text for arm in observed.arms for text in contradictions(arm)]
        return self.insufficient(*found[:_MOST]) if found else None


def contradictions(arm: Arm) -> Iterator[str]:
    """Each identity that does not hold among the numbers of one arm."""
    n, duration = arm.get("n"), arm.get("duration")
    for rate, total, words in (
        (arm.get("req_s"), n, "requests"),
        (arm.get("output_tok_s"), arm.get("total_output_tokens"), "output tokens"),
    ):
        if rate and total and duration and not 1.0 / APART <= total / duration / rate <= APART:
            yield (
                f"which number of {arm.name} holds, they contradict each other: {total:g} {words} / {duration:g} s = "
                f"{total / duration:.4g}/s, but {rate:g}/s is written"
            )
    limit, rate = arm.get("concurrency"), arm.get("req_s")
    whole = arm.get("e2e", "mean")
    # A run whose TTFT is the wait for its own gate holds no contradiction: its clock starts before the gate.
    gated = waves_of(arm, n, limit) is not None
    if limit and rate and whole is not None and not gated and rate * whole / 1e3 > APART * limit:
        yield (
            f"which number of {arm.name} holds, they contradict each other: {rate:g}/s x {shown(whole, 'ms')} = "
            f"{rate * whole / 1e3:.3g} at once (Little's law), but at most {limit:g} were allowed"
        )
