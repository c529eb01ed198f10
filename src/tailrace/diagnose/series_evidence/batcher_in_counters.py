"""Triton's batcher in its counters: a queue as long as the batcher's own delay, or one before too few instances."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.arm_evidence.server_figures import server_figures
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.series_evidence.queue_mean import QueueMean, queue_mean
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["batcher_in_counters", "instances_in_counters"]

NEAR: Final = (0.5, 1.3)
"""Mean wait / the batcher's delay: a request that opens a batch waits for all of it, one that fills it for none."""
ROOM: Final = 0.3
"""A device that is used less does little: the load is low, whatever the rate."""
BUSY: Final = 0.5
FULL: Final = 0.85
IDLE: Final = 0.5


def _delay_ms(observed: Observed) -> tuple[float, str] | None:
    for name, factor in (
        ("batch_delay_us", 1e-3),
        ("max_queue_delay_microseconds", 1e-3),
        ("batch_timeout_ms", 1.0),
        ("batch_wait_ms", 1.0),
        ("batch_wait_timeout_s", 1e3),
    ):
        found = observed.setting(name)
        if found is not None and found.number:
            return found.number * factor, str(found.place)
    stated = server_figures(observed).delay  # under any other name that says its unit
    return None if stated is None else (stated.value, stated.evidence.source)


def _load(observed: Observed, mean: QueueMean) -> tuple[float | None, float | None, float]:
    """(requests a second, share of time in which its instances are busy, instances)."""
    rate = mean.n / mean.window_s if mean.window_s else observed.number("offered_rps", "completed_rps", "req_s")
    instances = observed.number("instances", "instance_count", "instance_group_count") or 1.0
    runs = observed.delta("executions")
    batch = mean.n / runs if runs else 1.0
    busy = rate * mean.compute_ms / 1e3 / instances / max(batch, 1.0) if rate else None
    return rate, busy, instances


def _idle(observed: Observed) -> float | None:
    """The highest use of the accelerator in the window, where it was looked at and is low."""
    used = [float(np.nanmax(item.values)) for item in observed.of_series("gpu_util") if len(item)]
    return max(used) if used and max(used) <= ROOM else None


