"""GW_SELF_BOTTLENECK: the gateway itself is slow; the engine had answered."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.overhead_on_arms import overhead_on_arms
from tailrace.diagnose.arm_evidence.overhead_stated import overhead_stated
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.proxy_stages import overhead_in_access
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.model.host_state import Role
from tailrace.stats.quantiles import median, or_zero, quantile

__all__ = ["SelfBottleneck"]

SHARE: Final = 0.10
OVERHEAD_SHARE: Final = 0.10
"""The overhead is a sum over a stream: a microsecond a chunk delays nobody. It counts above this share of a request."""
CPU_FULL: Final = 0.8
"""Cores: the relay runs on one thread."""
SAME_LAG: Final = 1.5
FEW_LOST: Final = 0.25
HALF: Final = 0.5
GAP_MS: Final = 100.0
GAP_SHARE: Final = 0.02
LEAST_GAPS: Final = 10
HELD: Final = 0.10
"""Of enforcement periods or of the time: below it, nothing kept the gateway from running."""
_HELD_ADVICE: Final = {
    "": "It did not run although it used little CPU: look for what held it (other processes on the machine, a CPU "
    "limit, a stopped or swapped process, a slow disk) and give it cores of its own.",
    "throttled": "It used little CPU because its own limit stopped it: raise the CPU limit of the gateway.",
    "waited": "It used little CPU because others had it: give the gateway cores of its own.",
}


def _own_ms(window: Window) -> NDArray[np.float64]:
    """What each row of `done` lost in the gateway at the least (ms): its longest lag, or its overhead."""
    lag = or_zero(window.done.ms("loop_lag"))
    overhead = or_zero(window.done.ms("gateway_overhead"))
    with np.errstate(invalid="ignore"):
        heavy = overhead > OVERHEAD_SHARE * window.done.ms("e2e")
    return np.maximum(lag, np.where(heavy, overhead, 0.0))


def _longest_gaps(window: Window) -> bool:
    """Whether the streams that lived through a long lag of ours have their longest gap in it, and the others have none:
    short lags keep no timeline, so what the slow requests lost does not show them.
    """
    lag, gap = window.done.ms("loop_lag"), window.done.ms("chunk_gap_max")
    known = ~np.isnan(lag) & ~np.isnan(gap)
    long = known & (lag >= max(GAP_MS, 3.0 * float(np.nanmedian(lag)) if known.any() else 0.0))
    others = known & (lag < 0.3 * GAP_MS)
    if min(int(long.sum()), int(others.sum())) < LEAST_GAPS or long.sum() < GAP_SHARE * known.sum():
        return False
    ratio = gap[long] / lag[long]
    alike = float(((ratio >= 0.7) & (ratio <= 1.5)).mean())
    return alike >= 0.5 and median(gap[others]) < 0.5 * median(gap[long])


def _held(evidence: EvidenceSet) -> Evidence | None:
    """What kept the gateway's processes from running, where the machine was looked at."""
    seen = [process for state in evidence.meanwhile.host if (process := state.of(Role.GATEWAY)) is not None]
    groups = [process.cgroup for process in seen if process.cgroup is not None]
    periods = sum(group.periods or 0 for group in groups)
    stopped = sum(group.throttled_periods or 0 for group in groups) / periods if periods else 0.0
    waits = [process.worst_thread_wait for process in seen if process.worst_thread_wait is not None]
    waited = float(np.mean(waits)) if waits else 0.0
    if max(stopped, waited) <= HELD:
        return None
    if stopped > waited:
        text = f"its CPU limit stopped it in {stopped:.0%} of {periods} periods"
        return Evidence(text=text, source="host:cgroup", name="throttled", value=round(stopped, 4))
    text = f"it was ready to run and waited for a CPU {waited:.0%} of the time"
    return Evidence(text=text, source="host:run_queue", name="waited", value=round(waited, 4))


