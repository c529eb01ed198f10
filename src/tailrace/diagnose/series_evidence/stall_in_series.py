"""All streams stand still together when the batch changes, and nothing names a compiler."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.limits import LOOP_LATE_MS
from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.series_evidence.jit_in_stacks import taken_in_the_stall
from tailrace.diagnose.series_evidence.shared_gaps import SharedGaps, at_times, beat_of, shared_gaps
from tailrace.diagnose.series_evidence.stops_in_chunks import stops_in_chunks
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["stall_in_series"]

MOST: Final = 0.7
FEWER: Final = 0.4
LEAST: Final = 3
MANY: Final = 3
"""Streams that must stop together where nothing else tells that it is the engine."""
FEWEST: Final = 2
"""Where a stack taken in a stop says what the engine did."""


def stall_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """Common stops lie where running changes, and running changes seldom elsewhere; or what is missing to tell why
    streams that began together all stop together.
    """
    gaps = shared_gaps(observed)
    return _moment_or_place(cause, observed) if gaps is None else _at_changes(cause, observed, gaps)


def _at_changes(cause: Cause, observed: Observed, gaps: SharedGaps) -> Finding | None:
    running = next((item for item in observed.of_series("running") if len(item) >= 6), None)
    stack = _stack(observed)
    if running is None or running.axis != gaps.axis or gaps.at.size < (LEAST if not stack else FEWEST):
        return None
    if beat_of(gaps.at) is not None or observed.of_kind("jit"):
        return None
    if any(event.attributes.get("class") == "jit" for event in observed.of_kind("stack")):
        return None
    for name in ("loop_lag", "health_rtt"):
        lag = next((item for item in observed.of_series(name) if len(item)), None)
        stops = Series(name="stops", axis=gaps.axis, at=gaps.at, values=gaps.length_ms)
        if lag is not None and float(np.nanmedian(at_times(lag, stops))) > LOOP_LATE_MS:
            return None  # the loop was blocked
    changed = running.at[1:][np.abs(np.diff(running.values)) > 0]
    inside = np.isin(gaps.at, changed)
    elsewhere = np.isin(running.at, changed) & ~np.isin(running.at, gaps.at)
    others = max(running.at.size - gaps.at.size, 1)
    if inside.mean() < MOST or elsewhere.sum() / others > FEWER:
        return None
    hit, stops_n = int(inside.sum()), int(gaps.at.size)
    longest = f"{float(gaps.length_ms.max()):.0f}"
    idle = [item for item in observed.of_series("gpu_util") if len(item)]
    return cause.finding(
        statement=f"Every stream stands still when the batch changes: {hit} of {stops_n} stops common to all "
        f"{gaps.streams} "
        f"streams (up to {longest} ms) come as the number of running requests changes"
        + (f"; a stack in a stop stands in {stack}." if stack else ". Nothing here names the kernel or the compiler."),
        evidence=[
            Evidence(
                text=f"{stops_n} stops common to all {gaps.streams} streams, up to {longest} ms; {hit} of them at a "
                "change of "
                "running",
                source=gaps.line,
                name="shared_stops",
                value=float(stops_n),
            ),
            Evidence(
                text=f"running changes at {int(elsewhere.sum())} of {others} other readings",
                source=str(running.place),
                name="running",
                value=float(elsewhere.sum()),
            ),
            *([Evidence(text=f"stack in a stop: {stack}", source="stack", name="frame")] if stack else []),
        ],
        explains_ms=float(np.median(gaps.length_ms)) - gaps.usual_ms,
        relation=f"{hit}/{stops_n} = {hit / stops_n:.0%} of the stops at a change of the batch, "
        f"{int(elsewhere.sum())}/{others} of the other readings",
        n=gaps.readings,
        advice="Take a stack dump of the engine and its workers inside a stop (`py-spy dump --pid PID`): it names "
        "the frame. Do "
        "not guess the kernel. If it is a compiler, warm the shapes up; if it is a graph capture, capture more batch "
        "sizes.",
        price="A dump stops the process for some milliseconds.",
        verify="tailrace diagnose dump.txt series.csv  # py-spy dump --pid PID > dump.txt, in a stop",
        missing=[
            *([] if stack else ["a stack dump of engine and workers in one of the stops"]),
            *([] if idle else ["use of the accelerator in the stops"]),
        ],
        disproof_checked=[f"the gaps are common to all {gaps.streams} streams", "they keep no beat"],
        action=Action.COLLECT,
        level=Level.CONSISTENT if stack and idle else Level.SUSPECTED,
    )


def _moment_or_place(cause: Cause, observed: Observed) -> Finding | None:
    """Streams that began together and all stand still together: what is missing to tell why."""
    for rows in observed.table("chunks"):
        stops = stops_in_chunks(rows)
        if stops is not None and not stops.together and stops.streams >= MANY and observed.table("chunks") == [rows]:
            longest = float(stops.length_ms.max())
            many = f"{stops.begin.size} stops" if stops.begin.size > 1 else "a stop"
            return cause.insufficient(
                f"why all {stops.streams} streams stand still together ({many} of up to {longest:.0f} ms, usual gap "
                f"{stops.usual_ms:.0f} ms): they began together, so the moment and the place of the text are one. "
                "Streams that begin at other times would tell them apart; a stack dump of the engine in such a stop, "
                "the loop's lag and the engine's log of that moment name it"
            )
    return None


def _stack(observed: Observed) -> str:
    """The innermost frame of an active thread, of a dump that is said to be taken in a stop; empty without one."""
    if not taken_in_the_stall(observed)[0]:
        return ""
    active = [event for event in observed.of_kind("stack") if event.attributes.get("state") == "active"]
    return active[0].text if active else ""