def batcher_in_counters(cause: Cause, observed: Observed) -> Finding | None:
    """At low load, requests wait about as long as the batcher was told to wait for more."""
    mean, delay = queue_mean(observed), _delay_ms(observed)
    if mean is None or delay is None or mean.queue_ms <= 0:
        return None
    part = mean.queue_ms / delay[0]
    rate, busy, _ = _load(observed, mean)
    if not NEAR[0] <= part <= NEAR[1] or mean.share <= 0.3 or (busy is not None and busy >= BUSY):
        return None
    runs = observed.delta("executions")
    batch = mean.n / runs if runs else None
    missing = []
    idle = _idle(observed) if busy is None else None
    if busy is None and idle is None:
        missing.append("the rate (window_s or offered_rps), to see that the load is low")
    if batch is None:
        missing.append("nv_inference_exec_count, to see that the batches stay small")
    queue, window = f"{mean.queue_ms:.3g}", f"{delay[0]:.3g}"
    relation = f"{queue} ms / {window} ms = {part:.2f}"
    evidence = [
        Evidence(
            text=f"queue {queue} ms a request (mean of {mean.n:.0f}), compute {mean.compute_ms:.3g} ms",
            source=mean.place,
            name="queue_mean",
            value=mean.queue_ms,
            unit="ms",
        ),
        Evidence(
            text=f"the batcher waits {window} ms for a fuller batch",
            source=delay[1],
            name="batch_delay",
            value=delay[0],
            unit="ms",
        ),
    ]
    if busy is not None and rate is not None:
        evidence.append(
            Evidence(
                text=f"{rate:.4g} requests a second keep it busy {busy:.0%}", source=mean.place, name="busy", value=busy
            )
        )
        relation += f"; busy {busy:.0%}"
    if batch is not None:
        evidence.append(Evidence(text=f"mean batch {batch:.2f}", source=mean.place, name="batch", value=batch))
        relation += f"; {mean.n:.0f}/{runs:.0f} = {batch:.2f} a batch"
    if idle is not None:
        evidence.append(Evidence(f"the device is used {idle:.0%} at most", "gpu_util", "gpu_util", idle))
        relation += f"; device used {idle:.0%}"
    return cause.finding(
        statement=f"The batcher waits for requests that do not come: {queue} ms of queue where its window is "
        f"{window} ms"
        + (f", at batches of {batch:.2f}" if batch is not None else "")
        + (f" and a server that is busy {busy:.0%} of the time." if busy is not None else "."),
        evidence=evidence,
        explains_ms=mean.queue_ms,
        relation=relation,
        n=int(mean.n),
        advice="Shorten the window (`max_queue_delay_microseconds` near the compute time of one request) and lower "
        "`preferred_batch_size` to what arrives within it; at this load a batch is not worth waiting for.",
        price="Smaller batches at high load: less throughput there. Try it at the peak's rate too.",
        verify=(
            f"tailrace bench http://localhost:8000 --rate {rate or 10:.3g} --duration 60 --out "
            "after.run && tailrace compare before.run after.run"
        ),
        missing=missing,
        disproof_checked=[
            f"the server is busy {busy:.0%}"
            if busy is not None
            else f"the device is used {idle:.0%} at most"
            if idle is not None
            else "the load is not known"
        ],
        action=Action.TUNE,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def instances_in_counters(cause: Cause, observed: Observed) -> Finding | None:
    """Every instance computes all the time, requests queue before them, and the device has room."""
    mean = queue_mean(observed)
    if mean is None or mean.share <= 0.3:
        return None
    rate, busy, instances = _load(observed, mean)
    if busy is None or busy < FULL:
        return None
    used = [float(np.nanmean(item.values)) for item in observed.of_series("gpu_util") if len(item)]
    stated = observed.number("gpu_util_pct")
    device = max(used) if used else stated / 100.0 if stated is not None else None
    if device is not None and device > IDLE:
        return None  # the device itself is the limit
    missing = []
    if device is None:
        missing.append("use of the accelerator in the same window: with a busy one more instances do not help")
    if observed.number("instances", "instance_count", "instance_group_count") is None:
        missing.append("the number of instances (instance_group count); 1 was assumed")
    queue, work = f"{mean.queue_ms:.3g}", f"{mean.compute_ms:.3g}"
    count = f"{instances:.0f}"
    return cause.finding(
        statement=f"Too few instances: {count} of them compute {busy:.0%} of the time while requests queue {queue} "
        "ms for "
        f"{work} ms of compute" + (f", and the device is used {device:.0%}." if device is not None else "."),
        evidence=[
            Evidence(
                text=f"queue {queue} ms, compute {work} ms a request (mean of {mean.n:.0f})",
                source=mean.place,
                name="queue_mean",
                value=mean.queue_ms,
                unit="ms",
            ),
            Evidence(
                text=f"{rate:.4g} requests a second keep {count} instance(s) busy {busy:.0%}",
                source=mean.place,
                name="busy",
                value=busy,
            ),
            *(
                [Evidence(text=f"the device is used {device:.0%}", source="gpu_util", name="gpu_util", value=device)]
                if device is not None
                else []
            ),
        ],
        explains_ms=mean.queue_ms,
        relation=f"{rate:.4g}/s x {work} ms / {count} = {busy:.0%}; queue {queue} ms",
        n=int(mean.n),
        advice="Raise `instance_group` count (the device has room), or let the batcher gather requests "
        "(`dynamic_batching`, `max_batch_size`).",
        price="Each instance needs memory of its own; instances on one device slow each other down as it fills.",
        verify=(
            f"tailrace bench http://localhost:8000 --rate {rate:.3g} --duration 60 --out after.run && "
            "tailrace compare before.run after.run"
        ),
        missing=missing,
        disproof_checked=[f"the device is used {device:.0%}" if device is not None else "the device was not looked at"],
        action=Action.TUNE,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )
