"""LOCK_CONTENTION from calls that take N times as long when N are made at once, while the device idles.

One serial section (a lock, one thread, one loop) serves all in turn: at N there are N ahead. A full device does the
same, so the device must be known to be idle.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import USUAL_FIRST, as_share, figure, number_stated, worded
from tailrace.diagnose.arms.pairs import Point, sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["one_by_one"]

LEAST: Final = 3
GROWS: Final = 3.0
"""The axis spans so much: twice as many prove no line."""
STRAIGHT: Final = 0.2
"""Time over how many there are is one number, to this much."""
IDLE: Final = 0.6
LEAST_MS: Final = 100.0
_AXIS: Final = (
    r"\bconcurren\w*|in flight|\bthreads?\b|\bclients?\b|\bsessions?\b|\bstreams?\b|\busers?\b|\bconnections?\b|"
    r"\bparallel\b"
)
_CALL: Final = re.compile(
    r"\btime\b|latency|duration|\bcall|service|infer|process|transcri|decode|\bchunk|per (?:chunk|request|call)",
    re.IGNORECASE,
)
_NOT: Final = re.compile(r"queue|wait|timeout|gap|audio|window|interval|elapsed|wall", re.IGNORECASE)
_GPU: Final = r"\bgpu\b.*(?:util|busy|usage|load)|^gpu$|gpu util"
_CPU: Final = r"\bcpu\b.*(?:util|busy|usage|load)|host (?:util|busy)"


def one_by_one(cause: Cause, observed: Observed) -> Finding | None:
    """Rows along the concurrency: the time of a call is its multiple, and the device has room."""
    points = sweep(observed, _AXIS, lambda arm: _call(arm) is not None)
    calls = [call for point in points if (call := _call(point.arm)) is not None]
    if len(points) < LEAST or len({call[0].key for call in calls}) > 1:
        return None
    x, y = np.array([point.x for point in points]), np.array([ms for _, ms in calls])
    if x[0] <= 0 or y[0] <= 0 or x[-1] < GROWS * x[0] or y[-1] - y[0] < LEAST_MS:
        return None
    each = y / x
    if float(np.ptp(each)) > STRAIGHT * float(np.median(each)):
        return None
    gpu, shown = _busy(observed, points, "gpu_util", _GPU)
    if gpu is None or gpu >= IDLE:
        return None
    cpu, on_host = _busy(observed, points, "", _CPU)
    if cpu is not None and cpu >= IDLE:
        return None
    low, high = points[0], points[-1]
    grew, more = y[-1] / y[0], x[-1] / x[0]
    return cause.finding(
        statement=f"One at a time: a call takes {number(float(y[0]), 'ms')} at {low.x:g} and "
        f"{number(float(y[-1]), 'ms')} at {high.x:g} (x {grew:.3g} at x {more:.3g}), {number(float(np.median(each)))} "
        f"ms for each that is there, while the GPU is busy {gpu:.0%} only: a lock, one thread or one event loop serves "
        "all in turn.",
        evidence=[
            *(evidence_of(point.arm, call) for point, (call, _) in zip(points, calls, strict=True)),
            Evidence(
                "time / how many: " + ", ".join(f"{value:.4g}" for value in each) + " ms", "computed", "each_ms",
                round(float(np.median(each)), 3), "ms",
            ),
            *shown,
            *on_host,
        ],
        explains_ms=float(y[-1] - y[0]),
        relation=f"{y[-1]:.4g} / {y[0]:.4g} ms = {grew:.3g} at {high.x:g} / {low.x:g} = {more:.3g}; GPU {gpu:.0%}",
        n=len(points),
        advice="Find the serial section (py-spy dump while calls wait: the frame that all threads stand in) and remove "
        "it: no lock around the model, batch what waits, a pool of processes or model instances, nothing heavy on the "
        "event loop. A faster GPU or smaller weights leave the line as it is.",
        price="Instances hold the weights more than once; batching delays the first of a batch.",
        verify=again(high.arm) + "  # py-spy dump --pid PID meanwhile: who holds the lock",
        missing=[
            "a stack dump while calls wait: a lock, or one event loop",
            *([] if cpu is not None else ["use of the host's processors meanwhile: one full core looks the same"]),
        ],
        rivals=["FE_EVENTLOOP_BLOCK"],
        disproof_checked=[f"GPU busy {gpu:.0%}", *([f"host busy {cpu:.0%}"] if cpu is not None else [])],
        level=Level.SUSPECTED,
    )  # fmt: skip


def _call(arm: Arm) -> tuple[Quoted, float] | None:
    """The time of one call of that arm, and in ms."""
    named = figure(arm, "e2e", "compute", "decode", stats=USUAL_FIRST)
    found = named or next(
        (
            value
            for value in arm.values.values()
            if not value.relative
            and value.unit
            and value.stat in {"", "p50", "mean", "p95", "p99"}
            and _CALL.search(f"{value.label} {value.quantity.replace('_', ' ')}")
            and not _NOT.search(value.label)
            and in_unit(value.value, value.unit, "ms") is not None
        ),
        None,
    )
    ms = None if found is None else in_unit(found.value, found.unit, "ms")
    return None if found is None or ms is None else (found, ms)


def _busy(observed: Observed, points: list[Point], series: str, words: str) -> tuple[float | None, list[Evidence]]:
    """(use of the device at the highest point, where it is known from)."""
    told = worded(points[-1].arm, words)
    if told is not None:
        return as_share(told.value, told.unit), [evidence_of(points[-1].arm, told)]
    for item in observed.of_series(series) if series else []:
        if np.isfinite(item.values).any():
            busy = float(np.nanmax(item.values))
            busy = busy / 100.0 if item.unit == "%" else busy
            text = f"GPU busy {busy:.0%} at most (n = {len(item)})"
            return busy, [Evidence(text, str(item.place), series, round(busy, 4), "share")]
    stated = number_stated(observed, words)
    if stated is not None and stated.number is not None:
        return as_share(stated.number, stated.unit or "%"), [evidence_of_setting(stated)]
    return None, []
