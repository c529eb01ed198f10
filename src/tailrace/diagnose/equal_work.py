"""The pace of two windows at equal work: by length bucket, at an equal batch."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window
from tailrace.stats.decomposition import BUCKET_ROWS
from tailrace.stats.quantiles import median, or_zero, quantile
from tailrace.store.table import RecordTable

__all__ = [
    "EqualPace",
    "batch_of",
    "company_of",
    "equal_pace",
    "pace_of",
    "sequences_of",
    "slower_parts",
    "tokens_an_event",
]

Floats = NDArray[np.float64]
QUEUED: Final = 5.0
QUEUED_MS: Final = 25.0
CELL_ROWS: Final = 12
"""Requests of a cell, in either window."""
_EDGES: Final = (0, 256, 1024, 4096, 16384)
_FINE: Final = (0, *(2**i for i in range(5, 18)))
"""Of a prefill: what a step costs beside its tokens weighs by how few there are."""


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
    cells: int
    """Cells of equal batch and length that both windows have."""
    batch_known: bool
    checked: list[str]
    tokens: float
    """Tokens of the slow requests that go at this pace."""
    explains: float

    @property
    def words(self) -> str:
        """`a token 21 -> 25 ms (+19 %) at equal batch and length`."""
        whose = "a token" if self.what == "decode" else "a prompt token"
        return f"{whose} {self.a:.3g} -> {self.b:.3g} ms ({self.change:+.0%}) at equal batch and length"


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
    counted = among(done.column("output_tokens_source"), {"usage"})
    with np.errstate(invalid="ignore"):
        ratio = np.where(
            counted & (events > 1), (done.column("output_tokens") - 1.0) / np.maximum(events - 1.0, 1.0), 1.0
        )
    return np.nan_to_num(np.maximum(ratio, 1.0), nan=1.0)


def sequences_of(table: RecordTable) -> Floats:
    """By row: sequences that the engine decodes for it, the largest of n, best_of and beams."""
    out: Floats = np.maximum.reduce([table.column(name).astype(np.float64) for name in ("n", "best_of", "beam")])
    return np.maximum(np.nan_to_num(out, nan=1.0), 1.0)


def batch_of(window: Window) -> float:
    """Requests that run together (median), NaN where nobody said."""
    seen = window.done.column("running_at_first_token")
    seen = np.where(np.isnan(seen), window.done.column("running_at_admission"), seen)
    known = seen[~np.isnan(seen)]
    return median(known) if known.size else float("nan")


def equal_pace(before: Window, window: Window, what: str) -> EqualPace | None:
    """`what`: `decode` (usual gap a token) or `prefill` (time by computed prompt token, as the engine reports it).

    Compared are requests of about equal batch and prompt length: a slower engine has more under way at the same rate,
    and a larger batch makes each token slower by itself. `None` where the windows have no such requests in common, or
    the cells disagree on the direction.
    """
    if min(before.n, window.n) < BUCKET_ROWS or (what == "prefill" and _crowded(before, window)):
        return None
    old, new = (pace_of(side) if what == "decode" else _prefill(side) for side in (before, window))
    cells = _cells(before, window, old, new, _EDGES if what == "decode" else _FINE)
    if not cells:
        return None
    weight = np.array([min(n_a, n_b) for _, _, _, n_a, n_b in cells], dtype=np.float64)
    logs = np.log(np.array([b / a for _, a, b, _, _ in cells]))
    middle = float((weight * logs).sum() / weight.sum())
    spread = np.array([error for error, *_ in cells])
    error = float(np.sqrt(((weight / weight.sum()) ** 2 * spread**2).sum()))
    ratios = np.exp(logs)
    change = float(np.exp(middle)) - 1.0
    if change > 0 and float(weight[ratios < 1.0 + 0.3 * change].sum()) > 0.2 * float(weight.sum()):
        return None
    known = not bool(np.isnan([batch_of(before), batch_of(window)]).any())
    checked = []
    if known:
        checked.append(
            f"the batch went from {batch_of(before):.0f} to {batch_of(window):.0f} running requests; compared are "
            f"those "
            "of equal ones"
        )
    level = float(np.exp((weight * np.log([a for _, a, _, _, _ in cells])).sum() / weight.sum()))
    tokens = or_zero(window.done.column("output_tokens") if what == "decode" else window.tokens)
    mean = float(tokens[window.slowest].mean())
    return EqualPace(
        what,
        level,
        level * (1.0 + change),
        change,
        float(np.exp(middle - 1.96 * error)) - 1.0,
        float(np.exp(middle + 1.96 * error)) - 1.0,
        int(sum(n_a for *_, n_a, _ in cells)),
        int(sum(n_b for *_, n_b in cells)),
        len(cells),
        known,
        checked,
        mean,
        level * change * mean,
    )


def _crowded(before: Window, window: Window) -> bool:
    """Whether requests wait so much more for the scheduler than before that their prefills share steps with others."""
    waits = [or_zero(side.done.ms("queue_engine")) for side in (before, window)]
    a, b = (quantile(values, 0.9) for values in waits)
    return b > QUEUED * a + QUEUED_MS


def company_of(window: Window) -> Floats:
    """By row of `done`: requests that the engine had beside and with each one, mean over its own time there; as the
    engine counted at the first token where it holds many more than ours.

    A gauge at one moment says little of a request's whole time where the load grows.
    """
    known, served = account(window), replicas(window)
    each = sequences_of(window.every)
    out = np.full(window.n, np.nan)
    for place in np.unique(served.of_row).tolist():
        rows = np.flatnonzero(served.of_row == place)
        mine = known.reached & (served.of_every == place)
        at = np.concatenate([known.sent[mine], known.end[mine]])
        # Several answers to one request are as many sequences in the batch.
        step = np.concatenate([each[mine], -each[mine]])
        order = np.argsort(at, kind="stable")
        at, count = at[order], np.cumsum(step[order])
        total = np.concatenate([[0.0], np.cumsum(np.diff(at) * count[:-1])]) if at.size else np.zeros(1)
        begin = np.where(np.isnan(window.first[rows]), window.start[rows], window.first[rows])
        end = np.maximum(window.end[rows], begin + 1.0)
        if at.size:
            out[rows] = (np.interp(end, at, total) - np.interp(begin, at, total)) / (end - begin)
    seen = window.done.column("running_at_first_token")
    known = ~np.isnan(seen) & ~np.isnan(out)
    if known.any() and median(seen[known]) > 1.25 * median(out[known]) + 1.0:
        return seen
    return np.where(np.isnan(seen), np.nan, out)


def _beside(window: Window) -> Floats:
    """By row of `done`: requests that the engine had when its prefill ended; as it counted where it has many more."""
    known, served = account(window), replicas(window)
    out = np.full(window.n, np.nan)
    for place in np.unique(served.of_row).tolist():
        rows = np.flatnonzero((served.of_row == place) & ~np.isnan(window.first))
        out[rows] = known.upstream(served.of_every == place).at(window.first[rows])
    seen = window.done.column("running_at_first_token")
    both = ~np.isnan(seen) & ~np.isnan(out)
    if both.any() and median(seen[both]) > 1.25 * median(out[both]) + 1.0:
        return seen
    return np.where(np.isnan(seen), np.nan, out)


def _cells(
    before: Window, window: Window, old: Floats, new: Floats, edges: tuple[int, ...]
) -> list[tuple[float, float, float, int, int]]:
    """(standard error of the log ratio, median before, now, n, n) of every cell with enough rows on both sides."""
    keys = []
    for side in (before, window):
        # A prefill is short: what counts is who was there then, and not over the whole answer.
        batch = company_of(side) if edges is _EDGES else _beside(side)
        place = np.where(np.isnan(batch), -1, np.floor(2.5 * np.log2(np.maximum(np.nan_to_num(batch), 0) + 1.0)))
        length = np.searchsorted(edges, np.nan_to_num(side.tokens, nan=-1.0), side="right")
        keys.append(place.astype(np.int64) * 16 + length)
    out = []
    for key in sorted(set(keys[0].tolist()) & set(keys[1].tolist())):
        a, b = old[(keys[0] == key) & ~np.isnan(old)], new[(keys[1] == key) & ~np.isnan(new)]
        if min(a.size, b.size) < CELL_ROWS or min(median(a), median(b)) <= 0:
            continue
        errors = [1.2533 * float(np.log(np.maximum(side, 1e-6)).std()) / side.size**0.5 for side in (a, b)]
        out.append((float(np.hypot(*errors)), median(a), median(b), int(a.size), int(b.size)))
    return out


def _prefill(window: Window) -> Floats:
    """Prefill a computed token (ms), of those that no other prefill shared their steps with: whoever shares a step
    waits for all of it.
    """
    length = window.done.ms("prefill")
    with np.errstate(invalid="ignore", divide="ignore"):
        out: Floats = length / np.maximum(window.computed_tokens, 1.0)
    begin, end = window.first - length * 1e6, window.first
    served = replicas(window)
    for place in np.unique(served.of_row).tolist():
        rows = np.flatnonzero((served.of_row == place) & ~np.isnan(begin))
        if not rows.size:
            continue
        # Begun before it ends, less ended before it begins: those that overlap, itself among them.
        begun = np.searchsorted(np.sort(begin[rows]), end[rows], side="left")
        over = np.searchsorted(np.sort(end[rows]), begin[rows], side="right")
        out[rows[begun - over > 1]] = np.nan
    return out


def slower_parts(before: Window, window: Window, *, least: float) -> list[EqualPace]:
    """Which of decode and prefill are slower at equal work: by `least` (relative), and surely so."""
    return [
        item
        for what in ("decode", "prefill")
        if (item := equal_pace(before, window, what)) is not None and item.change >= least and item.low > 0
    ]
