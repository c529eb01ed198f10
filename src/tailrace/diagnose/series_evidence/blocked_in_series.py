"""An event loop that is blocked, in series: it lags, or its simplest page waits, while all streams stop together."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.limits import LOOP_LATE_MS
from tailrace.diagnose.observed import Event, Observed, Series
from tailrace.diagnose.series_evidence.jit_in_stacks import taken_in_the_stall
from tailrace.diagnose.series_evidence.shared_gaps import SharedGaps, at_times, beat_of, shared_gaps
from tailrace.model.finding import Action, Evidence, Finding, Level, Proof
from tailrace.stats.correlation import correlation

__all__ = ["blocked_in_series"]

OF_THE_LOOP: Final = frozenset({"tokenizer", "image", "audio", "grammar", "detokenizer", "output", "json"})
ALONG: Final = 0.6
"""Correlation of the lag with what is being prepared from which on it is named."""


class _Lag(NamedTuple):
    """How late the loop was."""

    name: str
    series: Series
    worst: float
    row: int
    usual: float
    at_stops: float | None
    """Median at the common stops; `None` without any."""


def blocked_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """The loop's lag (or the round trip of a trivial page) is above 100 ms, at the stops that all streams share."""
    gaps = shared_gaps(observed)
    lag = _lag(observed, gaps)
    if lag is not None and gaps is not None and gaps.axis == "chunks":
        gaps = None  # two clocks: whether the loop lags at these stops is not known
    stacks = [
        event
        for event in observed.of_kind("stack")
        if event.attributes.get("class") in OF_THE_LOOP
        and event.attributes.get("main") == "yes"
        and event.attributes.get("state") == "active"
    ]
    if lag is None and not stacks:
        return None
    inside = taken_in_the_stall(observed)[0]
    frozen = observed.setting("all_streams_frozen")
    if lag is None and gaps is None and (inside is False or (frozen is not None and frozen.value is False)):
        return None  # a dump from another moment; or others went on
    if lag is not None and lag.at_stops is not None and lag.at_stops < LOOP_LATE_MS:
        return None  # the loop was on time while the streams stood still
    if gaps is not None and lag is None and beat_of(gaps.at) is not None:
        return None  # on a beat: a collector's signature, and nobody looked at the loop
    missing = []
    if lag is None:
        missing.append("the loop's lag (timer drift, or the round trip of /health) during the stops")
    if gaps is None and frozen is None and not (lag is not None and stacks and inside):
        # The loop's lag and, at that moment, the stack that holds it say it all.
        missing.append("chunk gaps of several streams, to see that all stop together")
    if lag is None and gaps is None:
        # The stack itself is what was seen of the loop, if it was seen while it was slow.
        missing = missing[1:] if inside else ["that the dump was taken while it was slow", *missing[1:]]
    return _found(cause, observed, lag, gaps, stacks, missing)


def _lag(observed: Observed, gaps: SharedGaps | None) -> _Lag | None:
    """The worst series of lag; `None` where none is above 100 ms."""
    best = None
    for name in ("loop_lag", "health_rtt", "metrics_rtt"):
        for series in observed.of_series(name):
            values = np.nan_to_num(series.values, nan=0.0)
            if not values.size or float(values.max()) <= LOOP_LATE_MS or best is not None:
                continue
            row = int(np.argmax(values))
            stops = None
            if gaps is not None and series.axis == gaps.axis:
                near = at_times(series, _as_series(gaps))
                stops = float(np.nanmedian(near))
            best = _Lag(name, series, float(values[row]), row, float(np.median(values)), stops)
    return best


def _as_series(gaps: SharedGaps) -> Series:
    return Series(name="stops", axis=gaps.axis, at=gaps.at, values=gaps.length_ms)


def _beside(observed: Observed, lag: _Lag) -> tuple[str, float, Series] | None:
    """What grows and falls with the lag: images, audio, tokens that are being prepared."""
    best: tuple[str, float, Series] | None = None
    for series in observed.series:
        words = ("preprocess", "image", "token", "audio", "prompt", "upload", "tool")
        if series is lag.series or series.axis != lag.series.axis or not any(word in series.name for word in words):
            continue
        values = at_times(series, lag.series)
        known = np.isfinite(values) & np.isfinite(lag.series.values)
        if known.sum() < 5 or np.ptp(values[known]) == 0 or np.ptp(lag.series.values[known]) == 0:
            continue
        found = correlation(values[known], lag.series.values[known])
        if found >= ALONG and (best is None or found > best[1]):
            best = series.name, found, series
    return best


