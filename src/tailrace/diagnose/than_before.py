"""Whether a cause takes more of this window than of the one before: how a system always is does not make it worse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.blocks_of_time import grown, in_order
from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.symptoms import symptoms
from tailrace.model.finding import Finding
from tailrace.stats.quantiles import quantile, supported

__all__ = ["ThanBefore"]

Floats = NDArray[np.float64]

AS_MUCH: Final = 0.7
MOST: Final = 0.5
UNTESTED: Final = frozenset(
    {"ENGINE_STALL", "COMPUTE_STALL", "SCHED_ADMISSION_DEADLOCK", "COMPUTE_JIT", "LB_SKEW", "LB_HOTSPOT"}
)
"""Causes that happen once, which no number of blocks shows more than once; and those that are told by how the load is
shared out, whatever time is lost so."""


class ThanBefore:
    """The window before, judged by the same rules; built when the first is asked for."""

    def __init__(self, evidence: EvidenceSet, causes: Sequence[Cause], broken: BrokenRules) -> None:
        self._evidence = evidence
        self._broken = broken
        self._causes = {cause.code: cause for cause in causes}
        self._earlier: EvidenceSet | None = None
        self._found: dict[str, Finding | None] = {}

    @property
    def earlier(self) -> EvidenceSet | None:
        """What is known of the window before, as a window of its own."""
        given = self._evidence
        if self._earlier is None and given.before_table is not None:
            self._earlier = EvidenceSet(given.before_table, objectives=given.objectives, sources=given.sources)
        return self._earlier

    @property
    def was_well(self) -> bool:
        """Whether the window before kept its promises."""
        return self.earlier is not None and not symptoms(self.earlier)

    def as_before(self, finding: Finding) -> bool:
        """Whether the same cause explains about as much of the window before."""
        found = self._judged(finding.code)
        return found is not None and (found.explains_ms or 0.0) >= AS_MUCH * (finding.explains_ms or 0.0)

    def grew(self, finding: Finding) -> bool | None:
        """Whether what the cause explains by request grew beyond chance: Welch's t over blocks of time, one-sided.

        `None` where that cannot be tested: see `UNTESTED`, and some rules compare the windows
        themselves instead of saying what each request lost.
        """
        both = self._explained(finding.code)
        return None if both is None else grown(*both)

    def rose(self, finding: Finding) -> bool:
        """Whether requests lost clearly more to it than before on average, be it by chance."""
        both = self._explained(finding.code)
        return both is not None and AS_MUCH * float(both[1].mean()) > float(both[0].mean())

    def took_most_of(self, finding: Finding, rise_ms: float) -> bool:
        """Whether what the cause explains of the tail rose by at least half of `rise_ms`, which a metric rose by: of
        the slowest requests, or of those that lost most to it (a gap is late in an answer of any length).
        """
        found = self._judged(finding.code)
        if rise_ms <= 0.0 or found is None or finding.explains_ms is None or found.explains_ms is None:
            return False
        both = self._explained(finding.code)
        most = 0.0 if both is None else _more_at_most(*both)
        return max(finding.explains_ms - found.explains_ms, most) >= MOST * rise_ms

    def _explained(self, code: str) -> tuple[Floats, Floats] | None:
        """What each request of the window before and of this one lost to the cause, in order of time."""
        earlier, now = self.earlier, self._evidence.now.explained.get(code)
        if earlier is None or code in UNTESTED or now is None:
            return None
        self._judged(code)
        old = earlier.now.explained.get(code, np.zeros(earlier.now.n))
        return in_order(earlier.now, old), in_order(self._evidence.now, now)

    def _judged(self, code: str) -> Finding | None:
        earlier = self.earlier
        if earlier is None:
            return None
        if code not in self._found:
            self._found[code] = self._broken.ask(code, partial(_judge, self._causes[code], earlier))
        return self._found[code]


def _more_at_most(before: Floats, now: Floats) -> float:
    """By how much more those lose that lose most (ms): the largest rise of p95 or p99 of what each request lost."""
    asked = [p for p in (0.95, 0.99) if supported(p, min(before.size, now.size))]
    return max((quantile(now, p) - quantile(before, p) for p in asked), default=0.0)


def _judge(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    return None if cause.cannot_run(evidence) else cause.judge(evidence)
