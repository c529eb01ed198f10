"""The summary of one run: what `bench` and `simulate` print.

Only completed requests enter a latency percentile; the others are counted by reason and as misses of goodput, stand
beside every percentile, and make its error-adjusted one; they are never missing data. Requests of the warm-up (lane
`warmup`, or an intended time before the start) are left out of everything.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.absent import without_absent
from tailrace.analyze.attainment import attainments, met_objectives, throughput
from tailrace.analyze.buckets import OUTPUT_EDGES, PROMPT_EDGES, edge_label, length_places
from tailrace.analyze.counted import completed, failed, left, measured
from tailrace.analyze.gaps import longest_wait_ms, pooled_gaps
from tailrace.analyze.metric_values import Pool, pooled, summarise_pool, summarise_rates, summarise_values
from tailrace.analyze.objective_waits import judge_objectives
from tailrace.analyze.steady import Trim, window_of
from tailrace.analyze.timebase import starts_ns
from tailrace.analyze.work_done import left_as_planned, real_time_factors, work_done
from tailrace.model.measurement import BenchSummary, BucketSummary, ClientHealth, MetricSummary, RateSummary
from tailrace.model.thresholds import Objectives
from tailrace.store.run_file import Run
from tailrace.store.table import RecordTable

__all__ = ["completed", "measured", "met_objectives", "summarise", "summarise_run", "summarise_values"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_STAGES: Final = ("queue", "preprocess", "encode", "prefill", "decode", "postprocess", "response")
_SCHEDULED: Final = ("ttft", "ttft_content", "e2e", "e2e_last_token")
_BUCKETED: Final = ("ttft", "tpot", "e2e")
_WHY: Final = {
    "ttft": "no streamed answer had a first token",
    "ttft_content": "no answer began with reasoning",
    "tpot": "no answer had two tokens with a known count",
    "longest_wait": "no streamed answer had a first token",
    "e2e": "",
    "e2e_last_token": "no answer had a token",
}


def summarise(
    table: RecordTable,
    *,
    name: str = "",
    objectives: Objectives | None = None,
    client: ClientHealth | None = None,
    duration_s: float | None = None,
    trim: Trim | None = None,
) -> BenchSummary:
    """Summarise a table of records.

    `duration_s` is what rates are counted over; without it, or when a warm-up was cut away, it is the time from the
    first request's start to the last one's end. With `trim`, only the steady part that it leaves is looked at, over
    its own length, and `BenchSummary.window` says which.
    """
    whole = len(table) - int(left_as_planned(table).sum())
    table = measured(table)
    if not duration_s or len(table) != whole:
        duration_s = _span_s(table)
    words = ""
    if trim is not None and len(table):
        window = window_of(table, trim)
        table, duration_s, words = table.where(window.rows), window.duration_s, window.words
    view = _View(table)
    reasons, counts = np.unique(table.column("reason")[~view.done_rows].astype(str), return_counts=True)
    lanes, sizes = np.unique(table.column("lane").astype(str), return_counts=True)
    objectives = objectives or Objectives()
    reached = attainments(table, objectives, duration_s)
    rates = throughput(table, objectives, duration_s)
    everyone = np.ones(len(table), dtype=bool)
    scheduled = view.from_schedule(everyone)
    classes = {str(lane): (table.column("lane") == lane).astype(bool) for lane in lanes} if lanes.size > 1 else {}
    return BenchSummary(
        run=name,
        n=len(table),
        requests_per_s=rates.requests_per_s,
        tokens_per_s=rates.tokens_per_s,
        goodput_per_s=rates.goodput_per_s,
        errors={str(key): int(value) for key, value in zip(reasons, counts, strict=True)},
        client=client or ClientHealth(),
        metrics=view.metrics(everyone),
        from_schedule=scheduled,
        mix={str(key): int(value) for key, value in zip(lanes, sizes, strict=True)},
        headline="from_schedule" if scheduled else "metrics",
        duration_s=duration_s or None,
        completed=len(view.done),
        failed=int(view.failed.sum()),
        left=int(left(table).sum()),
        window=words,
        classes={lane: view.metrics(rows) for lane, rows in classes.items()},
        classes_from_schedule={lane: view.from_schedule(rows) for lane, rows in classes.items() if scheduled},
        attainment=reached,
        objectives=judge_objectives(table, objectives),
        buckets=view.buckets(),
        user_tokens_per_s=view.user_rates(),
    )


def summarise_run(run: Run, *, trim: Trim | None = None) -> BenchSummary:
    """Summarise a run file: its objectives, client and duration come from its header and trailer."""
    trailer = run.trailer
    table = run.table()
    summary = summarise(
        table,
        name=run.path,
        objectives=run.header.objectives,
        client=trailer.client if trailer else None,
        duration_s=trailer.duration_s if trailer else None,
        trim=trim,
    )
    if run.header.kind == "bench":
        summary = msgspec.structs.replace(summary, work=work_done(table, trailer.counters if trailer else {}))
    return without_absent(summary, run.header)


def _span_s(table: RecordTable) -> float:
    if not len(table):
        return 0.0
    starts = starts_ns(table)
    return float((starts + table.column("e2e_ns")).max() - starts.min()) / 1e9


class _Gaps(NamedTuple):
    chunks: Pool
    tokens: Pool
    why_chunks: str
    why_tokens: str


class _View:
    """The measured requests of a run, with what several summaries of them share."""

    def __init__(self, table: RecordTable) -> None:
        self.table = table
        self.done_rows = completed(table)
        self.done = table.where(self.done_rows)
        self.failed = failed(table)
        streamed = self.done.column("stream").astype(bool)
        self.values: dict[str, Floats] = {
            "ttft": np.where(streamed, self.done.ms("ttft"), np.nan),
            "ttft_content": self.done.ms("ttft_content"),
            "tpot": self.done.ms("tpot"),
            "longest_wait": longest_wait_ms(self.done),
            "e2e": self.done.ms("e2e"),
            "e2e_last_token": self.done.ms("e2e_last_token"),
        }
        self.late = self.done.column("intended_to_sent_ns") / 1e6
        self.scheduled = not bool(np.isnan(self.late).all())
        self.gaps = self._pools()

    def metrics(self, rows: Flags) -> dict[str, MetricSummary]:
        """Every metric, from the send, of the requests that `rows` of the table selects."""
        inside, lost = rows[self.done_rows], int((self.failed & rows).sum())
        gaps = self.gaps
        out = {f"{name}_ms": self._one(name, self.values[name], rows) for name in ("ttft", "ttft_content")}
        out["chunk_gap_ms"] = summarise_pool(gaps.chunks.of(inside), gaps.why_chunks, failed=lost)
        if gaps.tokens is gaps.chunks:  # one token a chunk: one summary
            out["itl_ms"] = out["chunk_gap_ms"]
        else:
            out["itl_ms"] = summarise_pool(gaps.tokens.of(inside), gaps.why_tokens, failed=lost)
        for name in ("tpot", "longest_wait", "e2e", "e2e_last_token"):
            out[f"{name}_ms"] = self._one(name, self.values[name], rows)
        factors = real_time_factors(self.done.where(inside))
        if factors.size:
            out["rtf"] = summarise_values(factors)
        for stage in _STAGES:
            values = self.done.ms(stage)[inside]
            if not np.isnan(values).all():
                # Of a stage there is no adjusted percentile: a request that failed did not spend its time there.
                out[f"{stage}_ms"] = summarise_values(values)
        return out

    def from_schedule(self, rows: Flags) -> dict[str, MetricSummary]:
        """Latencies from the intended time, and how late the sends were; empty where nothing was scheduled."""
        if not self.scheduled:
            return {}
        out = {f"{name}_ms": self._one(name, self.values[name] + self.late, rows) for name in _SCHEDULED}
        # Gaps have no schedule: what lies between two events is the same from either origin.
        out["late_send_ms"] = summarise_values(self.late[rows[self.done_rows]])
        return out

    def buckets(self) -> list[BucketSummary]:
        """By length, from the origin of the headline."""
        row, column = (place[self.done_rows] for place in length_places(self.table))
        out = []
        for i in range(len(PROMPT_EDGES)):
            for j in range(len(OUTPUT_EDGES)):
                inside = (row == i) & (column == j)
                if not inside.any():
                    continue
                late = self.late if self.scheduled else 0.0
                metrics = {
                    f"{name}_ms": summarise_values(
                        (self.values[name] + (late if name in _SCHEDULED else 0.0))[inside], _WHY[name]
                    )
                    for name in _BUCKETED
                }
                out.append(
                    BucketSummary(
                        prompt=edge_label(PROMPT_EDGES, i),
                        output=edge_label(OUTPUT_EDGES, j),
                        n=int(inside.sum()),
                        metrics=metrics,
                    )
                )
        return out

    def user_rates(self) -> RateSummary:
        """Tokens a second of each request, after its first token."""
        tpot = self.values["tpot"]
        rates = np.full(tpot.shape, np.nan)
        np.divide(1000.0, tpot, out=rates, where=tpot > 0)
        return summarise_rates(rates, _WHY["tpot"])

    def _one(self, name: str, values: Floats, rows: Flags) -> MetricSummary:
        lost = self.failed & rows
        if name == "ttft_content" and np.isnan(self.values[name]).all():
            # Nobody reasons here: none of the failed would have had one.
            return summarise_values(values[rows[self.done_rows]], _WHY[name])
        if name in ("ttft", "ttft_content", "tpot"):
            # Without streaming there is no first token to wait for.
            lost = lost & self.table.column("stream").astype(bool)
        return summarise_values(values[rows[self.done_rows]], _WHY[name], failed=int(lost.sum()))

    def _pools(self) -> _Gaps:
        gaps = pooled_gaps(self.done, np.arange(len(self.done)))
        row = gaps.row
        at = (starts_ns(self.table)[self.done_rows][row] + gaps.end_ns) / 1e9
        chunks = each = pooled(gaps.ms, row, at)
        if not (gaps.tokens == 1).all():
            known = gaps.tokens > 0
            tokens = gaps.tokens[known]
            share = np.repeat(gaps.ms[known] / tokens, tokens)
            each = pooled(share, np.repeat(row[known], tokens), np.repeat(at[known], tokens))
        if gaps.size:
            return _Gaps(chunks, each, "", "no event said how many tokens it brought")
        why = "no timeline was kept" if not gaps.rows else "no answer had two token events"
        return _Gaps(chunks, each, why, why)
