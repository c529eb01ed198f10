"""A window of requests with what every rule asks of it: who waited, who stalled, whose prefill ran then.

All times are on one axis (ns from the earliest start, `analyze.timebase`). "Lost time" of a request is what it spent
beyond the typical request: waiting for its first token, in stalls, and held up by its own reader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import completed, measured
from tailrace.analyze.classes import Classes, classify, long_prompts, prompt_tokens
from tailrace.analyze.gaps import Gaps, pooled_gaps
from tailrace.analyze.timebase import starts_ns
from tailrace.stats.order import largest
from tailrace.stats.quantiles import median, or_zero, quantile
from tailrace.store.table import RecordTable

__all__ = [
    "STALL_FACTOR",
    "STALL_MS",
    "Intervals",
    "Lost",
    "Stalls",
    "Window",
    "once_a_window",
    "p95_of_both",
    "tail_of",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

STALL_MS: Final = 150.0
STALL_FACTOR: Final = 5.0
"""A gap is a stall above max(150 ms, 5 x the median gap of all streams)."""
_TAIL_SHARE: Final = 0.025
_TAIL_ROWS: Final = 10
"""The tail of a window: so large a share of its requests, and so many where that is fewer: a mean over less is one
request's story."""

Answer = TypeVar("Answer")


class Stalls(NamedTuple):
    """Gaps that a reader notices. Times on the window's axis (ns)."""

    row: Ints
    """Row of `Window.done`."""
    begin: Floats
    end: Floats
    excess_ms: Floats
    """The gap without the median gap that it would have been."""


class Intervals(NamedTuple):
    """Prefills of long prompts, each an interval on the window's axis (ns)."""

    row: Ints
    begin: Floats
    end: Floats
    tokens: Floats
    """Prompt tokens that were computed (cached ones left out where they are known)."""
    reported: bool
    """The engine said when the prefill ran; otherwise it is inferred from the time to the first token."""

    def share_of(self, span_ns: float) -> float:
        """Share of `span_ns` from the axis' origin in which some long prompt was in prefill."""
        return float(self.covered_ms(np.zeros(1), np.full(1, span_ns))[0]) * 1e6 / span_ns if span_ns > 0 else 0.0

    def covered_ms(self, begin: Floats, end: Floats) -> Floats:
        """How much of each [begin, end] lies in the union of the intervals (ms)."""
        if not self.row.size:
            return np.zeros_like(begin)
        order = np.argsort(self.begin)
        starts, stops = self.begin[order], np.maximum.accumulate(self.end[order])
        fresh = np.concatenate([[True], starts[1:] > stops[:-1]])
        left = starts[fresh]
        right = stops[np.concatenate([fresh[1:], [True]])]
        knots = np.column_stack([left, right]).ravel()
        total = np.column_stack([np.cumsum(right - left) - (right - left), np.cumsum(right - left)]).ravel()
        inside: Floats = (np.interp(end, knots, total) - np.interp(begin, knots, total)) / 1e6
        return inside


class Lost(NamedTuple):
    """Time lost by each row of `done`, by where it was lost (ms, never negative)."""

    gateway_queue: Floats
    engine_queue: Floats
    """Reported by the engine; 0 where it did not report."""
    first_token: Floats
    """The rest of the wait for the first token beyond what the prompt's length explains."""
    stall: Floats
    response: Floats
    postprocess: Floats
    """Beyond the median of those that have the stage."""

    @property
    def total(self) -> Floats:
        """Everything together."""
        return self.gateway_queue + self.engine_queue + self.first_token + self.stall + self.response + self.postprocess


