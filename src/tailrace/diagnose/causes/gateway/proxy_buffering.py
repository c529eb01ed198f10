"""GW_PROXY_BUFFERING: a hop keeps what the engine streams until its buffer is full, or the answer is whole."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.stream_bursts import StreamBursts, stream_bursts
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["COALESCED_EVENTS", "COALESCED_MS", "MOST", "ProxyBuffering", "bursty_path"]

MOST: Final = 0.8
"""Buffering shifts every stream of its path: fewer than this, and something else makes the bursts."""
LEAST: Final = 8
COALESCED_MS: Final = 300.0
COALESCED_EVENTS: Final = 16.0
"""Bursts that are as small and as quick as this are made by a timer, not by a buffer."""
LONG_ANSWER: Final = 12.0

_ADVICE: Final = (
    "Switch response buffering off and use HTTP/1.1 to the upstream on every hop of the path (nginx: proxy_buffering "
    "off; proxy_http_version 1.1; in the location of the API, or the header X-Accel-Buffering: no), no response "
    "compression and no body transformation on text/event-stream. The engine is not to blame: neither tune nor scale "
    "it."
)


def bursty_path(evidence: EvidenceSet) -> tuple[str, StreamBursts] | None:
    """(name of the path, its streams) where most streams of a backend, or of all, come in bursts or at once."""
    window = evidence.now
    every = stream_bursts(window)
    labels = window.done.column("backend").astype(str)
    for name in ["", *sorted(set(labels) - {""})]:
        mine = every if not name else every.of(labels == name)
        if mine.rows.size >= LEAST and float((mine.bursty | mine.at_once).mean()) >= MOST:
            return name, mine
    return None


class ProxyBuffering(Cause):
    """Every stream of a path comes in bursts of a buffer's size, or its whole answer at once."""

    code: ClassVar[str] = "GW_PROXY_BUFFERING"
    stage: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = (
        "timelines of streams",
        "the same through the direct path, or the engine's own decode time",
    )
    disproof: ClassVar[str] = (
        "Only the tail is slow (buffering shifts every stream of its path), or the direct path too."
    )
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines."""
        return "" if evidence.now.gaps.rows else "timelines of streams (none was kept)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Bursts in nearly all streams, too large or too slow for a timer; or answers that come whole."""
        if self.cannot_run(evidence):
            return None
        found = bursty_path(evidence)
        if found is None:
            return None
        path, streams = found
        whole = float(streams.at_once.mean())
        if whole >= 0.5:
            return self._whole(evidence, path, streams, whole)
        period, events = (float(np.median(values[streams.bursty])) for values in (streams.period_ms, streams.events))
        if period <= COALESCED_MS and events < COALESCED_EVENTS:
            return None
        return self._bursts(evidence, path, streams, period, events)

    def _bursts(
        self, evidence: EvidenceSet, path: str, streams: StreamBursts, period: float, events: float
    ) -> Finding | None:
        window = evidence.now
        explains = window.in_tail(window.lost.stall) + period
        if not self.carries(evidence, explains):
            return None
        share = float(streams.bursty.mean())
        pace = period / max(events, 1.0)
        where = f" from backend {path!r}" if path else ""
        spread = float(np.nanmedian(streams.period_spread[streams.bursty]))
        return self.finding(
            statement=f"A hop buffers the streams{where}: {share:.0%} of them bring nothing for {period:.0f} ms, then "
            f"{events:.0f} events at one instant.",
            evidence=[
                Evidence(
                    f"{share:.0%} of {streams.rows.size} streams{where} come in bursts, fast and slow ones alike",
                    "timeline",
                    "bursty_share",
                    round(share, 4),
                ),
                Evidence(
                    f"{events:.0f} events a burst (median), a burst every {period:.0f} ms",
                    "timeline",
                    "burst_period_ms",
                    round(period, 1),
                    "ms",
                ),
                Evidence(
                    f"the time between bursts varies by {spread:.0%} (quartiles over median): a fixed number of bytes "
                    "at an even pace",
                    "timeline",
                    "period_spread",
                    round(spread, 3),
                ),
            ],
            explains_ms=explains,
            relation=f"period = buffer / chunk x chunk period: {events:.0f} events x {pace:.1f} ms = {period:.0f} ms",
            n=int(streams.rows.size),
            advice=_ADVICE,
            price="A write for each event instead of one a buffer: a little CPU at the hop.",
            verify="curl -N straight to the engine and through the hop: the events must come one by one on both",
            missing=["the same requests through the direct path (an engine may group its own output)"],
            disproof_checked=[f"{share:.0%} of the streams of the path are hit, not only the slow ones"],
        )

    def _whole(self, evidence: EvidenceSet, path: str, streams: StreamBursts, share: float) -> Finding | None:
        window = evidence.now
        rows = streams.rows[streams.at_once]
        tokens = window.done.column("output_tokens")[rows]
        ttft = window.done.ms("ttft")[rows]
        known = ~np.isnan(tokens) & ~np.isnan(ttft) & (tokens >= LONG_ANSWER)
        if known.sum() < LEAST:
            return None
        tokens, ttft = tokens[known], ttft[known]
        pace, base = (float(value) for value in np.polyfit(tokens, ttft, 1)) if np.ptp(tokens) > 0 else (0.0, 0.0)
        r = float(np.corrcoef(tokens, ttft)[0, 1]) if np.ptp(tokens) > 0 and np.ptp(ttft) > 0 else 0.0
        decode = window.done.ms("decode")[rows]
        seen = float(np.median((window.end - window.first)[rows])) / 1e6
        reported = decode[~np.isnan(decode)]
        impossible = reported.size >= LEAST and float(np.median(reported)) > 3.0 * max(seen, 1.0)
        if not impossible and (r < 0.5 or pace <= 0.5):
            return None
        held = float(np.median(reported)) if impossible else pace * float(np.median(tokens))
        if not self.carries(evidence, held):
            return None
        where = f" from backend {path!r}" if path else ""
        missing = [] if impossible else ["the same requests through the direct path, or the engine's own decode time"]
        return self.finding(
            statement=f"A hop keeps whole answers{where}: {share:.0%} of the streams come at one instant, "
            f"{held:.0f} ms after their first token could have been there.",
            evidence=[
                Evidence(
                    f"{share:.0%} of {streams.rows.size} streams{where} come whole, in {seen:.0f} ms (median)",
                    "timeline",
                    "at_once_share",
                    round(share, 4),
                ),
                Evidence(
                    f"the first token comes {pace:.1f} ms later for each token of the answer (correlation {r:.2f}), "
                    f"{held:.0f} ms for the median answer",
                    "record:ttft_ns, record:output_tokens",
                    "held_ms",
                    round(held, 1),
                    "ms",
                ),
                *(
                    [
                        Evidence(
                            f"the engine decoded for {np.median(reported):.0f} ms (median)",
                            "record:decode_ns",
                            "decode_ms",
                            round(float(np.median(reported)), 1),
                            "ms",
                        )
                    ]
                    if impossible
                    else []
                ),
            ],
            explains_ms=held,
            relation=f"TTFT through the hop = {base:.0f} ms + tokens x {pace:.1f} ms = TTFT direct + (chunks - 1) x "
            f"ITL",
            n=int(streams.rows.size),
            advice=_ADVICE,
            price="A write for each event instead of one an answer: a little CPU at the hop.",
            verify="curl -N straight to the engine and through the hop: the events must come one by one on both",
            missing=missing,
            disproof_checked=[f"{share:.0%} of the streams of the path are hit, not only the slow ones"],
        )
