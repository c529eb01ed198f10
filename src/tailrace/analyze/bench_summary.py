"""The summary of one run: what `bench` and `simulate` print.

Only completed requests enter a latency percentile; the others are counted by reason and as misses of goodput, never
as missing data. Requests of the warm-up (lane `warmup`, or an intended time before the start) are left out of
everything.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.absent import without_absent
from tailrace.analyze.gaps import longest_wait_ms, pooled_gaps
from tailrace.analyze.timebase import starts_ns
from tailrace.analyze.work_done import left_as_planned, real_time_factors, work_done
from tailrace.model.measurement import BenchSummary, ClientHealth, MetricSummary
from tailrace.model.outcome import OutcomeKind
from tailrace.model.thresholds import Objectives
from tailrace.stats.quantiles import quantile_interval, supported
from tailrace.store.run_file import Run
from tailrace.store.table import RecordTable

__all__ = ["completed", "measured", "met_objectives", "objective_ms", "summarise", "summarise_run", "summarise_values"]

Floats = NDArray[np.float64]

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_STAGES: Final = ("queue", "preprocess", "encode", "prefill", "decode", "postprocess", "response")


def measured(table: RecordTable) -> RecordTable:
    """The table without its warm-up, and without requests whose clients left because the plan said so.

    Those neither completed nor failed: they are counted apart (`work_done`).
    """
    warm = table.column("lane") == "warmup"
    early = table.column("run_offset_ns") < 0
    mask = ~((warm | early).astype(bool) | left_as_planned(table))
    return table if mask.all() else table.where(mask)


def completed(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests completed."""
    mask: NDArray[np.bool_] = (table.column("outcome") == OutcomeKind.COMPLETED.value).astype(bool)
    return mask


def summarise_values(values: Floats, reason: str = "", *, independent: bool = True) -> MetricSummary:
    """Summarise one metric (ms). NaN is "not seen" and is left out; `reason` says why there may be nothing.

    `independent` is False for values of which many belong to one request (gaps): an order-statistic interval would
    be far too narrow there, so none is given.
    """
    values = values[~np.isnan(values)]
    n = int(values.size)
    if not n:
        return MetricSummary(n=0, reason=reason or "no completed request has it")
    shown = {name: p for name, p in _QUANTILES.items() if supported(p, n)}
    numbers = np.quantile(values, list(shown.values())) if shown else np.empty(0)
    at = dict(zip(shown, (float(number) for number in numbers), strict=True))
    interval = list(quantile_interval(values, 0.99)) if independent and n > 1 else None
    return MetricSummary(
        n=n,
        mean=float(values.mean()),
        min=float(values.min()),
        max=float(values.max()),
        p99_ci=interval,
        p50=at.get("p50"),
        p90=at.get("p90"),
        p95=at.get("p95"),
        p99=at.get("p99"),
        p999=at.get("p999"),
    )


def met_objectives(table: RecordTable, objectives: Objectives) -> NDArray[np.bool_]:
    """Which requests completed within every bound.

    A bound at a quantile binds each request with the bound itself (the strictest of a metric's). A completed stream
    without a first token missed; a metric that cannot exist for a request (TPOT of a single token) binds nothing.
    """
    met = completed(table)
    for metric, bounds in objectives.bounds.items():
        if not bounds or "/" in metric:
            continue  # a lane's own objective: applied below
        met &= _within(table, metric, min(bounds.values()))
    for metric, bounds in objectives.bounds.items():
        lane, _, name = metric.rpartition("/")
        if lane and bounds:
            elsewhere = (table.column("lane") != lane).astype(bool)
            met &= elsewhere | _within(table, name, min(bounds.values()))
    return met


def objective_ms(table: RecordTable, metric: str) -> Floats:
    """What an objective on `metric` binds in each request (ms): of the chunk gaps the longest, so that all keep it."""
    return table.ms("chunk_gap_max" if metric == "chunk_gap" else metric)


def _within(table: RecordTable, metric: str, bound_ns: int) -> NDArray[np.bool_]:
    values = objective_ms(table, metric) * 1e6
    streamed = table.column("stream").astype(bool)
    absent = np.isnan(values)
    ok: NDArray[np.bool_] = np.where(absent, (metric != "ttft") | ~streamed, values <= bound_ns)
    return ok