class Window:
    """Completed requests of one window, with derived columns computed once and on demand."""

    def __init__(self, table: RecordTable) -> None:
        self.every = measured(table)
        self.rows: Ints = np.flatnonzero(completed(self.every))
        """Rows of `every` that completed."""
        self.done = self.every if self.rows.size == len(self.every) else self.every.where(self.rows)
        self.n = len(self.done)
        self.explained: dict[str, Floats] = {}
        """Code of a cause -> what it explains of each row of `done` (ms)."""
        self.slowed: Floats = np.zeros(self.n)
        """By row of `done`: what a slower pace than before costs it (ms). Against the typical request of this window it
        lost nothing by that, since all are slower; whoever compares with before puts it here."""
        self.answers: dict[Callable[[Window], Any], Any] = {}
        """What several rules ask for and is computed once (`once_a_window`), by the function that computes it."""

    @cached_property
    def start(self) -> Floats:
        """Start of each row of `done` on the axis (ns)."""
        return starts_ns(self.every)[self.rows].astype(np.float64)

    @cached_property
    def first(self) -> Floats:
        """First token of each row of `done` on the axis (ns), NaN where none was seen."""
        return self.start + self.done.ms("ttft") * 1e6

    @cached_property
    def end(self) -> Floats:
        """Last token of each row (ns)."""
        last = self.done.ms("e2e_last_token") * 1e6
        return self.start + np.where(np.isnan(last), self.done.column("e2e_ns"), last)

    @property
    def origin_unix_ns(self) -> int:
        """Wall clock of the axis' 0 (ns since 1970)."""
        return int(self.every.column("start_unix_ns").min())

    @property
    def span_s(self) -> float:
        """From the first request's start to the last one's (s)."""
        return float(self.start.max() - self.start.min()) / 1e9 if self.n else 0.0

    @property
    def rate(self) -> float:
        """Requests that came by second, whatever became of them (1/s)."""
        return len(self.every) / max(self.span_s, 1e-9)

    @cached_property
    def classes(self) -> Classes:
        """Classes of all requests of the window."""
        return classify(self.every)

    @cached_property
    def interactive(self) -> Mask:
        """Rows of `done` whose readers wait for tokens."""
        return self.classes.interactive_mask(0)[self.rows]

    @cached_property
    def tokens(self) -> Floats:
        """Prompt tokens of `done`, NaN where unknown."""
        return prompt_tokens(self.done)

    @cached_property
    def computed_tokens(self) -> Floats:
        """Prompt tokens of `done` that no prefix cache held, NaN where the prompt's length is unknown."""
        computed: Floats = self.tokens - or_zero(self.done.column("cached_tokens"))
        return computed

    @cached_property
    def gaps(self) -> Gaps:
        """Chunk gaps of `done`, of those whose timeline was kept."""
        return pooled_gaps(self.done, np.arange(self.n))

    @cached_property
    def median_gap_ms(self) -> float:
        """Median chunk gap; from the records' own summaries where no timeline was kept; NaN if there is neither."""
        if self.gaps.size:
            return _median_ms(self.gaps.length_ns)
        known = self.done.ms("chunk_gap_p50")
        known = known[~np.isnan(known)]
        return median(known) if known.size else float("nan")

    @property
    def stall_ms(self) -> float:
        """The gap length from which a reader notices (ms)."""
        median = self.median_gap_ms
        return STALL_MS if np.isnan(median) else max(STALL_MS, STALL_FACTOR * median)

    @cached_property
    def streams(self) -> Ints:
        """Rows of `done` of which a gap is known, in order."""
        seen = np.zeros(self.n, dtype=bool)
        seen[self.gaps.of] = True
        rows: Ints = np.flatnonzero(seen)
        return rows

    @cached_property
    def stall_places(self) -> Ints:
        """Which of `gaps` are stalls, in order."""
        return np.concatenate(
            [np.empty(0, np.int64), *(part.at + np.flatnonzero(part.ms >= self.stall_ms) for part in self.gaps.parts())]
        )

    @cached_property
    def stalls(self) -> Stalls:
        """The stalls of all streams with a timeline."""
        gaps, long = self.gaps, self.stall_places
        row, begin, length = gaps.rows_of(long), gaps.begin_ns[long], gaps.length_ns[long]
        start = self.start[row]
        excess = length / 1e6 - (self.median_gap_ms if gaps.size else 0.0)
        return Stalls(row, start + begin, start + (begin + length), excess)

    @cached_property
    def has_prefill(self) -> Mask:
        """Rows whose engine reported (or whose model knows) the prefill."""
        return ~np.isnan(self.done.ms("prefill"))

    @property
    def reported(self) -> bool:
        """Whether the engine split the time to the first token for nearly all requests."""
        return self.n > 0 and float(self.has_prefill.mean()) >= 0.9

    @cached_property
    def inferred(self) -> bool:
        """Whether most of the queue times that `reported` goes by are a model's, not the engine's."""
        sources = self.done.column("stage_sources")
        said = [source.get("queue.engine") or source.get("queue") or "" for source in sources if source]
        return bool(said) and sum(one.startswith("inferred") for one in said) > 0.5 * len(said)

    @cached_property
    def outsized(self) -> Mask:
        """Rows whose prompt is long against the median."""
        return long_prompts(self.done)

    @cached_property
    def long(self) -> Mask:
        """Rows with a long prompt; where no three are long against the median, those at or above the median."""
        mask = self.outsized
        if mask.sum() >= 3:
            return mask
        known = self.tokens[~np.isnan(self.tokens)]
        if known.size < 3:
            return np.zeros(self.n, dtype=bool)
        with np.errstate(invalid="ignore"):
            at_least: Mask = self.tokens >= np.median(known)
        return at_least

    @cached_property
    def seconds_a_token(self) -> float:
        """Time to the first token by prompt token when nothing is in the way: the 10 % quantile among long prompts.

        Seconds; NaN without long prompts of a known length.
        """
        usable = self.long & (self.tokens > 0) & ~np.isnan(self.done.ms("ttft"))
        if not usable.any():
            return float("nan")
        return quantile(self.done.ms("ttft")[usable] / self.tokens[usable], 0.1) / 1e3

    @cached_property
    def prefills(self) -> Intervals:
        """When the long prompts were in prefill: as reported, or the last `tokens x seconds_a_token` before the first
        token where nobody reported it.
        """
        first = self.first
        if self.reported:
            length = self.done.ms("prefill") * 1e6
        else:
            length = np.minimum(self.tokens * self.seconds_a_token * 1e9, first - self.start)
        with np.errstate(invalid="ignore"):
            keep = np.flatnonzero(self.long & (length >= 0.5 * STALL_MS * 1e6) & ~np.isnan(first))
        return Intervals(
            keep, (first - length)[keep], first[keep], np.maximum(self.computed_tokens, 1.0)[keep], self.reported
        )

    @cached_property
    def lost(self) -> Lost:
        """Time lost by each row of `done`, by place."""
        gateway = or_zero(self.done.ms("queue_gateway"))
        engine = or_zero(self.done.ms("queue_engine"))
        ttft = or_zero(self.done.ms("ttft"))
        rest = np.maximum(ttft - gateway - engine - self._usual_first_token(ttft - gateway - engine), 0.0)
        stall = np.bincount(self.stalls.row, weights=self.stalls.excess_ms, minlength=self.n).astype(np.float64)
        response = or_zero(self.done.ms("response"))
        post = self.done.ms("postprocess")
        known = post[~np.isnan(post)]
        post = np.maximum(or_zero(post) - (median(known) if known.size else 0.0), 0.0)
        return Lost(gateway, engine, rest, stall, response, post)

    def _usual_first_token(self, served: Floats) -> Floats:
        """What a prompt of this length takes from the queue's end to its first token when nothing is in the way (ms).

        A quantile of its neighbours in length (factor of two): the median where the engine reports the queue, so that
        it is not in `served`; the 10 % quantile where it is, because in an overloaded window most have waited.
        """
        p = 0.5 if self.reported else 0.1
        usual = np.full(self.n, quantile(served, p) if self.n else 0.0)
        tokens = self.tokens
        known = ~np.isnan(tokens) & (tokens > 0)
        if not known.any():
            return usual
        bucket = np.full(self.n, -1, dtype=np.int64)
        bucket[known] = np.log2(tokens[known]).astype(np.int64)
        for value in np.unique(bucket[known]):
            inside = bucket == value
            usual[inside] = quantile(served[inside], p)
        return usual

    @cached_property
    def tail(self) -> Ints:
        """Rows of `done`: the interactive requests that lost the most time (2.5 %, at least ten)."""
        rows = np.flatnonzero(self.interactive)
        return rows[tail_of(self.lost.total[rows])]

    @cached_property
    def slowest(self) -> Ints:
        """Rows of `done`: those that took the longest end to end, as large a share as the tail is."""
        return tail_of(or_zero(self.done.ms("e2e")))

    @cached_property
    def tail_lost_ms(self) -> float:
        """Mean time lost by the requests of the tail."""
        return float(self.lost.total[self.tail].mean()) if self.tail.size else 0.0

    def known_ms(self, metric: str) -> Floats:
        """A duration of the completed requests (ms), of those that have it."""
        values: Floats = self.done.ms(metric)
        return values[~np.isnan(values)]

    def in_tail(self, values: Floats) -> float:
        """Mean of a per-row quantity over the tail (ms)."""
        return float(values[self.tail].mean()) if self.tail.size else 0.0

    def explain(self, code: str, values: Floats) -> float:
        """As `in_tail`, and remembers by row what the cause `code` explains: so that what several causes explain of the
        same request is counted once, and the requests that show it are named.
        """
        self.explained[code] = values
        return self.in_tail(values)

    # -- engine state as the records saw it

    @cached_property
    def kv_usage_p95(self) -> float | None:
        """p95 of the KV usage seen at admission and first token; `None` when no record saw it."""
        seen = np.concatenate([self.done.column("kv_usage_at_admission"), self.done.column("kv_usage_at_first_token")])
        seen = seen[~np.isnan(seen)]
        return quantile(seen, 0.95) if seen.size else None

    @cached_property
    def preempted(self) -> Floats | None:
        """Preemptions of each row, `None` when no record knows."""
        counts = self.done.column("preemptions")
        return None if np.isnan(counts).all() else or_zero(counts)