class SelfBottleneck(Cause):
    """The gateway's event loop stood still, or relaying took long, while the slow requests lived."""

    code: ClassVar[str] = "GW_SELF_BOTTLENECK"
    stage: ClassVar[str] = "ingress"
    needs: ClassVar[tuple[str, ...]] = ("event-loop lag or own overhead of the gateway", "CPU use of its process")
    disproof: ClassVar[str] = "The same requests sent straight to the engine are as slow."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Only a gateway's records know how it felt."""
        done = evidence.now.done
        known = ~np.isnan(done.column("loop_lag_ns")) | ~np.isnan(done.column("gateway_overhead_ns"))
        return "" if known.any() else "records of the gateway (its event-loop lag and overhead)"

    def observe(self, observed: Observed) -> Finding | None:
        """From a gateway that tells its own time: in its access log, in response headers, in tables and forms."""
        return surest(
            [overhead_in_access(self, observed), overhead_stated(self, observed), overhead_on_arms(self, observed)]
        )

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Lag or overhead above 10 % of what the tail lost, and more of it than those have that lost nothing."""
        window = evidence.now
        if self.cannot_run(evidence) or not window.n:
            return None
        own, lost = _own_ms(window), window.lost.total
        explains = window.explain(self.code, np.minimum(own, lost))
        gaps = _longest_gaps(window)
        if (explains < SHARE * window.tail_lost_ms or not self.carries(evidence, explains)) and not gaps:
            return None
        others = np.ones(window.n, dtype=bool)
        others[window.tail] = False
        slow, rest = median(own[window.tail]), median(own[others]) if others.any() else 0.0
        checked = [
            f"the gateway stood still for {slow:.0f} ms in the slow requests, {rest:.0f} ms in the others (median)"
        ]
        few = float(lost[others].mean()) if others.any() else 0.0
        if (
            not gaps
            and others.any()
            and slow < SAME_LAG * rest
            and few < min(FEW_LOST * window.tail_lost_ms, HALF * rest)
        ):
            return None  # those with the same lag lost nothing: it is not what makes the difference
        cpu = window.done.column("gateway_cpu")[window.tail]
        cpu = cpu[~np.isnan(cpu)]
        used = median(cpu) if cpu.size else float("nan")
        missing = [] if cpu.size else ["CPU use of the gateway's process (records of this version have it)"]
        full = used >= CPU_FULL
        held = _held(evidence)
        p99 = quantile(own, 0.99)
        return self.finding(
            statement=f"The gateway itself is the bottleneck: its event loop stood still for up to {p99:.0f} ms (p99), "
            f"at least {explains:.0f} of the {window.tail_lost_ms:.0f} ms that the slowest requests lost.",
            evidence=[
                Evidence(
                    text=f"at least {explains:.0f} of {window.tail_lost_ms:.0f} ms lost by the slowest requests are "
                    "event-loop lag or overhead of the gateway",
                    source="record:loop_lag_ns, record:gateway_overhead_ns",
                    name="explains_ms",
                    value=round(explains, 1),
                    unit="ms",
                ),
                Evidence(
                    text=f"p99 of the lag is {p99:.0f} ms",
                    source="record:loop_lag_ns",
                    name="lag_p99_ms",
                    value=round(p99, 1),
                    unit="ms",
                ),
                Evidence(text=checked[0], source="record:loop_lag_ns"),
                *(
                    [
                        Evidence(
                            text=f"its process used {used:.2f} cores meanwhile",
                            source="record:gateway_cpu",
                            name="gateway_cpu",
                            value=round(used, 3),
                            unit="cores",
                        )
                    ]
                    if cpu.size
                    else []
                ),
                *([held] if held else []),
            ],
            explains_ms=explains,
            relation=f"own time / lost = {explains:.0f} / {window.tail_lost_ms:.0f} ms = "
            f"{explains / max(window.tail_lost_ms, 1e-9):.0%} in the tail",
            n=int((own > SHARE * window.tail_lost_ms).sum()),
            advice="Its thread is full: run more gateway processes, and profile this one for the hot path."
            if full
            else _HELD_ADVICE[held.name if held else ""],
            price="Memory and a core for each process more." if full else "Cores that other work cannot use.",
            verify="tailrace diagnose http://127.0.0.1:9480  # after the change",
            missing=missing,
            disproof_checked=checked,
        )
