"""LOCK_CONTENTION: the time of one stage grows in step with the concurrency, and no processor is busy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import USUAL_FIRST, as_share, figure, number_stated, worded
from tailrace.diagnose.arms.pairs import Point, sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.correlation import correlation

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["lock_on_arms"]

LEAST: Final = 3
IN_STEP: Final = 0.6
"""The time grows by at least so much of what the concurrency grows by, from end to end."""
FIT: Final = 0.95
IDLE: Final = 0.5
GAINED_MS: Final = 20.0
_CPU: Final = (
    r"\bcpu\b.*(?:util|busy|usage|load)|host (?:util|busy)|\b(?:host|system|node|server|process) cpu\b|^cpu(?: ?\(?%|$)"
)
_GPU: Final = r"\bgpu\b.*(?:util|busy|usage|load)|^gpu(?: ?\(?%|$)|gpu util"
_STAGES: Final = ("preprocess", "postprocess", "encode")
_NO_STAGE: Final = re.compile(
    r"queue|wait|gap|stall|time ?out|audio|window|interval|elapsed|wall|\blag\b|\bage\b|first|ttf|total|e2e|end to end|"
    r"latency|per token|token time|round ?trip|rtt|duration|response|decode|prefill|generat|inference|infer\b|compute"
)
"""Durations that grow with the load of any full device or queue: no stage that a lock serves in turn."""
_WORDS: Final = re.compile(r"token[iy]|template|lock|mutex|retriev|moderat|guardrail|resize|decode (?:image|audio)")


def lock_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Rows along the concurrency: one stage is linear in it."""
    for name in (*_STAGES, ""):
        points = sweep(observed, r"\bconcurrency\b|in.?flight|\bthreads?\b|\bclients?\b|\bsessions?\b", lambda arm, n=name: _stage(arm, n) is not None)  # type: ignore[misc]  # fmt: skip  # noqa: E501
        found = _linear(cause, observed, points, name) if len(points) >= LEAST else None
        if found is not None:
            return found
    return None


def _stage(arm: Arm, name: str) -> Quoted | None:
    if name:
        return figure(arm, name, stats=USUAL_FIRST)
    spans = [value for value in arm.values.values() if value.unit == "ms" and not value.relative]
    named = next((value for value in spans if _WORDS.search(value.label.lower())), None)
    if named is not None:
        return named
    # Any other step that somebody timed apart (`kv load`, `template render`), under the name that they gave it.
    return next(
        (value for value in spans if value.quantity not in QUANTITIES and not _NO_STAGE.search(value.label.lower())),
        None,
    )


def _linear(cause: Cause, observed: Observed, points: list[Point], name: str) -> Finding | None:
    values = [_stage(point.arm, name) for point in points]
    if any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    x, y = np.array([point.x for point in points]), np.array([value.value for value in known])
    if len({value.key for value in known}) > 1 or x[0] <= 0 or y[0] <= 0 or y[-1] - y[0] < GAINED_MS:
        return None
    step = (y[-1] / y[0]) / (x[-1] / x[0])
    fit = correlation(x, y)
    if step < IN_STEP or fit < FIT:
        return None
    busy = worded(points[-1].arm, _CPU)
    share = None if busy is None else as_share(busy.value, busy.unit)
    stated = number_stated(observed, _CPU) if busy is None else None
    if stated is not None and stated.number is not None:
        share = as_share(stated.number, stated.unit)
    if share is not None and share >= IDLE:
        return None
    gpu = figure(points[-1].arm, "gpu_util", stats=USUAL_FIRST) or worded(points[-1].arm, _GPU)
    device = None if gpu is None else as_share(gpu.value, gpu.unit)
    idles = share is not None and device is not None and device < IDLE
    if not name and not _WORDS.search(known[0].label.lower()) and not idles:
        return None  # a step of no known kind may be the device's own work: it must be known to idle
    last, first = known[-1], known[0]
    missing = [] if share is not None else ["use of the host's processors meanwhile: a lock leaves them idle"]
    idle = f" while the host's processors are busy {share:.0%} only" if share is not None else ""
    idle += f" and the GPU {device:.0%}" if share is not None and device is not None and device < IDLE else ""
    n = figure(points[-1].arm, "n")
    return cause.finding(
        statement=f"One thing at a time: {quantity(last)} grows in step with the concurrency, from "
        f"{number(first.value, 'ms')} at {points[0].x:g} to {number(last.value, 'ms')} at {points[-1].x:g}{idle}: a "
        "lock (or a single thread) does this stage for all requests in turn.",
        evidence=[
            *(evidence_of(point.arm, value) for point, value in zip(points, known, strict=True)),
            Evidence(f"a straight line in the concurrency (correlation {fit:.3f})", "computed", "fit", round(fit, 4)),
            *([evidence_of(points[-1].arm, busy)] if busy is not None else []),
            *([evidence_of_setting(stated)] if stated is not None else []),
            *([evidence_of(points[-1].arm, gpu)] if gpu is not None else []),
        ],
        explains_ms=float(y[-1] - y[0]),
        relation=f"x {y[-1] / y[0]:.3g} at x {x[-1] / x[0]:.3g} the concurrency: "
        f"{number(float(np.median(y / x)), 'ms')} for each that is there",
        n=int(n.value) if n is not None else len(points),
        advice="Find the serial section (py-spy dump while requests wait in this stage: the frame that all threads "
        "stand in) and remove it: a lock per session, a pool of processes, no global cache lock; a larger machine "
        "changes nothing.",
        price="Processes hold their data more than once.",
        verify=again(points[-1].arm),
        missing=missing,
        rivals=["FE_CPU_STARVED"] if missing else [],
        disproof_checked=[f"the host is busy {share:.0%}"] if share is not None else [],
    )
