"""A cost of each step that grows with how much was already said, at a batch that stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tailrace.diagnose.arms.asked import figure, worded
from tailrace.diagnose.arms.of_requests import tpot_of
from tailrace.diagnose.arms.pairs import sweep
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Observed, Place, Quoted, Series
from tailrace.diagnose.series_evidence.shared_gaps import at_times
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.stats.correlation import correlation, straight_line

__all__ = ["growth_with_position"]

GROWTH: Final = 1.2
FIT: Final = 0.8
SURE: Final = 0.97
"""Of three points: a line through them proves little."""
CONSTANT: Final = 0.1
LEAST: Final = 4
FAR: Final = 4000.0
"""Tokens: answers of a few hundred differ by other things than their length."""
_LENGTH: Final = r"output tokens|output len|output position|token (?:index|position)|\bposition\b|tokens? so far"
_CPU: Final = r"(?:cpu|host|detok\w*).*(?:step|token|\bms\b)|detok"


def growth_with_position(cause: Cause, observed: Observed) -> Finding | None:
    """CPU time by step (or the gap between tokens) rises in a line with the output position."""
    for name in ("cpu_step", "itl", "chunk_gap"):
        for series in observed.of_series(name):
            if series.axis != "output_position":
                continue
            found = _line(series)
            if found is not None:
                return _judged(cause, observed, series, *found)
    for series, running in (*_of_table(observed), *_of_requests(observed)):
        found = _line(series)
        if found is not None and series.at[-1] >= FAR:
            along = [] if running is None else [running]
            return _judged(cause, msgspec.structs.replace(observed, series=along), series, *found)
    return None


def _of_table(observed: Observed) -> list[tuple[Series, Series | None]]:
    """Rows along the length of the answer: CPU time of a step, else the gap between tokens, and the batch."""
    out = []
    for name, has in (("cpu_step", _cpu), ("itl", _gap)):
        points = sweep(observed, _LENGTH, lambda arm, has=has: has(arm) is not None)  # type: ignore[misc]
        if len(points) >= LEAST - 1:
            batch = [figure(point.arm, "running", "concurrency") for point in points]
            told = [None if value is None else value.value for value in batch]
            values = [value.value for point in points if (value := has(point.arm)) is not None]
            at = [point.x for point in points]
            out.append(
                (_series(name, at, values, points[0].arm.place), _series("running", at, told, points[0].arm.place))
            )
    return [(series, running if np.isfinite(running.values).all() else None) for series, running in out]


def _cpu(arm: Arm) -> Quoted | None:
    return worded(arm, _CPU)


def _gap(arm: Arm) -> Quoted | None:
    return figure(arm, "itl", "tpot", "chunk_gap")


def _of_requests(observed: Observed) -> list[tuple[Series, Series | None]]:
    """The time per token of requests along what they wrote."""
    out = []
    for rows in observed.table("requests"):
        tokens, gap = rows.numbers("output_tokens"), tpot_of(rows)
        known = np.flatnonzero(np.isfinite(tokens) & np.isfinite(gap))
        known = known[np.argsort(tokens[known], kind="stable")]
        if known.size < LEAST:
            continue
        beside = next((rows.numbers(name) for name in ("engine_running", "in_flight") if rows.has(name)), None)
        at = tokens[known].tolist()
        running = None if beside is None else _series("running", at, beside[known].tolist(), rows.place)
        out.append((_series("itl", at, gap[known].tolist(), rows.place), running))
    return out


def _series(name: str, at: list[float], values: Sequence[float | None], place: Place) -> Series:
    return Series(
        name=name, axis="output_position", at=np.array(at, dtype=np.float64),
        values=np.array(values, dtype=np.float64), unit="ms", place=place,
    )  # fmt: skip


def _line(series: Series) -> tuple[float, float] | None:
    """(ms by 1,000 tokens, share of the spread that the line explains)."""
    known = np.isfinite(series.values)
    at, values = series.at[known], series.values[known]
    if at.size < LEAST - 1 or (at.size < LEAST and straight_line(at / 1e3, values)[1] < SURE) or np.ptp(at) <= 0:
        return None
    slope, fit = straight_line(at / 1e3, values)
    third = max(at.size // 4, 1)
    grown = float(np.median(values[-third:])) / max(float(np.median(values[:third])), 1e-9)
    return (float(slope), fit) if slope > 0 and fit >= FIT and grown >= GROWTH else None


def _judged(cause: Cause, observed: Observed, series: Series, slope: float, fit: float) -> Finding | None:
    missing, rivals, checked = [], [], []
    running = next((item for item in observed.of_series("running") if item.axis == series.axis and len(item)), None)
    if running is None:
        missing.append("running requests at each position: the slope must hold at a constant batch")
    else:
        values = at_times(running, series)
        middle = float(np.nanmean(values))
        spread = float(np.nanstd(values)) / max(middle, 1e-9)
        if spread > CONSTANT:
            known = np.isfinite(values) & np.isfinite(series.values)
            along = correlation(values[known], series.values[known]) if known.sum() > 2 else 0.0
            if along > 0.7:
                return None  # it grows with the batch
            missing.append(f"a run at a constant batch: running varies by {spread:.0%} here")
        else:
            checked.append(f"running is {middle:.0f} at every position")
    of_cpu = series.name == "cpu_step"
    if not of_cpu:
        missing.append("CPU time of the front end by step (py-spy, nsys): attention over a longer context grows too")
        rivals.append("COMPUTE_MEMORY_BOUND: attention reads a longer context at every step")
    first, last = (
        int(np.flatnonzero(np.isfinite(series.values))[0]),
        int(np.flatnonzero(np.isfinite(series.values))[-1]),
    )
    begin, end = series.at[first], series.at[last]
    low, high = f"{series.values[first]:.3g}", f"{series.values[last]:.3g}"
    what = "CPU time of a step" if of_cpu else "the gap between tokens"
    rate = f"{slope:.3g}"
    return cause.finding(
        statement=f"{what[0].upper()}{what[1:]} grows with the output position: {low} ms at {begin:.0f} tokens, "
        f"{high} ms at "
        f"{end:.0f}. The detokeniser (or whatever looks at the whole answer at each step) does ever more work.",
        evidence=[
            Evidence(
                text=f"{what}: {low} ms at {begin:.0f} tokens, {high} ms at {end:.0f}",
                source=str(series.line_of(last)),
                name=series.name,
                value=float(series.values[last]),
                unit="ms",
            ),
            Evidence(
                text=f"slope {rate} ms by 1000 tokens; a straight line explains {fit:.0%} of the spread",
                source=str(series.line_of(first)),
                name="slope",
                value=slope,
                unit="ms/1000 tokens",
            ),
            *(
                [Evidence(text=checked[0], source=str(running.place), name="running")]
                if checked and running is not None
                else []
            ),
        ],
        explains_ms=float(series.values[last] - series.values[first]),
        relation=f"({high} - {low}) ms / ({end:.0f} - {begin:.0f}) tokens x 1000 = "
        f"{float(series.values[last] - series.values[first]) / float(end - begin) * 1e3:.3g} ms by 1000 tokens",
        n=len(series),
        advice="Use an incremental detokeniser (the fast tokenizer's decode stream; a newer engine), stop strings "
        "that look "
        "at the tail only, and cap outputs (`max_tokens`) where nobody reads 60,000 tokens.",
        price="A cap cuts long answers; nothing else.",
        verify=(
            "tailrace diagnose series.csv  # the same series at a constant batch after the change: the slope is flat"
        ),
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
        action=Action.FIX,
        level=Level.SUSPECTED if missing or rivals else Level.CONSISTENT,
    )
