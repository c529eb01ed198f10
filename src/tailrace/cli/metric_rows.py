"""Metrics of a run as rows of text that fit the terminal: columns give way, numbers are never cut."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from tailrace.model.measurement import MetricSummary

_NAMES: Final = {
    "ttft_ms": "TTFT",
    "ttft_content_ms": "TTFT content",
    "chunk_gap_ms": "chunk gap",
    "itl_ms": "ITL (per token)",
    "tpot_ms": "TPOT (per request)",
    "longest_wait_ms": "longest wait",
    "e2e_ms": "E2E",
    "e2e_last_token_ms": "E2E last token",
    "late_send_ms": "sent late by",
}
_PERCENTILES: Final = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9"}
_INTERVAL: Final = "p99 95 % interval"
_COLUMNS: Final = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max", _INTERVAL)
_GIVES_WAY: Final = (_INTERVAL, "mean", "p90")
"""What a narrow terminal does not show beside the rest, in this order; the interval then stands below."""


def metric_name(key: str) -> str:
    """`ttft_ms` -> `TTFT`; a stage keeps its own name."""
    return _NAMES.get(key, key.removesuffix("_ms"))


def number(value: float | None) -> str:
    """Milliseconds for a table."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10_000 else f"{value:.1f}"


def adjusted_lines(metrics: Mapping[str, MetricSummary], width: int, only: Sequence[str]) -> list[str]:
    """What the percentiles of `only` are when each failure counts as slower than everything; empty without one."""
    parts = []
    failed = 0
    for key in only:
        metric = metrics.get(key)
        if metric is None or not metric.failed or not metric.adjusted:
            continue
        failed = max(failed, metric.failed)
        shown = [
            f"{_PERCENTILES[name]} {'∞' if value is None else number(value)}"
            for name, value in metric.adjusted.items()
            if name != "p90"
        ]
        parts.append(f"{metric_name(key)} {' '.join(shown)}")
    if not parts:
        return []
    what = "the one that failed" if failed == 1 else f"the {failed:,} that failed"
    text = f"counting {what} as slower than everything: " + "; ".join(parts)
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")


def metric_rows(metrics: Mapping[str, MetricSummary], width: int) -> list[str]:
    """Head, one row a metric that is known, and below them what has no place in a column."""
    rows: dict[str, dict[str, str]] = {}
    unknown: list[str] = []
    for key, metric in metrics.items():
        if not metric.n:
            unknown.append(f"{metric_name(key)}: {metric.reason}")
        elif key != "ttft_content_ms" or metric != metrics.get("ttft_ms"):
            # Otherwise no reasoning came before the text: the same numbers twice.
            rows[metric_name(key)] = _cells(metric)
    shown = [name for name in ("n", *_COLUMNS) if any(cells[name] for cells in rows.values())]
    names = max(map(len, rows), default=0)
    widths = {name: max(len(name), *(len(cells[name]) for cells in rows.values())) for name in shown}
    for name in _GIVES_WAY:
        if names + sum(2 + widths[one] for one in shown) > width and name in shown:
            shown.remove(name)
    out = [" " * names + "".join(f"  {name:>{widths[name]}}" for name in shown)] if rows else []
    out += [
        f"{row:{names}}" + "".join(f"  {cells[name]:>{widths[name]}}" for name in shown) for row, cells in rows.items()
    ]
    intervals = {row: cells[_INTERVAL] for row, cells in rows.items() if cells[_INTERVAL]}
    if intervals and _INTERVAL not in shown:
        text = f"{_INTERVAL}: " + ", ".join(f"{row} {interval}" for row, interval in intervals.items())
        out += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    few = ["-: too few requests for that percentile"] * any(v == "-" for cells in rows.values() for v in cells.values())
    if any(cells[_INTERVAL].endswith("?") for cells in rows.values()):
        few.append("?: too few for the interval's upper end")
    out += textwrap.wrap("; ".join(few), width, initial_indent="  ", subsequent_indent="    ")
    for text in unknown:
        out += textwrap.wrap(f"not known: {text}", width, initial_indent="  ", subsequent_indent="    ")
    return out


def _cells(metric: MetricSummary) -> dict[str, str]:
    interval = metric.p99_ci or metric.ci.get("p99")
    ends = "" if interval is None else " … ".join("?" if end is None else number(end) for end in interval)
    values = (metric.mean, metric.p50, metric.p90, metric.p95, metric.p99, metric.p999, metric.max)
    return {"n": f"{metric.n:,}", **dict(zip(_COLUMNS, map(number, values), strict=False)), _INTERVAL: ends}