def _found(
    cause: Cause,
    observed: Observed,
    lag: _Lag | None,
    gaps: SharedGaps | None,
    stacks: list[Event],
    missing: list[str],
) -> Finding:
    evidence, relation, parts = [], [], []
    if lag is not None:
        what = {"loop_lag": "the event loop's lag", "health_rtt": "the round trip of /health"}.get(
            lag.name, "the round trip of /metrics"
        )
        parts.append(f"{what} reaches {lag.worst:.0f} ms")
        evidence.append(
            Evidence(
                text=f"{what}: {lag.worst:.0f} ms at worst, {lag.usual:.3g} ms usually",
                source=str(lag.series.line_of(lag.row)),
                name=lag.name,
                value=lag.worst,
                unit="ms",
            )
        )
        relation.append(f"{lag.worst:.0f} ms > {LOOP_LATE_MS:.0f} ms")
        beside = _beside(observed, lag)
        if beside is not None:
            evidence.append(
                Evidence(
                    text=f"it goes with {beside[0]} (correlation {beside[1]:.2f})",
                    source=str(beside[2].place),
                    name="correlation",
                    value=beside[1],
                )
            )
    if gaps is not None:
        longest = float(gaps.length_ms.max())
        parts.append(f"all {gaps.streams} streams stop together for up to {longest:.0f} ms")
        evidence.append(
            Evidence(
                text=f"{gaps.at.size} stops common to all {gaps.streams} streams, up to {longest:.0f} ms (usual gap "
                f"{gaps.usual_ms:.0f} ms)",
                source=gaps.line,
                name="shared_stops",
                value=float(gaps.at.size),
            )
        )
        if lag is not None and lag.at_stops is not None:
            relation.append(f"lag {lag.at_stops:.0f} ms at the {gaps.at.size} common stops")
    stall = observed.number("stall_s", "gap_s")
    if lag is None and gaps is None:
        parts.append("its main thread was busy when the dump was taken")
        relation.append(f"main thread in {stacks[0].attributes.get('frame') or stacks[0].text}")
        if observed.setting("all_streams_frozen") is not None:
            evidence.append(
                Evidence("all streams are said to stand still then", observed.source_of("all_streams_frozen"))
            )
        if stall is not None:
            parts[-1] += f" (a stall of {stall:g} s)"
            evidence.append(
                Evidence(f"the stall lasts {stall:g} s", observed.source_of("stall_s", "gap_s"), "stall", stall, "s")
            )
    evidence += [
        Evidence(text=f"the main thread stood in {event.text}", source=str(event.place), name="stack")
        for event in stacks[:3]
    ]
    named = next((str(event.attributes.get("class")) for event in stacks), "")
    taken = taken_in_the_stall(observed)[0] is True
    level = Level.SUSPECTED if missing else Level.PROVEN if stacks and taken else Level.CONSISTENT
    return cause.finding(
        statement=f"The front end's event loop is blocked: {' and '.join(parts)}"
        + (f"; its main thread does {named} work" if named else "")
        + ". While it does one request's work, no stream gets a token.",
        evidence=evidence,
        # A page that waits alone may wait behind requests: what it explains is known only beside the streams.
        explains_ms=float(gaps.length_ms.max()) if gaps is not None else stall * 1e3 if stall and lag is None else None,
        relation="; ".join(relation) or evidence[0].text,
        n=gaps.readings if gaps else len(lag.series) if lag else len(stacks),
        advice="Take tokenising, image and audio work off the loop (a pool of threads or processes; vLLM: "
        "`--api-server-count`, SGLang: `--tokenizer-worker-num`) and bound how much of it runs at once.",
        price="Work that waits in a pool counts into its own stage: that stage's time rises while the whole falls. "
        "Compare "
        "end to end first.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 5 --duration 120 --out after.run && tailrace "
            "compare before.run after.run"
        ),
        missing=missing,
        disproof_checked=[
            f"the lag at the common stops is {lag.at_stops:.0f} ms"
            if lag is not None and lag.at_stops is not None
            else "lag and stops were not seen together"
            if lag is not None or gaps is not None
            else "the dump was taken while it was slow"
            if taken
            else "when the dump was taken is not known"
        ],
        action=Action.FIX,
        level=level,
        proof=Proof.IN_WINDOW,
    )
