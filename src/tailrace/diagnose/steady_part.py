"""A window without its warm-up, and what is said of both: what holds once warm leads, what the start alone shows
follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.timebase import starts_ns
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.healthy import NOTHING_WRONG
from tailrace.diagnose.observed import Clock, Observed
from tailrace.diagnose.observed.load import loads
from tailrace.diagnose.precedence import BEHIND
from tailrace.diagnose.record_evidence.warm_start import BEGIN_S, WarmStart, warm_start
from tailrace.diagnose.window import Window
from tailrace.model.finding import Diagnosis, Finding, Part
from tailrace.store.table import RecordTable

__all__ = ["WARM_UP", "of_both", "parted", "steady_observed", "steady_part"]

WARM_UP: Final = "METRIC_WARM_UP"
FIRST_USES: Final = "COMPUTE_JIT"
"""Its stops come at first uses, most of them in the start. Without those the last ones look like something else."""
_LEFT_OVER: Final = BEHIND[FIRST_USES] | {FIRST_USES}


def steady_part(evidence: EvidenceSet) -> EvidenceSet | None:
    """The requests that began once it was warm, against those of the window before without its own start. `None`
    where the window has no warm-up.
    """
    found = _start_of(evidence.now)
    if found is None:
        return None
    late = evidence.with_table(_after(evidence.now, found))
    before = None if evidence.before is None else _start_of(evidence.before)
    if before is not None and evidence.before is not None:
        late.before_table = _after(evidence.before, before)
    return late


def _start_of(window: Window) -> WarmStart | None:
    return warm_start(window.start / 1e9, window.done.ms("ttft")) if window.n else None


def _after(window: Window, start: WarmStart) -> RecordTable:
    known = window.start[np.isfinite(window.done.ms("ttft"))]
    return window.every.where(starts_ns(window.every) > float(known.min()) + start.until_s * 1e9)


def steady_observed(observed: Observed) -> Observed | None:
    """The same readings and events without those of the first minute of load, on each clock that has one. Counters and
    histograms, which cannot be cut, stay as they are. `None` where nothing is left to look at.
    """
    cuts: dict[tuple[str, Clock], float] = {}
    for load in loads(observed):
        running = load.get("running")
        busy = np.flatnonzero(running > 0) if load.timed else np.zeros(0, dtype=np.int64)
        if busy.size:
            key = (load.place.source, load.clock)
            cuts[key] = min(cuts.get(key, np.inf), float(load.at[busy[0]]) + BEGIN_S)
    if not cuts:
        return None
    series = []
    for item in observed.series:
        cut = cuts.get((item.place.source, item.clock))
        if cut is None or item.axis != "time":
            series.append(item)
            continue
        keep = item.at >= cut
        lines = None if item.lines is None else item.lines[keep]
        series.append(msgspec.structs.replace(item, at=item.at[keep], values=item.values[keep], lines=lines))
    events = [
        event
        for event in observed.events
        if event.at is None or event.at >= cuts.get((event.place.source, event.clock), -np.inf)
    ]
    return msgspec.structs.replace(observed, series=series, events=events)


def parted(whole: Sequence[Finding], steady: Sequence[Finding]) -> list[Finding]:
    """Findings of the steady part, then those that only the window with its start shows. What says that there was a
    warm-up is neither.
    """
    kept = {item.code for item in steady}
    said = [item for item in whole if item.code == WARM_UP]
    rest = [item for item in whole if item.code not in kept | {WARM_UP}]
    return [
        *(msgspec.structs.replace(item, part=Part.STEADY) for item in steady if item.code != WARM_UP),
        *(msgspec.structs.replace(item, part=Part.START) for item in rest),
        *said,
    ]


def of_both(whole: Diagnosis, steady: Diagnosis, late: EvidenceSet) -> Diagnosis:
    """The answer for the steady part, with what the start adds. Where the steady part shows nothing, the start's."""
    findings = parted(whole.findings, steady.findings)
    first = whole.findings[0] if whole.findings else None
    if first is not None and first.code == FIRST_USES and all(item.code in _LEFT_OVER for item in steady.findings):
        return msgspec.structs.replace(
            whole, steady=f"First uses are what the start shows. Once warm (n = {late.now.n}): {steady.summary}"
        )
    with_start = "no cause" if first is None else f"{first.code} ({first.level})"
    if steady.findings:
        lead = steady
        text = (
            f"This is the answer for the {late.now.n} requests that came once it was warm; with the start in it, it "
            f"was {with_start}."
        )
    else:
        lead = whole
        calm = steady.summary.startswith(NOTHING_WRONG)
        begin = (
            f"That holds for the start alone. Once warm (n = {late.now.n})"
            if calm
            else (f"Without the start (n = {late.now.n})")
        )
        text = f"{begin}: {steady.summary}"
    return msgspec.structs.replace(
        lead,
        validity=whole.validity,
        findings=findings,
        action=findings[0].action if findings else lead.action,
        steady=text,
    )
