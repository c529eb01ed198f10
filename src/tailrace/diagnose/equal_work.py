"""The pace of two windows at equal work: by length bucket, at an equal batch."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window
from tailrace.stats.bootstrap import Arm, compare_quantiles
from tailrace.stats.decomposition import BUCKET_ROWS

__all__ = ["EqualPace", "batch_of", "equal_pace", "pace_of", "tokens_an_event"]

Floats = NDArray[np.float64]
BATCH_EQUAL: Final = 0.15
_EDGES: Final = (0, 256, 1024, 4096, 16384)


class EqualPace(NamedTuple):
    """Medians before and after (ms a token), with the interval of the relative change."""

    what: str
    a: float
    b: float
    change: float
    low: float
    high: float
    n_a: int
    n_b: int
    buckets: list[tuple[str, float, int]]
    """(prompt tokens from, after / before, n after) of every bucket with enough rows."""
    batch_known: bool
    batch_grew: bool
    checked: list[str]
    tokens: float
    """Tokens of the slow requests that go at this pace."""
    explains: float


def pace_of(window: Window) -> Floats:
    """What a token usually takes (ms): the median gap of a request, which stalls do not move; TPOT where absent.

    Where events bring several tokens (a hop groups them, the engine speculates) a gap is that of as many.
    """
    gap = window.done.ms("chunk_gap_p50") / tokens_an_event(window)
    return np.where(np.isnan(gap), window.done.ms("tpot"), gap)


def tokens_an_event(window: Window) -> Floats:
    """By row of `done`: output tokens that the engine counted over token events; 1 where it did not count."""
    done = window.done
    events = done.column("chunk_gap_count") + 1.0
    counted = done.column("output_tokens_source").astype(str) == "usage"
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(counted & (events > 1), (done.column("output_tokens") - 1.0) / (events - 1.0), 1.0)
    return np.nan_to_num(np.maximum(ratio, 1.0), nan=1.0)


def batch_of(window: Window) -> float:
    """Requests that run together (median), NaN where nobody said."""
    seen = window.done.column("running_at_first_token")
    seen = np.where(np.isnan(seen), window.done.column("running_at_admission"), seen)
    known = seen[~np.isnan(seen)]
    return float(np.median(known)) if known.size else float("nan")


def equal_pace(before: Window, window: Window, what: str) -> EqualPace | None:
    """`what`: `decode` (usual gap) or `prefill` (time by computed prompt token, as the engine reports it).

    `None` where a window has too few rows, or the buckets disagree on the direction.
    """
    if min(before.n, window.n) < BUCKET_ROWS:
        return None
    old, new = (pace_of(side) if what == "decode" else _prefill(side) for side in (before, window))
    buckets = _buckets(before, window, old, new)
    keep = [~np.isnan(old), ~np.isnan(new)]
    if not buckets or min(int(side.sum()) for side in keep) < BUCKET_ROWS:
        return None
    change = compare_quantiles(
        Arm(old[keep[0]], before.start[keep[0]] / 1e9),
        Arm(new[keep[1]], window.start[keep[1]] / 1e9),
        [0.5],
        block_s=10.0,
        rng=np.random.default_rng(20),
    )[0]
    ratios = [ratio for _, ratio, _ in buckets]
    if change.change > 0 and min(ratios) < 1.0 + 0.5 * min(change.change, 0.2):
        return None
    batch = (batch_of(before), batch_of(window))
    known = not bool(np.isnan(batch).any())
    grew = known and batch[1] / max(batch[0], 1.0) - 1.0 > BATCH_EQUAL
    checked = [f"the batch went from {batch[0]:.0f} to {batch[1]:.0f} running requests"] if known else []
    tokens = np.nan_to_num(window.done.column("output_tokens") if what == "decode" else window.tokens, nan=0.0)
    mean = window.in_tail(tokens)
    return EqualPace(
        what,
        change.a,
        change.b,
        change.change,
        change.low,
        change.high,
        change.n_a,
        change.n_b,
        buckets,
        known,
        grew,
        checked,
        mean,
        (change.b - change.a) * mean,
    )


def _prefill(window: Window) -> Floats:
    cached = np.nan_to_num(window.done.column("cached_tokens"), nan=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        out: Floats = window.done.ms("prefill") / np.maximum(window.tokens - cached, 1.0)
    return out


def _buckets(before: Window, window: Window, old: Floats, new: Floats) -> list[tuple[str, float, int]]:
    out = []
    places = [np.searchsorted(_EDGES, np.nan_to_num(side.tokens, nan=-1.0), side="right") for side in (before, window)]
    for i in range(len(_EDGES) + 1):
        a, b = old[(places[0] == i) & ~np.isnan(old)], new[(places[1] == i) & ~np.isnan(new)]
        if min(a.size, b.size) < BUCKET_ROWS:
            continue
        name = "unknown" if i == 0 else f"{_EDGES[i - 1]}+"
        out.append((name, float(np.median(b)) / max(float(np.median(a)), 1e-9), int(b.size)))
    return out
