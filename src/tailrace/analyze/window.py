"""The answer for a window of time that ends now: rates, percentiles with their n, errors."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.bench_summary import completed, summarise_values
from tailrace.model.outcome import OutcomeKind
from tailrace.model.thresholds import S
from tailrace.stats.quantiles import needed
from tailrace.store.table import RecordTable

__all__ = ["METRICS", "WindowMetric", "WindowSummary", "default_metric", "ended_since", "summarise_window"]

METRICS: Final = ("ttft", "tpot", "e2e")


class WindowMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of the completed requests (ms). What n cannot support is absent."""

    n: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    p99_needs: int = 0
    """The n that a p99 needs, where this one does not have it."""


class WindowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in the window."""

    n: int
    """Requests that ended, whatever their outcome."""
    requests_per_s: float | None
    """`None` when nobody knows for how long the window was watched."""
    tokens_per_s: float | None
    metrics: dict[str, WindowMetric]
    """`ttft_ms`, `tpot_ms`, `e2e_ms`."""
    failed: int
    """Failed, timed out or refused."""
    cancelled: int
    slow: int


def ended_since(table: RecordTable, since_unix_ns: int | None) -> RecordTable:
    """The requests that ended in the window: one that began before it and ended in it counts, in-flight ones do not."""
    if since_unix_ns is None:
        return table
    return table.where(table.column("start_unix_ns") + table.column("e2e_ns") >= since_unix_ns)


def summarise_window(
    table: RecordTable,
    *,
    now_unix_ns: int,
    window_s: float | None,
    uptime_s: float | None = None,
    limited: bool = False,
) -> WindowSummary:
    """Summarise the rows of `ended_since`.

    `window_s` is `None` for all that is kept, `uptime_s` how long records have been made (`None`: not known), and
    `limited` says that older rows of the window were left out.
    """
    done_rows = completed(table)
    done = table.where(done_rows)
    cancelled = int((table.column("outcome") == OutcomeKind.CANCELLED.value).sum())
    span_s = _span_s(table, now_unix_ns, window_s, uptime_s, limited=limited)
    tokens = float(np.nansum(table.column("output_tokens"))) if len(table) else 0.0
    return WindowSummary(
        n=len(table),
        requests_per_s=len(table) / span_s if span_s else None,
        tokens_per_s=tokens / span_s if span_s else None,
        metrics={f"{name}_ms": _metric(done, name) for name in METRICS},
        failed=len(table) - len(done) - cancelled,
        cancelled=cancelled,
        slow=sum(map(bool, table.column("slow").tolist())),
    )


def default_metric(done: RecordTable) -> str:
    """TTFT where most answers were streamed (it is what a reader waits for), end-to-end time otherwise.

    Also for services that call a model: that stage lies on both sides of their first byte, which nobody has split.
    """
    if not np.isnan(done.ms("model")).all():
        return "e2e"
    seen = int((~np.isnan(done.ms("ttft"))).sum())
    return "ttft" if seen * 2 >= len(done) else "e2e"


def _span_s(
    table: RecordTable, now_unix_ns: int, window_s: float | None, uptime_s: float | None, *, limited: bool
) -> float | None:
    """Seconds that the rate is over: the window, or less where the gateway is younger or rows were left out."""
    if not len(table):
        return window_s if window_s is not None and (uptime_s is None or uptime_s >= window_s) else uptime_s
    kept_s = max((now_unix_ns - int(table.column("start_unix_ns").min())) / S, 1e-3)
    if limited or window_s is None:
        return kept_s
    # A gateway that restarted keeps its older records: the rows may reach back further than its uptime.
    return min(float(window_s), max(uptime_s or 0.0, kept_s))


def _metric(done: RecordTable, name: str) -> WindowMetric:
    summary = summarise_values(done.ms(name))
    return WindowMetric(
        n=summary.n,
        p50=summary.p50,
        p95=summary.p95,
        p99=summary.p99,
        max=summary.max,
        p99_needs=0 if summary.p99 is not None else needed(0.99),
    )
