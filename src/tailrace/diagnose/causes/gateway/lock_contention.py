"""LOCK_CONTENTION: a stage's time grows with how many are in it, while the CPU idles: they go one by one."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.lock_on_arms import lock_on_arms
from tailrace.diagnose.arm_evidence.one_by_one import one_by_one
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import InFlight, account
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.window import Window, tail_of
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["LockContention"]

Floats = NDArray[np.float64]
STAGES: Final = ("preprocess", "postprocess", "encode", "ingress")
LINEAR: Final = 0.7
LEAST: Final = 50
GROWS: Final = 2.0
CPU_IDLE: Final = 0.6
KNOWN: Final = 0.8
FEW: Final = 10
"""Requests that found the fewest others: of one place they take one turn, in a pool the whole of their own time."""
POOL: Final = 2.0
"""Their time, over what the line through all says of them."""


class _Serial(NamedTuple):
    stage: str
    alone_ms: float
    """Of a request that finds nobody in the stage."""
    each_ms: float
    """More for each one that is in it."""
    r: float
    most: float
    n: int
    explains: float
    share: float


class LockContention(Cause):
    """One stage takes k times as long when k requests are in it, and the processors are idle."""

    code: ClassVar[str] = "LOCK_CONTENTION"
    stage: ClassVar[str] = "preprocess"
    needs: ClassVar[tuple[str, ...]] = ("times of a stage by request", "CPU use of the machine or process")
    disproof: ClassVar[str] = "The CPU is full meanwhile, or the stage's time does not depend on how many are in it."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Some stage outside the engine's scheduler must be known."""
        done = evidence.now.done
        known = any((~np.isnan(done.ms(stage))).mean() >= KNOWN for stage in STAGES) if evidence.now.n else False
        return "" if known else "times of preprocess, postprocess or encode by request"

    def observe(self, observed: Observed) -> Finding | None:
        """From a table along the concurrency."""
        return lock_on_arms(self, observed) or one_by_one(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """A stage linear in its own occupancy, that carries the tail."""
        window = evidence.now
        if self.cannot_run(evidence) or window.n < LEAST:
            return None
        found = [item for stage in STAGES if (item := _serial(window, stage)) is not None]
        if not found:
            return None
        best = max(found, key=lambda item: item.explains)
        if best.explains < 50.0 or best.share < 0.3:
            return None
        busy = [state.busy for state in evidence.meanwhile.host if state.busy is not None]
        missing, checked = [], []
        if busy:
            used = float(np.median(busy))
            checked.append(f"host CPU busy {used:.0%} (median)")
            if used > CPU_IDLE:
                return None
        else:
            missing.append("CPU use of the machine meanwhile (GET /signals): a full CPU would look the same")
        finding = self.finding(
            statement=f"Requests go through {best.stage} one by one: {best.alone_ms:.0f} ms alone and "
            f"{best.each_ms:.0f} "
            f"ms more for each of up to {best.most:.0f} others in it.",
            evidence=[
                Evidence(
                    f"{best.stage} takes {best.alone_ms:.0f} ms alone and {best.each_ms:.0f} ms more for each request "
                    f"that is in it, up to {best.most:.0f} (correlation {best.r:.2f}, n = {best.n})",
                    f"record:{best.stage}_ns, record:start",
                    "each_ms",
                    round(best.each_ms, 2),
                    "ms",
                ),
                Evidence(
                    f"the slowest requests lose {best.explains:.0f} ms so, {best.share:.0%} of their excess",
                    f"record:{best.stage}_ns",
                    "explains_ms",
                    round(best.explains, 1),
                    "ms",
                ),
                *(Evidence(text, "host:cpu", "busy") for text in checked),
            ],
            explains_ms=best.explains,
            relation=f"{best.stage} = {best.alone_ms:.0f} ms + {best.each_ms:.0f} ms x requests in it "
            f"(r = {best.r:.2f})",
            n=best.n,
            advice=f"Remove the serial section in {best.stage}: a lock held while it works, a pool of one, one "
            f"thread or "
            "one connection for all. A profile of the waiting threads names it (py-spy dump). More CPU or more engines "
            "change nothing.",
            price="None, beyond the change.",
            verify=evidence.verify_command + "  # py-spy dump --pid PID under load: who holds the lock",
            missing=missing,
            disproof_checked=checked,
        )
        return msgspec.structs.replace(finding, stage=best.stage)


def _serial(window: Window, stage: str) -> _Serial | None:
    spent = window.done.ms(stage)
    known = ~np.isnan(spent)
    if float(known.mean()) < KNOWN or float(np.nanmax(spent, initial=0.0)) < 50.0:
        return None
    at = account(window)
    rows = np.flatnonzero(known)
    begin = _begin(window, stage, at.sent[window.rows])[rows]
    took = spent[rows]
    others = InFlight.of(begin, begin + took * 1e6).at(begin) - 1.0
    if np.ptp(others) < 2 or np.ptp(took) == 0:
        return None
    slope, alone = (float(value) for value in np.polyfit(others, took, 1))
    r = float(np.corrcoef(others, took)[0, 1])
    top = float(np.quantile(others, 0.99))
    # What is serial costs each one ahead as much as oneself.
    if r < LINEAR or slope <= 0 or alone + slope * top < GROWS * max(alone, 1e-9) or slope < 0.2 * max(alone, 1.0):
        return None
    few = np.argsort(others, kind="stable")[:FEW]
    if float(np.median(took[few])) > POOL * float(np.median(max(alone, 0.0) + slope * (others[few] + 1.0))):
        # A pool that is full is linear too; in it whoever finds hardly anybody takes as long as with half of it busy.
        return None
    total = window.done.ms("e2e") if stage == "postprocess" else np.nan_to_num(window.done.ms("ttft"), nan=0.0)
    slow = tail_of(total)
    waits = np.zeros(window.n)
    waits[rows] = np.maximum(took - max(alone, 0.0), 0.0)
    explains = float(waits[slow].mean())
    excess = max(float(total[slow].mean()) - float(np.median(total)), 1e-9)
    return _Serial(stage, max(alone, 0.0), slope, r, top, int(rows.size), explains, explains / excess)


def _begin(window: Window, stage: str, sent: Floats) -> Floats:
    if stage == "ingress":
        return window.start
    if stage == "postprocess":
        return window.end
    if stage == "encode":
        return sent + np.nan_to_num(window.done.ms("preprocess"), nan=0.0) * 1e6
    return sent
