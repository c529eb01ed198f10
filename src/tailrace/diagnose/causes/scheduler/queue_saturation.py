"""SCHED_QUEUE_SATURATION: more work arrives than the engine serves, and requests wait to be scheduled."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.saturation_on_arms import saturation_on_arms
from tailrace.diagnose.caps import counted_cap
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.causes.scheduler.hol_long_prefill import HolLongPrefill, waits_behind_prefill
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.kv_cache import KV_ROOM
from tailrace.diagnose.log_evidence.queue_snapshot import queue_in_snapshot
from tailrace.diagnose.log_evidence.saturation import saturation_in_load
from tailrace.diagnose.log_evidence.served import queue_in_served
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.more_load import more_load
from tailrace.diagnose.record_evidence.overload import Overload, overloaded_stretch, whole_window
from tailrace.diagnose.record_evidence.turns import Turns, turns_of
from tailrace.diagnose.series_evidence.queue_in_windows import queue_in_windows
from tailrace.diagnose.series_evidence.saturation_in_series import saturation_in_series
from tailrace.diagnose.shorter_prompts import shorter_prompts_of
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.stats.quantiles import median, or_zero, quantile

__all__ = ["QueueSaturation"]

QUEUE_SHARE: Final = 0.5
AT_CAP: Final = 0.8
LONG_SHARE: Final = 0.25
WAITED_MS: Final = 20.0
"""More than a step: whoever comes in the middle of one waits for its end."""
LEAST: Final = 5


class _Signs(NamedTuple):
    """Signs that the engine is full."""

    load: Overload
    """Arrivals against completions: of the window, or of the stretch of it in which the backlog grew."""
    cap: int | None
    """The number of running requests at which most waiting requests found the engine."""
    little: tuple[float, float] | None
    """Closed loop: (concurrency / throughput, mean end to end), seconds."""
    turns: Turns | None
    """No place is free although no cap is reached: the steps are full of other prompts."""

    @property
    def overloaded(self) -> bool:
        return self.load.holds

    @property
    def full(self) -> bool:
        return self.overloaded or self.cap is not None or self.little is not None or self.turns is not None


def _signs(evidence: EvidenceSet, wait: np.ndarray) -> _Signs:
    window = evidence.now
    whole = whole_window(window, wait)
    return _Signs(
        whole if whole.holds else overloaded_stretch(window, wait) or whole,
        _cap(window) or _counted(window),
        _little(evidence, whole.offered),
        turns_of(window),
    )


def _counted(window: Window) -> int | None:
    cap = counted_cap(window)
    return None if cap is None else cap.size


def _cap(window: Window) -> int | None:
    running, waiting = window.done.column("running_at_admission"), window.done.column("waiting_at_admission")
    queued = waiting > 0
    if queued.sum() < max(10, 0.05 * window.n):
        return None
    top = float(np.nanmax(running))
    near = running[queued] >= 0.97 * top - 1
    return int(top) if float(near.mean()) >= AT_CAP and float(queued.mean()) > 0.2 else None


def _little(evidence: EvidenceSet, rate: float) -> tuple[float, float] | None:
    header = evidence.header
    if header is None or header.arrival.kind != "closed" or not header.arrival.concurrency or not rate:
        return None
    expected, seen = header.arrival.concurrency / rate, float(np.mean(evidence.now.done.column("e2e_ns"))) / 1e9
    return (expected, seen) if abs(expected / seen - 1.0) < 0.15 else None


def _had_room(window: Window, wait: np.ndarray) -> bool:
    """Whether those who waited found no more running than those who did not: then it was not for a full engine."""
    running = window.done.column("running_at_admission")
    late = wait > WAITED_MS
    those, others = running[late & ~np.isnan(running)], running[~late & ~np.isnan(running)]
    return min(those.size, others.size) >= LEAST and median(those) <= quantile(others, 0.75)


def _when(signs: _Signs) -> str:
    """Where the overload is a part of the window: which."""
    return f", {signs.load.begin_s:.0f} to {signs.load.end_s:.0f} s into the window" if signs.load.begin_s else ""


def _advice(evidence: EvidenceSet, signs: _Signs, *, room: bool) -> str:
    if room:
        return (
            f"Raise the engine's cap (max_num_seqs, about {signs.cap} now): KV usage is {evidence.kv_usage:.0%} and "
            "decoding is within its objective, so there is room."
        )
    shed = (
        "Shed load at the gateway (queued limit and 429), shorten outputs, or add a replica; a new replica takes "
        "minutes to load. A longer timeout only hides the queue."
    )
    if signs.turns is None or signs.overloaded or signs.cap is not None:
        return shed
    behind = waits_behind_prefill(evidence.now).covered_share
    lane = (
        f" {behind:.0%} of what short requests wait lies in long prompts: a lane of their own with a small running "
        f"limit holds those back. {shorter_prompts_of(evidence.now)}"
        if behind >= LONG_SHARE
        else ""
    )
    return f"What arrives in prompt tokens fills the steps, not what runs at once. {shed}{lane}".strip()


class QueueSaturation(Cause):
    """Waiting for the scheduler makes the first token late, and the engine is at its limit."""

    code: ClassVar[str] = "SCHED_QUEUE_SATURATION"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("queue times from the engine", "running and waiting requests")
    disproof: ClassVar[str] = (
        "The queue is about 0, or the service rate rises with the engine's cap (max_num_seqs, max_num_batched_tokens)."
    )

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """A wait that no long prefill explains, on a full engine; or more load than before in fuller batches."""
        queued = self._queue(evidence)
        if queued is not None:
            return queued
        more = more_load(self, evidence)
        if more is not None:
            # It compares the windows, and does not say what each request waited.
            evidence.now.explained.pop(self.code, None)
        return more

    def _queue(self, evidence: EvidenceSet) -> Finding | None:
        window = evidence.now
        if window.n < 20:
            return None
        lost = window.lost
        wait = lost.engine_queue + (0.0 if window.reported else lost.first_token)
        signs = _signs(evidence, wait)
        if not (signs.overloaded and signs.load.begin_s == 0.0) and HolLongPrefill().judge(evidence) is not None:
            # What short requests wait inside a long prefill is another cause's, unless more arrives than is served all
            # the time: then they would wait behind short ones as well.
            wait = np.maximum(wait - waits_behind_prefill(window).behind_ms, 0.0)
        explains = window.explain(self.code, wait)
        ttft = or_zero(window.done.ms("ttft")) - lost.gateway_queue
        share = window.in_tail(wait) / max(window.in_tail(ttft), 1e-9)
        if share < QUEUE_SHARE or not signs.full or not self.carries(evidence, explains):
            return None
        missing = []
        if not window.reported:
            missing.append("queue times from the engine")
        elif window.inferred:
            missing.append("queue times from the engine: these are inferred from the streams")
        if signs.cap is None and not signs.overloaded:
            if signs.turns is None:
                missing.append("running and waiting requests")
            elif not signs.turns.sure:
                missing.append(
                    "the same traffic at half the rate: whether the waits stay (a long prompt ahead) or go (the load)"
                )
        rivals = ["SCHED_KV_PREEMPTION"] if (evidence.preemptions or 0.0) > 0.05 * window.n else []
        tpot = window.done.ms("tpot")
        tpot = tpot[~np.isnan(tpot)]
        bound = evidence.objectives.bounds.get("tpot", {})
        slow_decode = bool(bound) and tpot.size > 0 and median(tpot) > 0.5 * min(bound.values()) / 1e6
        room = (
            evidence.kv_usage is not None and evidence.kv_usage < KV_ROOM and signs.cap is not None and not slow_decode
        )
        return self.finding(
            statement=f"Requests wait for the scheduler: {share:.0%} of the slow requests' time to first token is "
            f"queue, and the engine is at its limit ({self._limit(signs)}).",
            evidence=self._evidence(evidence, signs, share, explains),
            explains_ms=explains,
            relation=self._relation(signs),
            n=window.n,
            advice=_advice(evidence, signs, room=room),
            price="TPOT rises a little with the batch."
            if room
            else "Refused requests must be retried by their clients; a replica costs its GPU.",
            verify=evidence.verify_command,
            missing=missing,
            rivals=rivals,
            disproof_checked=[f"queue share of TTFT in the tail is {share:.0%}"],
            action=Action.TUNE if room else (Action.SCALE if slow_decode else Action.SHED),
        )

    def suspect(self, evidence: EvidenceSet) -> Finding | None:
        """The engine's own queue makes the tail, and nothing says that it is full."""
        window = evidence.now
        if not window.reported or window.n < 20:
            return None
        wait = window.lost.engine_queue
        explains = window.explain(self.code, wait)
        share = explains / max(window.in_tail(or_zero(window.done.ms("ttft")) - window.lost.gateway_queue), 1e-9)
        if share < QUEUE_SHARE or not self.carries(evidence, explains) or _had_room(window, wait):
            return None
        return self.finding(
            statement=f"The slow requests wait in the engine's queue for {share:.0%} of their time to first token. "
            "Nothing here says why: neither long prompts before them, nor a full batch or cache, nor more load than is "
            "served.",
            evidence=[
                Evidence(
                    f"{share:.0%} of the slow requests' time to first token is the engine's queue",
                    "record:queue_engine_ns",
                    "queue_share",
                    round(share, 4),
                )
            ],
            explains_ms=explains,
            relation=f"queue / time to first token = {share:.0%} in the tail",
            n=window.n,
            advice="Look at what the engine runs while they wait (running and waiting requests by second): at its cap "
            "(max_num_seqs) raise the cap, with room in neither the batch nor the cache shed load or add a replica.",
            price="None for looking.",
            verify=evidence.verify_command,
            missing=["running and waiting requests while they wait (the engine's /metrics every few seconds)"],
            action=Action.COLLECT,
        )

    def observe(self, observed: Observed) -> Finding | None:
        """From gauges, or an engine's load lines: waiting grows while running stays at its most."""
        return surest(
            [
                saturation_in_load(self, observed),
                queue_in_served(self, observed),
                queue_in_windows(self, observed),
                queue_in_snapshot(self, observed),
                saturation_in_series(self, observed),
                saturation_on_arms(self, observed),
            ]
        )

    @staticmethod
    def _limit(signs: _Signs) -> str:
        if signs.overloaded:
            return f"{signs.load.offered:.2f} requests/s arrive, {signs.load.served:.2f} are served{_when(signs)}"
        if signs.cap is not None:
            return f"{signs.cap} run at once and the others wait"
        if signs.little is None and signs.turns is not None:
            return f"{signs.turns.covered:.0%} of the waits pass while it computes other prompts"
        return "a closed loop with more clients than places"

    @staticmethod
    def _relation(signs: _Signs) -> str:
        if signs.little is not None:
            return f"Little's law: concurrency / throughput = {signs.little[0]:.2f} s, mean E2E {signs.little[1]:.2f} s"
        if signs.overloaded:
            return (
                f"offered {signs.load.offered:.2f}/s > served {signs.load.served:.2f}/s; the wait of the last quarter "
                f"is {signs.load.growth:.1f} x that of the first"
            )
        if signs.cap is None and signs.turns is not None:
            one = signs.turns
            return (
                f"{one.covered:.0%} of {one.waiters} waits lie inside prefills of others, {one.busy:.0%} would by "
                f"chance: a prompt is computed for {one.busy:.0%} of the time"
            )
        return f"waiting > 0 while running = {signs.cap}"

    @staticmethod
    def _evidence(evidence: EvidenceSet, signs: _Signs, share: float, explains: float) -> list[Evidence]:
        window = evidence.now
        source = "record:queue_engine_ns" if window.reported else "record:ttft_ns (queue and prefill unsplit)"
        out = [
            Evidence(
                text=f"{share:.0%} of the time to first token of the slowest requests is queue",
                source=source,
                name="queue_share",
                value=round(share, 4),
            ),
            Evidence(
                text=f"{signs.load.offered:.2f} requests/s arrived, {signs.load.served:.2f} requests/s were served "
                f"meanwhile{_when(signs)}",
                source="record:start, record:e2e_ns",
                name="offered_per_s",
                value=round(signs.load.offered, 3),
                unit="1/s",
            ),
            Evidence(
                text=f"the slowest interactive requests lost {explains:.0f} of {window.tail_lost_ms:.0f} ms "
                "in the queue",
                source=source,
                name="explains_ms",
                value=round(explains, 1),
                unit="ms",
            ),
        ]
        if signs.cap is not None:
            out.append(
                Evidence(
                    text=f"{signs.cap} requests ran at once whenever others waited",
                    source="record:running_at_admission",
                    name="cap",
                    value=float(signs.cap),
                )
            )
        if signs.turns is not None and signs.cap is None and not signs.overloaded:
            one = signs.turns
            out.append(
                Evidence(
                    text=f"{one.covered:.0%} of what {one.waiters} requests waited passed while other prompts were "
                    f"computed, which fills {one.busy:.0%} of the time",
                    source="record:queue_engine_ns, record:prefill_ns",
                    name="covered_share",
                    value=round(one.covered, 4),
                )
            )
        return out
