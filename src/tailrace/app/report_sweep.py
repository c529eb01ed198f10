"""The report of a sweep: the throughput-latency curve with its knee, and every point with its n and its failures."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.analyze.knee import knee_of
from tailrace.analyze.sweep import LATENCIES, SweepPoint, sweep_points
from tailrace.app.report_markup import ABSENT, Cell, Section, card, cell, facts, figure, ms, row, table, text
from tailrace.figures.throughput_latency import WORDS, throughput_latency
from tailrace.figures.wording import count, percent
from tailrace.model.measurement import MetricSummary
from tailrace.store.sweep import Sweep

__all__ = ["sweep_sections"]

_AXIS: Final = {"rate": "offered, requests/s", "concurrency": "requests at once"}
_UNKNOWN: Final = Cell('<span class="unknown">unknown</span>')
_SHOWN: Final = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))


def sweep_sections(sweep: Sweep) -> list[Section]:
    """Everything on the page of a sweep or a search."""
    points = sweep_points(sweep)
    return [
        Section(markup=_banner(sweep, points)),
        _answer(sweep),
        _curves(points),
        _table(sweep, points),
        _about(sweep),
    ]


def _banner(sweep: Sweep, points: list[SweepPoint]) -> Cell:
    limited = [point for point in points if point.summary.client.limited]
    parts = []
    if limited:
        at = ", ".join(f"{point.value:g}" for point in limited)
        parts.append(
            f'<div class="lost" role="alert">Client limited at {text(at)}: those points are the load '
            f"generator's, not the server's. {text(limited[0].summary.client.why)}.</div>"
        )
    if sweep.stopped:
        parts.append(f'<p class="banner doubt">The sweep ended early: {text(sweep.stopped)}.</p>')
    if not limited and points:
        parts.append('<p class="banner">The load generator kept up at every point.</p>')
    return Cell("".join(parts))


def _answer(sweep: Sweep) -> Section:
    if not sweep.found:
        return Section(markup="")
    body = facts((_words(name), _value(value)) for name, value in sweep.found.items())
    return Section(markup=card("What was searched for", _found(sweep), body))


def _found(sweep: Sweep) -> str:
    value, low, high = (sweep.found.get(name) for name in ("value", "low", "high"))
    if not isinstance(value, int | float):
        return "The search found no boundary"
    ends = f" ({low:g} to {high:g})" if isinstance(low, int | float) and isinstance(high, int | float) else ""
    return f"{value:g} {'requests/s' if sweep.axis == 'rate' else 'requests at once'}{ends}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else ABSENT if value is None else str(value)


def _curves(points: list[SweepPoint]) -> Section:
    metrics = [metric for metric in LATENCIES if any(point.latency(metric) for point in points)]
    pictures = [
        msgspec.structs.replace(
            throughput_latency(points, metric=metric, knee=knee_of(points, metric)), name=f"curve-{metric}"
        )
        for metric in metrics
    ]
    return Section(
        markup="".join(
            figure(f"Throughput and {WORDS.get(metric, metric)}", one)
            for metric, one in zip(metrics, pictures, strict=True)
        ),
        pictures=pictures,
    )


def _table(sweep: Sweep, points: list[SweepPoint]) -> Section:
    heads = [_AXIS[sweep.axis], "n", "failed", "done, /s", "tokens/s", "goodput, /s"]
    heads += [f"{name} {p}" for _, name in _SHOWN for p in ("p50", "p95", "p99")]
    rows = [_row(point) for point in points]
    note = (
        "Milliseconds, from the intended time where there is a schedule; below each percentile its 95 % interval. "
        "Where a point is beyond what the server can do, its latency grows for as long as the load lasts."
    )
    return Section(markup=card("Points", f"{len(points)} loads", table(heads, rows, caption="The points"), note=note))


def _row(point: SweepPoint) -> Cell:
    summary = point.summary
    cells = [
        cell(count(summary.n), "number"),
        cell(percent(point.failed_share), "number failed" if point.failed_share else "number"),
        cell(f"{point.throughput:,.2f}", "number"),
        cell(f"{summary.tokens_per_s:,.0f}", "number"),
        cell(f"{summary.goodput_per_s:,.2f}", "number"),
    ]
    for metric, _ in _SHOWN:
        known = point.latency(metric)
        cells += [_percentile(known, p) for p in ("p50", "p95", "p99")]
    remark = point.saturated or (f"objectives {point.standing}" if point.standing else "")
    if summary.client.limited:
        remark = "client limited"
    below = f"<small>{text(remark, 120)}</small>" if remark else ""
    return row(Cell(f"{point.value:g}{below}"), cells)


def _percentile(metric: MetricSummary | None, p: str) -> Cell:
    value: float | None = None if metric is None else getattr(metric, p)
    if metric is None or value is None:
        return cell(ABSENT, "number")
    ends = metric.ci.get(p)
    small = "" if ends is None else " … ".join("?" if end is None else ms(end) for end in ends)
    return cell(ms(value), "number", small=small)


def _about(sweep: Sweep) -> Section:
    known = [
        ("target", sweep.target),
        ("model", sweep.model),
        ("asked for", ", ".join(f"{value:g}" for value in sweep.asked)),
        ("run files", ", ".join(one.run for one in sweep.runs)),
        ("measured by", f"tailrace {sweep.version}".strip()),
    ]
    body = facts((name, value or _UNKNOWN) for name, value in known)
    note = "Each point is a run of its own: `tailrace report RUN` shows it whole, its conditions included."
    return Section(markup=card("Conditions", "What was run", body, note=note))
