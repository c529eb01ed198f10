"""GW_HOLDS_FIRST_EVENT: something keeps the first event of some streams, and lets it go with those behind it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.stream_bursts import stream_bursts
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.order import stable_order
from tailrace.stats.quantiles import median, or_zero
from tailrace.stats.rank_correlation import spearman

__all__ = ["held_in_timelines"]

Mask = NDArray[np.bool_]
LEAST: Final = 5
LEAST_SHARE: Final = 0.02
APART: Final = 3.0
"""The empty space between the modes, over the wider mode's own width."""
CAUGHT_UP: Final = 3.0
"""Events that come with the first one."""
FITS: Final = (0.4, 2.0)
SAVED: Final = (0.6, 1.4)
OF_LOAD: Final = 0.3
MOST_HELD: Final = 0.7


class _Modes(NamedTuple):
    held: Mask
    """By row of `done`."""
    low_ms: float
    high_ms: float
    burst: float
    """Events that come with the first one of the late mode (median), seen in timelines, or by how much sooner such an
    answer is over than its tokens take at the usual pace."""
    source: str


def held_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Two modes, no load behind them, and a burst at the head of the held streams."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.n < 20:
        return None
    bursts = stream_bursts(window)
    first = np.full(window.n, np.nan)
    first[bursts.rows] = bursts.first
    modes = _modes(window, first)
    if modes is None:
        return None
    ttft = window.done.ms("ttft")
    held_ms = np.where(modes.held, ttft - modes.low_ms, 0.0)
    explains = window.explain(cause.code, or_zero(held_ms))
    if not cause.carries(evidence, explains):
        return None
    known = account(window)
    at = known.upstream().at(known.sent)[window.rows]
    with_load = spearman(at, modes.held.astype(np.float64))
    if with_load > OF_LOAD:
        return None
    pace = window.median_gap_ms if window.median_gap_ms > INSTANT else _pace(window)
    burst = modes.burst
    hold = modes.high_ms - modes.low_ms
    count = int(modes.held.sum())
    return cause.finding(
        statement=f"Something on the way holds the first event: {count} of {window.n} streams begin after "
        f"{modes.high_ms:.0f} ms with {burst:.0f} events at once, the others after {modes.low_ms:.0f} ms, and "
        "nothing lies between.",
        evidence=[
            Evidence(
                f"two modes of TTFT: {modes.low_ms:.0f} ms and {modes.high_ms:.0f} ms (medians); {count} of "
                f"{window.n} requests in the late one",
                "record:ttft_ns",
                "held",
                float(count),
            ),
            Evidence(
                f"{burst:.0f} events come with the first one of those (median)",
                modes.source,
                "first_burst",
                round(burst, 1),
            ),
            Evidence(
                f"the late mode does not follow the load (rank correlation with the requests under way "
                f"{with_load:.2f})",
                "record:start",
                "load_correlation",
                round(with_load, 3),
            ),
        ],
        explains_ms=explains,
        relation=f"hold = {modes.high_ms:.0f} - {modes.low_ms:.0f} = {hold:.0f} ms ~ {burst:.0f} events x "
        f"{pace:.1f} ms = {burst * pace:.0f} ms",
        n=window.n,
        advice="Flush the first event at once on every hop; look for code that waits for a second event, for the "
        "end of a reasoning block, for a moderation check of the first words, or for a header's worth of bytes.",
        price="What was checked before the first word was shown is then checked after it.",
        verify=evidence.verify_command + "  # the same requests straight to the engine: one mode only",
        missing=["TTFT of the same requests on the direct path"],
        disproof_checked=[f"rank correlation with the load {with_load:.2f}"],
    )


INSTANT: Final = 2.0


def _pace(window: Window) -> float:
    pace = window.done.ms("tpot")
    pace = pace[~np.isnan(pace)]
    return median(pace) if pace.size else 0.0


def _modes(window: Window, first: NDArray[np.float64]) -> _Modes | None:
    """The late mode: behind the widest empty space of the logarithm of TTFT, and made of streams that catch up."""
    ttft = window.done.ms("ttft")
    rows = np.flatnonzero(window.interactive & (ttft > 0))
    if rows.size < 20:
        return None
    order = rows[stable_order(ttft[rows])]
    value = np.log(ttft[order])
    least = max(LEAST, round(LEAST_SHARE * order.size))
    if order.size < 2 * least:
        return None
    space = np.diff(value)[least - 1 : order.size - least]
    at = least + int(np.argmax(space))
    low, high = ttft[order[:at]], ttft[order[at:]]
    width = max(float(np.subtract(*np.quantile(side, (0.9, 0.1)))) for side in (low, high))
    empty = float(high.min() - low.max())
    held = np.zeros(window.n, dtype=bool)
    held[order[at:]] = True
    seen = held & ~np.isnan(first)
    hold = float(np.median(high) - np.median(low))
    pace = _pace(window)
    if seen.sum() < LEAST:
        burst = _caught_up(window, held, rows, hold)
        if burst is None or (empty < width / APART and empty < 0.3 * hold):
            return None
        return _Modes(held, median(low), median(high), burst, "record:tpot_ns, record:output_tokens")
    caught = first[seen] >= CAUGHT_UP
    # As many as were made meanwhile; or the whole answer, where it was done before the hold was over.
    events = window.done.column("chunk_gap_count") + 1.0
    whole = float((first[seen] >= 0.9 * events[seen]).mean())
    made = median(first[seen]) * pace
    fits = made <= FITS[1] * hold and (made >= FITS[0] * hold or whole > 0.5)
    if float(caught.mean()) < MOST_HELD or not fits or (empty < width / APART and empty < 0.3 * hold):
        return None
    burst = median(first[seen])
    return _Modes(held, median(low), median(high), burst, "timeline")


def _caught_up(window: Window, held: Mask, rows: NDArray[np.int64], hold: float) -> float | None:
    """Tokens that came with the first one, where few timelines were kept: what was made during the hold is there at its
    end, so a held answer's decoding looks shorter by the hold than its tokens take. A wait before the engine leaves it
    as long as it was.
    """
    tpot, tokens = window.done.ms("tpot"), or_zero(window.done.column("output_tokens"))
    others = rows[~held[rows] & ~np.isnan(tpot[rows])]
    if others.size < LEAST:
        return None
    pace = median(tpot[others])
    long = rows[held[rows] & (tokens[rows] * pace >= 1.5 * hold) & ~np.isnan(tpot[rows])]
    if long.size < LEAST or pace <= 0:
        return None
    saved = (pace - tpot[long]) * tokens[long]
    middle = median(saved)
    if not SAVED[0] * hold <= middle <= SAVED[1] * hold:
        return None
    return middle / pace