def _median_ms(length_ns: NDArray[Any]) -> float:
    """Median of durations in ns, in ms; as of the durations in ms, without an array of them."""
    half = length_ns.size // 2
    middle = np.partition(length_ns, [half - 1, half])[half - 1 : half + 1] if half else length_ns
    return median(middle[-1 if length_ns.size % 2 else 0 :] / 1e6)


def tail_of(values: Floats) -> Ints:
    """Places of the largest of `values`, as many as the tail of so many requests has; ascending."""
    size = min(values.size, max(_TAIL_ROWS, round(_TAIL_SHARE * values.size)))
    return largest(values, size)


def p95_of_both(before: Window, window: Window, metric: str) -> tuple[float, float]:
    """p95 of a duration before and now (ms); (1, 0), which has not grown, where either window has none."""
    old, new = before.known_ms(metric), window.known_ms(metric)
    if not old.size or not new.size:
        return 1.0, 0.0
    return max(quantile(old, 0.95), 1e-9), quantile(new, 0.95)


def once_a_window(compute: Callable[[Window], Answer]) -> Callable[[Window], Answer]:
    """`compute`, whose answer the window remembers: several rules ask for the same."""

    @wraps(compute)
    def asked(window: Window) -> Answer:
        if compute not in window.answers:
            window.answers[compute] = compute(window)
        answer: Answer = window.answers[compute]
        return answer

    return asked
