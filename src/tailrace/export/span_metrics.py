"""The metrics of spans that engines and services report; part of `metric_table`."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

SPAN_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="tailrace_spans_total",
        kind="counter",
        labels=("fate",),
        unit="spans",
        definition="Spans received, by what became of them: understood, not_understood (counted by name in "
        "/backends), malformed.",
    ),
    Metric(
        name="tailrace_spans_late_total",
        kind="counter",
        unit="spans",
        definition="Of all received, those that had ended more than a minute before they came.",
    ),
    Metric(
        name="tailrace_spans_orphaned_total",
        kind="counter",
        unit="spans",
        definition="Understood, but the first span of their request never came: they amend no record.",
    ),
    Metric(
        name="tailrace_span_posts_refused_total",
        kind="counter",
        unit="posts",
        definition="Exports refused as a whole: too large, too many at once, or no OTLP.",
    ),
    Metric(
        name="tailrace_span_amendments_total",
        kind="counter",
        labels=("fate",),
        unit="amendments",
        definition="Reports on requests that spans added up to: kept, dropped (no room), joined (kept, and its record "
        "was in memory two seconds later), or unaddressed (of a request that did not come through this gateway).",
    ),
    Metric(
        name="tailrace_traces_asked_total",
        kind="counter",
        labels=("why", "answer"),
        unit="requests",
        definition="Requests that an engine was to trace, by why (share: drawn by lot; caller: sampled by the caller; "
        "asked: x-tailrace-trace) and whether the budget of that reason granted or withheld it.",
    ),
    Metric(
        name="tailrace_engine_cold_start_seconds",
        kind="gauge",
        labels=("part",),
        unit="seconds",
        merge="max",
        definition="The engine's last start by its own spans: total, and the parts by its names, which overlap.",
    ),
)
