"""GW_PROXY_BUFFERING: a hop keeps what the engine streams until its buffer is full, or the answer is whole."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.analyze.labels import among, codes_of
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.stream_bursts import StreamBursts, stream_bursts, summary_bursts
from tailrace.model.finding import Evidence, Finding

__all__ = ["buffering_in_timelines", "bursty_path"]

MOST: Final = 0.8
"""Buffering shifts every stream of its path: fewer than this, and something else makes the bursts."""
LEAST: Final = 8
MIN_EVENTS: Final = 3.0
"""Events a burst: two at one instant are a packet that had to wait."""
SMALL_EVENTS: Final = 8.0
SMALL_MS: Final = 60.0
"""Bursts that are as small and as quick as this are made by a timer, not by a buffer."""
SILENT_MS: Final = 25.0
OWN: Final = 0.5
LOOKED: Final = 2
LOSSY: Final = 0.3


def bursty_path(evidence: EvidenceSet) -> tuple[str, StreamBursts] | None:
    """(name of the path, its streams) where most streams of a backend, or of all, come in bursts or at once.

    By the timelines; where fewer were kept, by the gaps that every record sums up.
    """
    window = evidence.now
    every = stream_bursts(window)
    if every.rows.size < LEAST:
        every = summary_bursts(window)
    labels = window.done.column("backend")
    _, names = codes_of(labels)
    for name in ["", *(name for name in names if name)]:
        mine = every if not name else every.of(among(labels, {name}))
        if mine.rows.size >= LEAST and float(mine.bursty.mean()) >= MOST:
            return name, mine
    return None


def buffering_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Bursts in nearly all streams, too large or too slow for a timer."""
    window = evidence.now
    found = None if cause.cannot_run(evidence) else bursty_path(evidence)
    if found is None:
        return None
    path, streams = found
    hit = streams.bursty
    events, first = float(np.median(streams.events[hit])), float(np.median(streams.first[hit]))
    silent = streams.gap_ms[hit]
    silent = silent[~np.isnan(silent)]
    whole = float(streams.at_once.mean())
    between = float(np.median(silent)) if silent.size else float("nan")
    if max(events, first) < MIN_EVENTS or (events < SMALL_EVENTS and between < SMALL_MS) or between < SILENT_MS:
        return None
    if _own(evidence, streams, between) or _sent_again(evidence, streams):
        return None
    pace, source = _pace(evidence, streams, between, events)
    if pace is None:
        return None
    # The first burst holds its first event back by what the others in it took to be made.
    held = (first - 1.0) * pace
    explains = held + window.in_tail(window.lost.stall)
    if not cause.carries(evidence, explains):
        return None
    share = float(hit.mean())
    where = f" from backend {path!r}" if path else ""
    size = f"{max(events, first):.0f} events at one instant"
    how = (
        f"{whole:.0%} of the streams come whole, at one instant"
        if whole >= 0.5
        else f"{share:.0%} of the streams bring nothing for {between:.0f} ms, then {size}"
    )
    spread = streams.spread[hit]
    spread = spread[~np.isnan(spread)]
    missing = []
    if evidence.vantage != "gateway":
        missing.append("the same requests through the direct path: which hop it is")
    if not source:
        missing.append("the pace at which the engine makes tokens (its own report, or the direct path)")
    return cause.finding(
        statement=f"A hop buffers the streams{where}: {how}; their first token waits {held:.0f} ms for the others.",
        evidence=[
            Evidence(
                f"{share:.0%} of {streams.rows.size} streams{where} come in bursts, fast and slow ones alike; "
                f"{whole:.0%} come whole, at one instant",
                streams.source,
                "bursty_share",
                round(share, 4),
            ),
            Evidence(
                f"{max(events, first):.0f} events at one instant (median)"
                + (f", nothing for {between:.0f} ms between" if silent.size else ""),
                streams.source,
                "burst_events",
                round(max(events, first), 1),
            ),
            Evidence(
                f"at {pace:.1f} ms a token the first one waits {held:.0f} ms for the others of its burst",
                source or f"{streams.source} (burst period / events)",
                "held_ms",
                round(held, 1),
                "ms",
            ),
            *(
                [
                    Evidence(
                        f"the time between bursts varies by {np.median(spread):.0%} within a stream (quartiles "
                        f"over "
                        "median): a fixed number of bytes at an even pace",
                        "timeline",
                        "period_spread",
                        round(float(np.median(spread)), 3),
                    )
                ]
                if spread.size
                else []
            ),
        ],
        explains_ms=explains,
        relation=f"TTFT through the hop = TTFT direct + (chunks - 1) x ITL: ({first:.0f} - 1) x {pace:.1f} ms = "
        f"{held:.0f} ms"
        + (
            f"; period = buffer / chunk x chunk period = {events:.0f} x {pace:.1f} = {events * pace:.0f} ms, seen "
            f"{between:.0f} ms"
            if silent.size
            else ""
        ),
        n=int(streams.rows.size),
        advice="Switch response buffering off and use HTTP/1.1 to the upstream on every hop of the path (nginx: "
        "proxy_buffering off; proxy_http_version 1.1; or the header X-Accel-Buffering: no), with no compression "
        "and no body transformation of text/event-stream. The engine is not to blame: neither tune nor scale it.",
        price="A write for each event instead of one a buffer: a little CPU at the hop.",
        verify=(
            "tailrace bench http://localhost:8080 --concurrency 1 --requests 20 --out via.run && "
            "tailrace bench http://localhost:8000 --concurrency 1 --requests 20 --out direct.run && "
            "tailrace compare direct.run via.run  # events must come one by one on both"
        ),
        missing=missing,
        disproof_checked=[f"{share:.0%} of the streams of the path are hit, not only the slow ones"],
    )


