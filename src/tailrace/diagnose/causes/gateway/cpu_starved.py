"""FE_CPU_STARVED: the engine's processes are ready to run and are not given a CPU."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.cpus_given import cpus_given
from tailrace.diagnose.arm_evidence.threads_given import threads_given
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.clock_fall import clock_fall
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Shares, host_shares, of_engine
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.series_evidence.profile_on_top import interpreter_full
from tailrace.diagnose.series_evidence.throttled import throttled
from tailrace.diagnose.series_evidence.throttled_share import throttled_share
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.model.host_state import HostState, ProcessState

__all__ = ["CpuStarved"]

Floats = NDArray[np.float64]
SHARE: Final = 0.10
"""Of the enforcement periods in which a limit stopped the engine, or of the time in which its worst thread waited."""
PRESSURE: Final = 0.25
"""Of the time in which somebody on the machine waited for a CPU, where the engine's own processes are not seen."""
COVERED: Final = 0.8
MORE: Final = 1.2
FEW_LOST: Final = 0.25
SLOWER: Final = 1.2
VERY_MUCH: Final = 0.5
"""Of everybody's time. Steps that wait so long for a processor are at least twice as long: nobody need be compared."""


class _Withheld(NamedTuple):
    """What was kept from the engine in the window, all shares 0 to 1."""

    throttled: float | None
    """Throttled periods / periods."""
    periods: int
    quota_cores: float | None
    waited: float | None
    """Of its worst thread, mean over the intervals."""


