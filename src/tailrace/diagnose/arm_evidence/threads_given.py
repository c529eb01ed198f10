"""FE_CPU_STARVED along a count of threads: above the CPU quota more threads make it slower, not faster.

Threads that outnumber the quota's cores use a period's share up in its first part, and then all of them stand still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, number_stated
from tailrace.diagnose.arms.pairs import Point, sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number
from tailrace.diagnose.observed import Observed, Quoted, Setting
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["OverQuota", "over_quota", "threads_given"]

SLOWER: Final = 1.3
_THREADS: Final = r"\bthreads?\b|num thread|\bthreads? count\b|omp num threads|n_threads|\bt\b(?=\s*=)"
_QUOTA: Final = (
    r"cpu (?:quota|limit)|quota(?: cores| cpus)?$|cpu cores limit|limit cpus?$|limits? cpu|cores allowed|cgroup cpu|"
    r"docker cpus|^cpus?$|^cores$|^vcpus?$"
)
_SPEED: Final = ("output_tok_s", "tok_s", "decode_tok_s", "req_s")
_TIMES: Final = ("tpot", "itl", "ttft", "e2e")


class OverQuota(NamedTuple):
    """The best arm within the quota, and the worst of those with more threads than it has cores."""

    within: Point
    above: Point
    best: Quoted
    worst: Quoted
    quota: float
    said: Setting

    @property
    def ratio(self) -> float:
        """How much slower the arm above the quota is."""
        one, two = self.best.value, self.worst.value
        return one / two if self.best.quantity in _SPEED else two / one

    @property
    def words(self) -> str:
        """Both arms in one sentence part."""
        return (
            f"{self.above.x:g} threads on a quota of {self.quota:g} cores give "
            f"{number(self.worst.value, self.worst.unit)}, {self.within.x:g} threads "
            f"{number(self.best.value, self.best.unit)}: {self.ratio:.3g} x slower"
        )


def over_quota(observed: Observed) -> OverQuota | None:
    """A sweep over threads in which an arm above the quota is slower than one within it."""
    said = number_stated(observed, _QUOTA)
    if said is None or said.number is None or said.number <= 0:
        return None
    quota = said.number
    for name in (*_SPEED, *_TIMES):
        points = sweep(observed, _THREADS, lambda arm, name=name: figure(arm, name) is not None)  # type: ignore[misc]
        told = [(point, found) for point in points if (found := figure(point.arm, name)) is not None]
        within = [one for one in told if one[0].x <= quota]
        above = [one for one in told if one[0].x > quota]
        if not within or not above:
            continue
        more = name in _SPEED
        best = (max if more else min)(within, key=lambda one: one[1].value)
        worst = (min if more else max)(above, key=lambda one: one[1].value)
        if min(best[1].value, worst[1].value) <= 0:
            continue
        both = OverQuota(best[0], worst[0], best[1], worst[1], quota, said)
        if both.ratio >= SLOWER:
            return both
    return None


def threads_given(cause: Cause, observed: Observed) -> Finding | None:
    """The sweep alone; beside a `cpu.stat` it is part of what `throttled` says."""
    if observed.of_counter("nr_throttled"):
        return None
    found = over_quota(observed)
    if found is None:
        return None
    return cause.finding(
        statement=f"More threads than the CPU quota has cores: {found.words}.",
        evidence=[
            evidence_of(found.above.arm, found.worst),
            evidence_of(found.within.arm, found.best),
            evidence_of_setting(found.said),
            Evidence(found.words, str(found.above.arm.place) or "form", "ratio", round(found.ratio, 3)),
        ],
        explains_ms=None,
        relation=f"{found.above.x:g} threads > {found.quota:g} cores; {found.ratio:.3g} x",
        n=2,
        advice=f"Run no more threads than the quota has cores ({found.quota:g}): --threads, OMP_NUM_THREADS, "
        "num_thread; or raise the limit.",
        price="Fewer threads than the machine has cores leave the rest to others.",
        verify=again(found.within.arm),
        missing=["nr_throttled and nr_periods of the container during the slow arm (cpu.stat before and after it)"],
        level=Level.SUSPECTED,
        action=Action.FIX,
    )
