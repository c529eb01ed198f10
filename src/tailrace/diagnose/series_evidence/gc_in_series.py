"""Pauses of a garbage collector in series: on a beat, ever rarer by a quarter, or longer with the process's age."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.asked import number_stated
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.series_evidence.shared_gaps import SharedGaps, beat_of, common_series, shared_gaps
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.stats.correlation import correlation, straight_line

__all__ = ["ADVICE", "PRICE", "VERIFY", "gc_in_series"]

Floats = NDArray[np.float64]
OUTLIER: Final = 3.0
QUARTER: Final = (1.15, 1.35)
"""CPython's full collection runs when objects grew by a quarter: each comes at 1.25 times the place of the last one,
1.23 as seen."""
LEAST_RATIOS: Final = 6
GOOD: Final = 0.8
SLOPE_FIT: Final = 0.9
FILLS: Final = 0.8
"""Of the beat, by the stops themselves."""
HOURS: Final = 3600.0
LEAST_RUNNING: Final = 4
FOLLOWS: Final = 0.8
"""Correlation of the stops with the running requests from which they follow the batch."""

ADVICE: Final = (
    "Freeze the heap after the warm-up (`gc.collect(); gc.freeze()` in the engine's process), raise the thresholds "
    "(`gc.set_threshold(700, 10, 1000)`), and look for other work on a timer in it (metrics, logs, watchdogs). "
    "VLLM_GC_DEBUG=1 prints vLLM's pauses."
)
PRICE: Final = "Cycles made after the freeze are freed later or never: watch the process's memory."
VERIFY: Final = (
    "tailrace bench http://localhost:8000 --rate 5 --duration 120 --out after.run && tailrace "
    "compare before.run after.run"
)


class _Line(NamedTuple):
    """Length by age: a straight line."""

    per_hour_ms: float
    fit: float
    first: tuple[float, float]
    last: tuple[float, float]


def gc_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """The first of three signatures that is there: iterations, a beat, growth with age."""
    return _by_iteration(cause, observed) or _by_beat(cause, observed) or _by_age(cause, observed)


# -- places that grow by a quarter


def _by_iteration(cause: Cause, observed: Observed) -> Finding | None:
    for series in observed.of_series("wall"):
        if series.axis not in ("iteration", "time"):
            continue
        found = _outliers(series, observed)
        if found is None:
            continue
        rows, usual, listed = found
        places = series.at[rows]
        places = places[places > 0]
        if places.size < LEAST_RATIOS + 1:
            continue
        ratios = places[1:] / places[:-1]
        middle = float(np.median(ratios))
        near = float((np.abs(ratios - middle) <= 0.04).mean())
        if not QUARTER[0] <= middle <= QUARTER[1] or near < GOOD:
            continue
        return _growing_places(cause, observed, series, rows, ratios, usual, listed=listed)
    return None


def _outliers(series: Series, observed: Observed) -> tuple[NDArray[np.int64], float, bool] | None:
    """(rows of the slow ones, what is usual (ms), whether only slow ones are listed)."""
    typical = next((item for item in observed.of_series("typical_wall") if len(item) == len(series)), None)
    usual = typical.values if typical is not None else np.full(len(series), float(np.nanmedian(series.values)))
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(series.values > OUTLIER * usual)
    if not rows.size:
        return None
    return rows, float(np.nanmedian(usual)), rows.size >= 0.9 * len(series)


def _growing_places(
    cause: Cause,
    observed: Observed,
    series: Series,
    rows: NDArray[np.int64],
    ratios: Floats,
    usual: float,
    *,
    listed: bool,
) -> Finding:
    middle = f"{float(np.median(ratios)):.2f}"
    low, high = f"{float(ratios.min()):.2f}", f"{float(ratios.max()):.2f}"
    count, first, last = int(rows.size), series.at[rows[0]], series.at[rows[-1]]
    worst = float(series.values[rows].max())
    total = observed.number("iterations_total", "iterations", "n", "points")
    whole = total or (float(len(series)) if not listed else None)
    missing = []
    if whole is None:
        missing.append("how many iterations there were in all: whether only these were slow")
    unit = "iteration" if series.axis == "iteration" else "second"
    evidence = [
        Evidence(
            text=f"{count} pauses at {unit}s {first:.0f} to {last:.0f}, up to {worst:.0f} ms where {usual:.3g} ms is "
            "usual",
            source=str(series.line_of(int(rows[0]))),
            name="pauses",
            value=float(count),
        ),
        Evidence(
            text=f"each comes at {middle} times the {unit} of the last one (median of {ratios.size} ratios, {low} to "
            f"{high})",
            source=str(series.line_of(int(rows[-1]))),
            name="ratio",
            value=float(np.median(ratios)),
        ),
    ]
    share = ""
    if whole:
        share = f" {count}/{whole:.0f} = {count / whole:.2%} of all {unit}s."
        evidence.append(Evidence(text=f"{count} of {whole:.0f} {unit}s are slow", source=_whence(observed, series)))
    return cause.finding(
        statement=f"Garbage collection stops the process: {count} pauses of up to {worst:.0f} ms come ever rarer, "
        "each at "
        f"{middle} times the {unit} of the last one. CPython collects its oldest generation when it has grown by a "
        "quarter (25 %), so full collections are spaced so.",
        evidence=evidence,
        explains_ms=worst - usual,
        relation=f"{series.at[rows[1]]:.0f}/{first:.0f} = {series.at[rows[1]] / first:.2f}, ... "
        f"{last:.0f}/{series.at[rows[-2]]:.0f} = {last / series.at[rows[-2]]:.2f}; median {middle}, 1.25 by the 25 % "
        "rule;"
        f"{share}",
        n=int(whole or count),
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        missing=missing,
        disproof_checked=[f"the ratios are alike: {low} to {high}", "neither batch nor prompt size was given"],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _whence(observed: Observed, series: Series) -> str:
    found = observed.setting("iterations_total", "iterations", "n", "points")
    return str(found.place) if found is not None else str(series.place)


# -- a beat


def _by_beat(cause: Cause, observed: Observed) -> Finding | None:
    gaps = shared_gaps(observed)
    if gaps is None or gaps.axis not in ("time", "chunks"):
        return None
    beat = beat_of(gaps.at)
    if beat is None:
        return None
    if float(np.median(gaps.length_ms)) >= FILLS * beat.period * 1e3 and gaps.axis == "time":
        return None  # one stop follows on another: that is a step that long, and no timer between them
    missing, checked = [], []
    running = next((item for item in observed.of_series("running") if item.axis == "time" and len(item) > 3), None)
    if running is None or gaps.axis == "chunks":
        missing.append("running requests over the same time, to see that the stops do not follow the batch")
    else:
        inside = np.isin(running.at, gaps.at)
        if inside.any() and (~inside).any():
            here, there = float(np.nanmedian(running.values[inside])), float(np.nanmedian(running.values[~inside]))
            moved = float(np.nanstd(running.values)) / max(float(np.nanmean(running.values)), 1e-9)
            if abs(here - there) > 0.2 * max(there, 1.0) and moved > 0.1:
                return None  # they follow the batch
            checked.append(
                f"running is {here:.0f} at the stops and {there:.0f} between them: they do not follow the batch"
            )
        else:
            missing.append("running requests at the stops and between them")
    return _on_a_beat(cause, gaps, beat.period, beat.share, missing, checked)


def _on_a_beat(
    cause: Cause, gaps: SharedGaps, period: float, share: float, missing: list[str], checked: list[str]
) -> Finding:
    seconds = f"{period:.3g}"
    low, high = f"{float(gaps.length_ms.min()):.0f}", f"{float(gaps.length_ms.max()):.0f}"
    alone = f"{gaps.alone} stops of one stream alone" if gaps.alone else "no stream stops alone"
    return cause.finding(
        statement="Something on a timer stops the whole process, most likely its garbage collector: all "
        f"{gaps.streams} "
        f"streams stop at the same instant for {low} to {high} ms, every {seconds} s.",
        evidence=[
            Evidence(
                text=f"{gaps.at.size} stops common to all {gaps.streams} streams, {low} to {high} ms long (usual gap "
                f"{gaps.usual_ms:.0f} ms); {alone}",
                source=gaps.line,
                name="shared_stops",
                value=float(gaps.at.size),
            ),
            Evidence(
                text=f"one every {seconds} s: {share:.0%} of the distances are within 15 % of that period",
                source=gaps.line,
                name="period",
                value=period,
                unit="s",
            ),
        ],
        explains_ms=float(np.median(gaps.length_ms)) - gaps.usual_ms,
        relation=f"{gaps.at.size} stops, period {seconds} s, {high} ms / {gaps.usual_ms:.0f} ms = "
        f"{float(gaps.length_ms.max()) / max(gaps.usual_ms, 1e-9):.1f} usual gaps",
        n=gaps.readings,
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        missing=missing,
        disproof_checked=[
            f"the gaps are common to all {gaps.streams} streams",
            *checked,
            "a stack or the collector's log in one of the stops would prove it",
        ],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


# -- growth with age


def _by_age(cause: Cause, observed: Observed) -> Finding | None:
    for name in ("pause", "wall", "chunk_gap"):
        for series in observed.of_series(name):
            hours = {"uptime": 3600.0, "time": 3600.0}.get(series.axis)
            if hours is None or (series.axis == "time" and name != "pause"):
                continue
            line = _straight(series, hours)
            if line is not None and not _with_batch(observed, series.axis, series.at, series.values):
                return _with_age(cause, observed, series, line)
    gaps = shared_gaps(observed) or common_series(observed)
    if gaps is None or gaps.axis not in ("time", "uptime") or gaps.alone > gaps.at.size:
        return None
    if _with_batch(observed, gaps.axis, gaps.at, gaps.length_ms):
        return None
    # All streams stop together, hours apart, and each time for longer.
    stops = Series(name="stops", axis=gaps.axis, at=gaps.at, values=gaps.length_ms)
    line = _straight(stops, 3600.0) if float(np.ptp(gaps.at)) >= HOURS else None
    return None if line is None else _with_age(cause, observed, stops, line, where=gaps.line)


def _with_batch(observed: Observed, axis: str, at: Floats, length: Floats) -> bool:
    """Whether the stops go with how many run: then the batch makes them, and no collector."""
    for running in observed.of_series("running"):
        if len(running) >= LEAST_RUNNING and running.axis == axis and float(np.ptp(running.values)) > 0:
            near = np.clip(np.searchsorted(running.at, at), 0, len(running) - 1)
            return bool(correlation(running.values[near], length) >= FOLLOWS)
    return False


def _straight(series: Series, hour: float) -> _Line | None:
    known = np.isfinite(series.values) & np.isfinite(series.at)
    at, values = series.at[known] / hour, series.values[known]
    if at.size < 3 or float(np.ptp(at)) <= 0 or float(values.max()) < 100.0:
        return None
    slope, fit = straight_line(at, values)
    if slope <= 0 or fit < SLOPE_FIT or values[-1] < 1.5 * values[0]:
        return None
    return _Line(float(slope), fit, (float(at[0]), float(values[0])), (float(at[-1]), float(values[-1])))


def _with_age(cause: Cause, observed: Observed, series: Series, line: _Line, where: str = "") -> Finding:
    rate = f"{line.per_hour_ms / 1e3:.3g}"
    (begin, short), (end, long) = line.first, line.last
    texts = f"{short / 1e3:.3g} s at {begin:.3g} h, {long / 1e3:.3g} s at {end:.3g} h"
    missing = []
    timed = number_stated(observed, r"\bgc\b.*(?:collect|pause|time|duration)|garbage collect")
    if (shared_gaps(observed) or common_series(observed)) is None:
        missing.append("whether all streams stop together in these pauses")
    return cause.finding(
        statement=f"The pauses grow with the age (uptime) of the process by {rate} s an hour ({texts}): it holds "
        "ever more objects, and each full garbage collection walks over all of them: a leak and the collector.",
        evidence=[
            Evidence(
                text=f"pauses of {texts}",
                source=where or str(series.line_of(len(series) - 1)),
                name="pause",
                value=long,
                unit="ms",
            ),
            Evidence(
                text=f"a straight line of {rate} s an hour explains {line.fit:.0%} of their spread",
                source=where or str(series.line_of(0)),
                name="pause_growth",
                value=line.per_hour_ms,
                unit="ms/h",
            ),
            *([evidence_of_setting(timed)] if timed is not None else []),
        ],
        explains_ms=long,
        relation=f"({long / 1e3:.3g} - {short / 1e3:.3g}) s / ({end:.3g} - {begin:.3g}) h = {rate} s/h",
        n=len(series),
        advice="Find what is never let go (objgraph, tracemalloc: what grows between two hours), and freeze the heap "
        "after "
        "the warm-up. A restart only sets it back.",
        price=PRICE,
        verify="tailrace diagnose series.csv  # the same series over the next hours: the line is flat",
        missing=missing,
        disproof_checked=[f"straight in the age: {line.fit:.0%}"],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )
