"""GW_PROBE_KILL from Kubernetes' own events: it says that the liveness probe ended the container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.configured.probes import liveness_probes
from tailrace.diagnose.observed import Event, Observed
from tailrace.diagnose.observed.load import loads
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["probe_in_events"]

FEWEST_MISSES: Final = 2
MADE: Final = 0.5
"""Of the readings with a queue, in which tokens come out: then the engine is busy and no probe need end it."""


def probe_in_events(cause: Cause, observed: Observed) -> Finding | None:
    """Containers ended by the liveness probe, none by lack of memory; busy where load lines stand beside."""
    killed = [event for event in observed.of_kind("probe_killed") if event.attributes.get("probe") == "liveness"]
    failed = [event for event in observed.of_kind("probe_failed") if event.attributes.get("probe") == "liveness"]
    if not killed or observed.of_kind("oom") or observed.of_kind("died"):
        return None
    ends, late = _times(killed), _times([event for event in failed if event.attributes.get("late") == "yes"])
    busy = _busy(observed)
    probe = next(iter(liveness_probes(observed)), None)
    timeout = probe.timeout_ms / 1e3 if probe is not None else observed.number("probe_timeout_s")
    facts = [
        Evidence(
            f"{ends:g} times: “{killed[0].text[:160]}”", str(killed[0].place), "probe_killed", ends
        )
    ]  # fmt: skip
    missing, checked = [], ["no event says that memory ran out"]
    if failed:
        facts.append(
            Evidence(
                f"the probe failed {_times(failed):g} times, {late:g} of them for being answered late",
                str(failed[0].place), "probe_failed", late,
            )
        )  # fmt: skip
    if probe is not None:
        facts.append(
            Evidence(
                f"the probe of {probe.path or 'the container'} gives up after {probe.timeout_ms / 1e3:g} s"
                + (" (Kubernetes' default: nothing sets it)" if "timeoutSeconds" in probe.unset else ""),
                probe.place, "probe_timeout", probe.timeout_ms / 1e3, "s",
            )
        )  # fmt: skip
        facts.append(
            Evidence(
                f"{probe.misses:g} misses x {probe.period_ms / 1e3:g} s = {probe.detection_ms / 1e3:g} s until it is "
                "killed",
                probe.place, "detection", probe.detection_ms / 1e3, "s",
            )
        )  # fmt: skip
    elif (seen := _rhythm(failed, killed)) is not None:
        facts.append(seen)
    else:
        missing.append("the probe (kubectl describe pod, or the manifest): timeoutSeconds is 1 s where nothing sets it")
    if busy is not None:
        facts.append(busy)
        checked.append("the engine makes tokens while requests wait: it is busy, not dead")
    else:
        missing.append(
            "the engine's log or its token counter before the restarts: whether it was busy (the probe is wrong) or "
            "stood still (the probe was right)"
        )
    gives = f" after {timeout:g} s" if timeout is not None else ""
    return cause.finding(
        statement=f"The liveness probe restarts the engine: {ends:g} times the container was ended by it"
        + (f", the probe's page having been answered late ({late:g} times)" if late else "")
        + (f", while {busy.text}" if busy is not None else "")
        + (f"; the probe gives up{gives}." if gives else "."),
        evidence=facts,
        explains_ms=None,
        relation=f"{ends:g} ends by the probe, 0 for memory"
        + (f"; {probe.misses:g} x {probe.period_ms / 1e3:g} = {probe.detection_ms / 1e3:g} s" if probe else ""),
        n=int(ends),
        advice="Let liveness watch progress (the delta of an iteration or token counter) instead of /health, which a "
        "busy loop answers late and a hung engine may still answer; give it timeoutSeconds 10 or more and a longer "
        "failureThreshold, a startupProbe for the load of the model, and keep /health for readiness.",
        price="Real hangs are found later: watch the counter from outside meanwhile.",
        verify="tailrace diagnose events.txt vllm.log  # over the next day: no restart by the probe",
        missing=missing,
        rivals=[] if busy is not None else ["ENGINE_STALL"],
        disproof_checked=checked,
        action=Action.TUNE,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _rhythm(failed: list[Event], killed: list[Event]) -> Evidence | None:
    """Period and misses as the events show them: failures in a row, the last of them when the container is ended."""
    ended = next((event.at for event in killed if event.at is not None), None)
    times = sorted({event.at for event in failed if event.at is not None and ended is not None and event.at <= ended})
    if ended is None or len(times) < FEWEST_MISSES:
        return None
    steps = np.diff(times)
    period = float(np.median(steps))
    if period <= 0 or float(np.ptp(steps)) > 0.2 * period or ended - times[-1] > period:
        return None
    return Evidence(
        f"{len(times)} misses in a row, {period:g} s apart, and then it is killed: {len(times)} x {period:g} s = "
        f"{len(times) * period:g} s are all it is given",
        str(failed[0].place), "detection", len(times) * period, "s",
    )  # fmt: skip


def _times(events: list[Event]) -> float:
    return float(sum(float(event.attributes.get("times", 1.0)) for event in events))


def _busy(observed: Observed) -> Evidence | None:
    """Load lines (or series) in which requests wait and tokens come out."""
    for load in loads(observed):
        waiting, made = load.get("waiting"), load.get("output_tok_s")
        with np.errstate(invalid="ignore"):
            queued = waiting > 0
            works = queued & (made > 0)
        if queued.any() and float(works.sum()) >= MADE * float(queued.sum()):
            at = int(np.flatnonzero(works)[int(np.argmax(waiting[works]))])
            return Evidence(
                f"{waiting[at]:g} requests wait and {made[at]:,.0f} tok/s come out", load.where(at), "waiting",
                float(waiting[at]),
            )  # fmt: skip
    return None