def summarise(
    table: RecordTable,
    *,
    name: str = "",
    objectives: Objectives | None = None,
    client: ClientHealth | None = None,
    duration_s: float | None = None,
) -> BenchSummary:
    """Summarise a table of records. `duration_s` is the length of the measured phase; without it, the time from the
    first request's start to the last one's end.
    """
    whole = len(table) - int(left_as_planned(table).sum())
    table = measured(table)
    done_mask = completed(table)
    done = table.where(done_mask)
    if not duration_s or len(table) != whole:
        duration_s = _span_s(table)
    good = int(met_objectives(table, objectives or Objectives()).sum())
    tokens = float(np.nansum(done.column("output_tokens"))) if len(done) else 0.0
    reasons, counts = np.unique(table.column("reason")[~done_mask].astype(str), return_counts=True)
    lanes, sizes = np.unique(table.column("lane").astype(str), return_counts=True)
    late = done.column("intended_to_sent_ns") / 1e6
    return BenchSummary(
        run=name,
        n=len(table),
        requests_per_s=len(done) / duration_s if duration_s else 0.0,
        tokens_per_s=tokens / duration_s if duration_s else 0.0,
        goodput_per_s=good / duration_s if duration_s else 0.0,
        errors={str(key): int(value) for key, value in zip(reasons, counts, strict=True)},
        client=client or ClientHealth(),
        metrics=_metrics(done),
        from_schedule=_from_schedule(done, late) if not np.isnan(late).all() else {},
        mix={str(key): int(value) for key, value in zip(lanes, sizes, strict=True)},
    )


def summarise_run(run: Run) -> BenchSummary:
    """Summarise a run file: its objectives, client and duration come from its header and trailer."""
    trailer = run.trailer
    table = run.table()
    summary = summarise(
        table,
        name=run.path,
        objectives=run.header.objectives,
        client=trailer.client if trailer else None,
        duration_s=trailer.duration_s if trailer else None,
    )
    summary = msgspec.structs.replace(summary, work=work_done(table, trailer.counters if trailer else {}))
    return without_absent(summary, run.header)


def _span_s(table: RecordTable) -> float:
    if not len(table):
        return 0.0
    starts = starts_ns(table)
    return float((starts + table.column("e2e_ns")).max() - starts.min()) / 1e9


def _metrics(done: RecordTable) -> dict[str, MetricSummary]:
    gaps = pooled_gaps(done, np.arange(len(done)))
    known = gaps.tokens > 0
    per_token = np.repeat(gaps.ms[known] / gaps.tokens[known], gaps.tokens[known])
    if gaps.row.size:
        why_gaps, why_itl = "", "no event said how many tokens it brought"
    else:
        why_gaps = "no timeline was kept" if not gaps.rows else "no answer had two token events"
        why_itl = why_gaps
    streamed = done.where(done.column("stream").astype(bool))
    out = {
        "ttft_ms": summarise_values(streamed.ms("ttft"), "no streamed answer had a first token"),
        "ttft_content_ms": summarise_values(done.ms("ttft_content"), "no answer began with reasoning"),
        "chunk_gap_ms": summarise_values(gaps.ms, why_gaps, independent=False),
        "itl_ms": summarise_values(per_token, why_itl, independent=False),
        "tpot_ms": summarise_values(done.ms("tpot"), "no answer had two tokens with a known count"),
        "longest_wait_ms": summarise_values(longest_wait_ms(done), "no streamed answer had a first token"),
        "e2e_ms": summarise_values(done.ms("e2e")),
        "e2e_last_token_ms": summarise_values(done.ms("e2e_last_token"), "no answer had a token"),
    }
    factors = real_time_factors(done)
    if factors.size:
        out["rtf"] = summarise_values(factors)
    for stage in _STAGES:
        values = done.ms(stage)
        if not np.isnan(values).all():
            out[f"{stage}_ms"] = summarise_values(values)
    return out


def _from_schedule(done: RecordTable, late: Floats) -> dict[str, MetricSummary]:
    out = {
        f"{metric}_ms": summarise_values(done.ms(metric) + late)
        for metric in ("ttft", "ttft_content", "e2e", "e2e_last_token")
    }
    # Gaps have no schedule: what lies between two events is the same from either origin.
    out["late_send_ms"] = summarise_values(late)
    return out