def _own(evidence: EvidenceSet, streams: StreamBursts, between: float) -> bool:
    """Whether the gateway's own loop stood still for as long as nothing came: then it made the bursts itself."""
    lag = evidence.now.done.ms("loop_lag")[streams.rows[streams.bursty]]
    lag = lag[~np.isnan(lag)]
    return lag.size > 0 and not np.isnan(between) and float(np.median(lag)) >= OWN * between


def _sent_again(evidence: EvidenceSet, streams: StreamBursts) -> bool:
    """Whether segments were lost on many of the connections that were looked at: what comes after a lost one waits for
    it, and makes the same bursts.
    """
    again = evidence.now.done.column("upstream_retransmits")[streams.rows[streams.bursty]]
    again = again[~np.isnan(again)]
    return again.size >= LOOKED and float((again > 0).mean()) >= LOSSY


def _pace(evidence: EvidenceSet, streams: StreamBursts, between: float, events: float) -> tuple[float | None, str]:
    """(ms a token that the engine needs, where that is known from): its own decode time, the bursts' own period, the
    window from before.
    """
    if events >= 2.0 and not np.isnan(between):
        return between / events, f"{streams.source} (burst period / events)"
    window = evidence.now
    rows = streams.rows[streams.bursty]
    tokens, ttft = window.done.column("output_tokens")[rows], window.done.ms("ttft")[rows]
    known = ~np.isnan(tokens) & ~np.isnan(ttft)
    if evidence.before is not None:
        old = evidence.before.done.ms("tpot")
        old = old[~np.isnan(old)]
        if old.size >= LEAST:
            return float(np.median(old)), "record:tpot_ns of the window before"
    if known.sum() >= LEAST and np.ptp(tokens[known]) > 0 and np.ptp(ttft[known]) > 0:
        # Where nothing streams, the first token comes with the last: later by a token's time for each token.
        slope = float(np.polyfit(tokens[known], ttft[known], 1)[0])
        if slope > 0.5 and float(np.corrcoef(tokens[known], ttft[known])[0, 1]) >= 0.5:
            return slope, "record:ttft_ns by record:output_tokens"
    return None, ""
