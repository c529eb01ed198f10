"""Whether a cause takes more of this window than of the one before: how a system always is does not make it worse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.symptoms import symptoms
from tailrace.diagnose.window import Window
from tailrace.model.finding import Finding
from tailrace.stats.student import t_quantile

__all__ = ["ThanBefore", "grown"]

Floats = NDArray[np.float64]

AS_MUCH: Final = 0.7
MOST: Final = 0.5
BLOCKS: Final = 20
"""Of time: requests of one burst lose their time together, and single ones would count it several times."""
ERRORS: Final = 0.001
"""Chance of one rule to find more than before where nothing changed. Some eighty rules look at each window: together
fewer than one window in ten has one, and only a window that differs anyway is asked."""
RANKS: Final = 3.29
"""The normal deviate of half of `ERRORS`."""
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
        """Whether what the cause explains of the tail rose by at least half of `rise_ms`, which a metric rose by."""
        found = self._judged(finding.code)
        if rise_ms <= 0.0 or found is None or finding.explains_ms is None or found.explains_ms is None:
            return False
        return finding.explains_ms - found.explains_ms >= MOST * rise_ms

    def _explained(self, code: str) -> tuple[Floats, Floats] | None:
        """What each request of the window before and of this one lost to the cause, in order of time."""
        earlier, now = self.earlier, self._evidence.now.explained.get(code)
        if earlier is None or code in UNTESTED or now is None:
            return None
        self._judged(code)
        old = earlier.now.explained.get(code, np.zeros(earlier.now.n))
        return _in_order(earlier.now, old), _in_order(self._evidence.now, now)

    def _judged(self, code: str) -> Finding | None:
        earlier = self.earlier
        if earlier is None:
            return None
        if code not in self._found:
            self._found[code] = self._broken.ask(code, partial(_judge, self._causes[code], earlier))
        return self._found[code]


def _judge(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    return None if cause.cannot_run(evidence) else cause.judge(evidence)


def grown(before: Floats, now: Floats) -> bool | None:
    """Whether `now` is above `before` beyond chance (one-sided, `ERRORS`), both in order of time: by Welch's test of
    block means, or by their ranks (Mann and Whitney's test), which a few blocks that lost very much do not blunt. Each
    has half of the errors. `None` where there are too few for blocks.
    """
    if min(before.size, now.size) < 2 * BLOCKS:
        return None
    a, b = (np.array([part.mean() for part in np.array_split(side, BLOCKS)]) for side in (before, now))
    variances = [float(side.var(ddof=1)) / BLOCKS for side in (a, b)]
    difference = float(b.mean() - a.mean())
    if not any(variances):
        return difference > 0.0
    freedom = sum(variances) ** 2 / sum(value**2 / (BLOCKS - 1) for value in variances)
    by_mean = difference > t_quantile(1.0 - ERRORS / 2, freedom) * float(np.sqrt(sum(variances)))
    return by_mean or _ranked(a, b) > RANKS


def _ranked(a: Floats, b: Floats) -> float:
    """Mann and Whitney's z: how often a block of `b` is above one of `a`, ties half, by the normal approximation."""
    above = float((b[:, None] > a[None, :]).sum()) + 0.5 * float((b[:, None] == a[None, :]).sum())
    n = a.size + b.size
    _, ties = np.unique(np.concatenate([a, b]), return_counts=True)
    spread = a.size * b.size / 12.0 * (n + 1.0 - float((ties**3 - ties).sum()) / (n * (n - 1.0)))
    return (above - a.size * b.size / 2.0) / max(float(np.sqrt(spread)), 1e-9)


def _in_order(window: Window, values: Floats) -> Floats:
    ordered: Floats = values[np.argsort(window.start, kind="stable")]
    return ordered