class CpuStarved(Cause):
    """A CPU limit stops the engine, or its threads wait in run queues, while the slow requests live."""

    code: ClassVar[str] = "FE_CPU_STARVED"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "run-queue time and CPU limit of the engine's processes (a gateway on the same machine)",
        "requests that were hit less",
    )
    disproof: ClassVar[str] = (
        "The engine's processes had their CPU in the slow requests too, or clocks or batch changed at the same time."
    )
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return surest(
            [
                throttled(self, observed),
                throttled_share(self, observed),
                cpus_given(self, observed),
                threads_given(self, observed),
                interpreter_full(self, observed),
            ]
        )

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """The engine's machine must have been looked at."""
        return "" if evidence.meanwhile.host else "CPU time of the engine's machine (`GET /signals` of a gateway on it)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """More than a tenth withheld, and more of it in the slow requests than in the others."""
        if self.cannot_run(evidence) or not evidence.now.n:
            return None
        seen = of_engine(evidence.meanwhile.host)
        if not seen:
            return self._by_pressure(evidence)
        withheld = _withheld([process for _, process in seen])
        stopped = withheld.throttled is not None and withheld.throttled > SHARE
        waited = withheld.waited is not None and withheld.waited > SHARE
        if not stopped and not waited:
            return None
        return self._by_engine(evidence, seen, withheld, stopped=stopped)

    def _by_engine(
        self,
        evidence: EvidenceSet,
        seen: list[tuple[HostState, ProcessState]],
        withheld: _Withheld,
        *,
        stopped: bool,
    ) -> Finding | None:
        window = evidence.now
        shares = host_shares(window, [(state, _share(state, process)) for state, process in seen])
        lost = window.lost.total
        explained, part = _where_it_was_lost(window, shares)
        explains = window.explain(self.code, explained)
        for_all = _slow_for_all(evidence)
        if for_all:
            # Every token of everybody: what the slow requests lost beyond the others does not show it.
            inside = shares.inside_ms(window.start, window.end)
            explains = max(explains, float(np.median(inside)))
        if not self.carries(evidence, explains) and not for_all:
            return None
        others = np.ones(window.n, dtype=bool)
        others[window.tail] = False
        slow = float(np.median(part[window.tail]))
        rest = float(np.median(part[others])) if others.any() else 0.0
        compared = (
            f"withheld {slow:.0%} of the time in which the slow requests waited for a token, {rest:.0%} of that of the "
            "others (median)"
        )
        missing, rivals = [], []
        if slow < MORE * rest:
            if not for_all and others.any() and float(lost[others].mean()) < FEW_LOST * window.tail_lost_ms:
                return None  # those who lost nothing were hit as hard: it is not what makes the difference
            whole = shares.inside_ms(window.start, window.end) * 1e6 / np.maximum(window.end - window.start, 1.0)
            if for_all != "before" and float(np.median(whole)) < VERY_MUCH:
                missing.append("a window in which the engine has its CPU: all requests of this one were hit alike")
        first = np.where(np.isnan(window.first), window.end, window.first)
        if not for_all and float(np.median(shares.covered(window.start, first)[window.tail])) < COVERED:
            missing.append("samples of the machine for the whole time in which the slow requests waited")
        if _clock_fell(evidence):
            rivals.append("COMPUTE_POWER_CAP or COMPUTE_THERMAL: the accelerator's clock was limited as well")
        how = _words(withheld, stopped=stopped)
        felt = f"up to {explains:.0f} of the {window.tail_lost_ms:.0f} ms that the slowest requests lost"
        relation = (
            f"withheld / lost = {explains:.0f} / {window.tail_lost_ms:.0f} ms = "
            f"{explains / max(window.tail_lost_ms, 1e-9):.0%} in the tail"
        )
        if (
            explains > window.tail_lost_ms
        ):  # it is in everybody's usual time, and not in what the slowest lost beyond it
            lasts = float(np.median(window.end - window.start)) / 1e6
            felt = f"{explains:.0f} of the {lasts:.0f} ms that a request takes (medians)"
            relation = f"withheld / taken = {explains:.0f} / {lasts:.0f} ms = {explains / max(lasts, 1e-9):.0%}"
        return self.finding(
            statement=f"The engine is not given the CPU that it could use: {how}; {felt}.",
            evidence=[
                *_evidence(withheld),
                Evidence(
                    text=felt,
                    source="host:run_queue, host:cgroup",
                    name="explains_ms",
                    value=round(explains, 1),
                    unit="ms",
                ),
                Evidence(text=compared, source="host:run_queue, host:cgroup"),
            ],
            explains_ms=explains,
            relation=relation,
            n=int((part > SHARE).sum()),
            advice="Raise the engine's CPU limit, or run it with fewer threads than its quota."
            if stopped
            else "Give the engine cores of its own: move what competes with it, or pin both apart.",
            price="Cores that other work cannot use.",
            verify=evidence.verify_command,
            missing=missing,
            rivals=rivals,
            disproof_checked=[compared],
        )

    def _by_pressure(self, evidence: EvidenceSet) -> Finding | None:
        """The machine's own word, where the engine's processes are not seen: never more than a suspicion."""
        window = evidence.now
        known = [
            (state, state.pressure["cpu.some"]) for state in evidence.meanwhile.host if "cpu.some" in state.pressure
        ]
        if not known or float(np.mean([share for _, share in known])) <= PRESSURE:
            return None
        kept = host_shares(window, known).inside_ms(window.start, window.end)
        explains = window.explain(self.code, np.minimum(kept, window.lost.total))
        if not self.carries(evidence, explains):
            return None
        share = float(np.mean([share for _, share in known]))
        return self.finding(
            statement=f"Tasks on this machine waited for a CPU {share:.0%} of the time; whether the engine was among "
            "them is not known.",
            evidence=[
                Evidence(
                    text=f"CPU pressure (some) {share:.0%}, mean of {len(known)} intervals",
                    source="host:pressure",
                    name="cpu_pressure",
                    value=round(share, 4),
                )
            ],
            explains_ms=None,
            relation=f"cpu.some = {share:.0%} > {PRESSURE:.0%}",
            n=window.n,
            advice="Find what competes for the CPUs; give the engine cores of its own.",
            price="Cores that other work cannot use.",
            verify=evidence.verify_command,
            missing=["the engine's processes on this machine (signals.engine_pid)"],
        )


def _clock_fell(evidence: EvidenceSet) -> bool:
    """Whether an accelerator's clock fell as well, by more than the usual play of a device that touches its limit."""
    devices = evidence.meanwhile.devices().items()
    return any(
        clock_fall(device, states, heat=heat) is not None for device, states in devices for heat in (True, False)
    )


