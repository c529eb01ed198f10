"""SCHED_INSTANCE_LIMIT: all instances are busy, requests queue, and the device idles."""

from __future__ import annotations

from typing import Final

from tailrace.analyze.labels import codes_of
from tailrace.diagnose.caps import running_cap
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import of_the_tail
from tailrace.model.finding import Evidence, Finding

__all__ = ["instances_in_records"]

IDLE: Final = 0.6
FEW: Final = 16
WITH_INSTANCES: Final = ("triton", "kserve", "onnx", "torchserve")


def instances_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """A flat cap with a queue behind it, on a device that is not full, of an engine that has instances."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.n < 20:
        return None
    cap = running_cap(window)
    engines = {name.lower() for name in codes_of(window.done.column("engine"))[1]}
    instanced = any(part in name for name in engines for part in WITH_INSTANCES)
    busy = evidence.device_use
    if cap is None or cap.size > FEW or (not instanced and busy is None):
        return None
    if (busy is not None and busy > IDLE) or (not instanced and cap.size > 4):
        return None
    lost = window.lost
    wait = lost.engine_queue + (0.0 if window.reported else lost.first_token)
    explains = window.explain(cause.code, wait)
    if not cause.carries(evidence, explains):
        return None
    missing = [] if busy is not None else ["the use of the device meanwhile (DCGM, NVML)"]
    word = f", and the device is busy {busy:.0%} of the time" if busy is not None else ""
    return cause.finding(
        statement=f"The instances are the limit: {cap.size} requests execute at once whenever others wait{word}.",
        evidence=[
            Evidence(
                f"{cap.size} execute in {cap.share:.0%} of the {cap.queued} cases in which others wait",
                "record:running_at_admission, record:waiting_at_admission",
                "cap",
                float(cap.size),
            ),
            *(
                [Evidence(f"device busy {busy:.0%} (median)", "gpu:utilisation", "busy", round(busy, 4))]
                if busy is not None
                else []
            ),
            of_the_tail(window, explains, "record:queue_engine_ns", "in that queue"),
        ],
        explains_ms=explains,
        relation=f"executing = {cap.size} flat while waiting > 0"
        + (f", device {busy:.0%}" if busy is not None else ""),
        n=cap.queued,
        advice=f"Add instances of the model (Triton: instance_group count, now {cap.size}) or let it batch "
        "(dynamic_batching with a small window): the device has time for both.",
        price="Memory for each instance; each request may take a little longer.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=[f"device busy {busy:.0%}"] if busy is not None else [],
    )