def _where_it_was_lost(window: Window, shares: Shares) -> tuple[Floats, Floats]:
    """(what it explains of each row's loss (ms), its share of the row's waits for the first token and in stalls).

    Only what was withheld while a request waited counts: a long stream meets many a bad second that cost it nothing.
    """
    first = np.where(np.isnan(window.first), window.end, window.first)
    waited = np.maximum(first - window.start, 1.0)
    kept = shares.inside_ms(window.start, first)
    explained = np.minimum(kept, window.lost.first_token + window.lost.engine_queue)
    stalls = window.stalls
    kept_in_stall = shares.inside_ms(stalls.begin, stalls.end)
    explained += np.bincount(stalls.row, weights=np.minimum(kept_in_stall, stalls.excess_ms), minlength=window.n)
    kept += np.bincount(stalls.row, weights=kept_in_stall, minlength=window.n)
    waited += np.bincount(stalls.row, weights=stalls.end - stalls.begin, minlength=window.n)
    return explained, kept * 1e6 / waited


def _share(state: HostState, process: ProcessState) -> float:
    """What an interval withheld: stopped by the limit, or waiting: the larger, since one may hold the other."""
    group = process.cgroup
    throttled = (group.throttled_ns or 0) / state.interval_ns if group is not None and group.quota_cores else 0.0
    return min(1.0, max(throttled, process.worst_thread_wait or 0.0))


def _slow_for_all(evidence: EvidenceSet) -> str:
    """`before` where the usual token takes a fifth longer than in the window before, `objective` where it breaks its
    objective; else empty.
    """
    window = evidence.now
    pace = window.done.ms("tpot")
    if np.isnan(pace).all():
        return ""
    usual = float(np.nanmedian(pace))
    earlier = np.empty(0) if evidence.before is None else evidence.before.done.ms("tpot")
    if earlier.size and not np.isnan(earlier).all():
        # Stretches without a CPU make the slower tenth slower, and leave the median.
        for p in (0.5, 0.9):
            if float(np.nanquantile(pace, p)) >= SLOWER * float(np.nanquantile(earlier, p)):
                return "before"
    bounds = evidence.objectives.bounds.get("tpot", {})
    return "objective" if bounds and usual > min(bounds.values()) / 1e6 else ""


def _withheld(processes: list[ProcessState]) -> _Withheld:
    groups = [process.cgroup for process in processes if process.cgroup is not None]
    periods = sum(group.periods or 0 for group in groups)
    stopped = sum(group.throttled_periods or 0 for group in groups)
    waits = [process.worst_thread_wait for process in processes if process.worst_thread_wait is not None]
    return _Withheld(
        throttled=stopped / periods if periods else None,
        periods=periods,
        quota_cores=next((group.quota_cores for group in groups if group.quota_cores is not None), None),
        waited=float(np.mean(waits)) if waits else None,
    )


def _words(withheld: _Withheld, *, stopped: bool) -> str:
    if stopped:
        quota = f" of {withheld.quota_cores:g} cores" if withheld.quota_cores else ""
        return f"its limit{quota} stopped it in {withheld.throttled:.0%} of {withheld.periods} periods"
    return f"its worst thread was ready and waited {withheld.waited:.0%} of the time"


def _evidence(withheld: _Withheld) -> list[Evidence]:
    out = []
    if withheld.throttled is not None:
        out.append(
            Evidence(
                text=f"throttled in {withheld.throttled:.0%} of {withheld.periods} periods",
                source="host:cgroup",
                name="throttled_share",
                value=round(withheld.throttled, 4),
            )
        )
    else:
        out.append(
            Evidence(text="no CPU limit is set, so throttling counts nothing and clears nothing", source="host:cgroup")
        )
    if withheld.waited is not None:
        out.append(
            Evidence(
                text=f"its worst thread waited in a run queue {withheld.waited:.0%} of the time",
                source="host:run_queue",
                name="run_queue_wait",
                value=round(withheld.waited, 4),
            )
        )
    return out
