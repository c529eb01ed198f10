"""The report's tables of numbers: each percentile with its interval, its n, and what the failures make of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from tailrace.app.report_markup import ABSENT, Cell, cell, ms, row, table, text
from tailrace.figures.wording import count, percent
from tailrace.model.measurement import Attainment, BenchSummary, MetricSummary, RateSummary
from tailrace.stats.quantiles import needed

__all__ = ["attainment_table", "bucket_table", "class_table", "metric_table", "rate_table"]

PERCENTILES: Final = {"p50": ("p50", 0.5), "p90": ("p90", 0.9), "p95": ("p95", 0.95), "p99": ("p99", 0.99),
                      "p999": ("p99.9", 0.999)}  # fmt: skip
NAMES: Final = {
    "ttft_ms": ("TTFT", "time to the first token"),
    "ttft_content_ms": ("TTFT content", "to the first token of the answer itself, where reasoning came before it"),
    "chunk_gap_ms": ("chunk gap", "between two events that carried tokens, all of them pooled"),
    "itl_ms": ("ITL", "per token: each gap divided by the tokens that ended it"),
    "tpot_ms": ("TPOT", "last token minus first, by the tokens after the first: one value a request"),
    "longest_wait_ms": ("longest wait", "the longest time in which the reader saw nothing new"),
    "e2e_ms": ("E2E", "to the last byte of the answer"),
    "e2e_last_token_ms": ("E2E last token", "to the last token"),
    "late_send_ms": ("sent late by", "intended time to real send"),
    "rtf": ("RTF", "end to end / length of the audio; below 1 is faster than speech"),
}
_MOST_CLASSES: Final = 24
_SAME: Final = {"ttft_content_ms": "ttft_ms", "itl_ms": "chunk_gap_ms", "e2e_last_token_ms": "e2e_ms"}


def metric_table(
    metrics: Mapping[str, MetricSummary], caption: str, *, worst: Collection[str] = (), unit: str = "ms"
) -> Cell:
    """One row a metric that is known, a second one with the failures for those of `worst`; the unknown is said below.

    A metric that is another one in this run (each chunk a token, the last token with the last byte) is not repeated.
    """
    rows: list[Cell] = []
    unknown: list[str] = []
    for key, metric in metrics.items():
        if unit == "ms" and not key.endswith("_ms"):
            continue
        name, words = NAMES.get(key, (key.removesuffix("_ms"), "stage"))
        if not metric.n:
            unknown.append(f"{name}: {metric.reason}")
            continue
        if key in _SAME and metric == metrics.get(_SAME[key]):
            continue
        same = [NAMES[other][0] for other, of in _SAME.items() if of == key and metrics.get(other) == metric]
        name = f"{name} = {', '.join(same)}" if same else name
        rows += _metric_rows(Cell(f"{text(name)}<small>{text(words)}</small>"), metric, worst=key in worst)
    below = f'<p class="aside">Not known: {text("; ".join(unknown), 2000)}.</p>' if unknown else ""
    return Cell(table((unit, *_HEADS[1:]), rows, caption=caption) + below)


_HEADS: Final = ("ms", "n", "failed", "mean", *(name for name, _ in PERCENTILES.values()), "longest")


def _metric_rows(head: Cell, metric: MetricSummary, *, worst: bool) -> list[Cell]:
    cells = [
        cell(count(metric.n), "number"),
        cell(count(metric.failed) if metric.failed else "0", "number failed" if metric.failed else "number"),
        cell(ms(metric.mean), "number"),
    ]
    cells += [_percentile(metric, key, p) for key, (_, p) in PERCENTILES.items()]
    rows = [row(head, [*cells, cell(ms(metric.max), "number")])]
    if worst and metric.failed and metric.adjusted:
        values = [
            cell(ABSENT if key not in metric.adjusted else _infinite(metric.adjusted[key]), "number")
            for key in PERCENTILES
        ]
        words = Cell("with its failures<small>each slower than everything</small>")
        rows.append(row(words, [cell(count(metric.n + metric.failed), "number"), cell(""), cell(""), *values,
                                cell("∞", "number")], "adjusted"))  # fmt: skip
    return rows


def _infinite(value: float | None) -> str:
    return "∞" if value is None else ms(value)


def _percentile(metric: MetricSummary, key: str, p: float) -> Cell:
    value: float | None = getattr(metric, key)
    if value is None:
        return cell(Cell(f'<span class="unknown">n ≥ {count(needed(p))}</span>'), "number")
    return cell(ms(value), "number", small=_interval(metric.ci.get(key)))


def _interval(ends: list[float | None] | None) -> str:
    if ends is None:
        return ""
    low, high = ends
    return f"{'?' if low is None else ms(low)} … {'?' if high is None else ms(high)}"


def class_table(summary: BenchSummary) -> Cell | None:
    """TTFT, TPOT and E2E of each class, the largest class first; `None` where there is one class only."""
    origin = summary.classes_from_schedule or summary.classes
    if not origin:
        return None
    rows: list[Cell] = []
    for name in sorted(origin, key=lambda name: -summary.mix.get(name, 0))[:_MOST_CLASSES]:
        first = True
        for key in ("ttft_ms", "tpot_ms", "e2e_ms"):
            metric = origin[name].get(key) or summary.classes[name].get(key)
            if metric is None or not metric.n:
                continue
            label = Cell(f"<b>{text(name, 60)}</b> {NAMES[key][0]}") if first else text(NAMES[key][0])
            rows += _metric_rows(label, metric, worst=key != "tpot_ms")
            first = False
    return table(_HEADS, rows, caption="Latency by class")


def attainment_table(reached: Mapping[str, Attainment]) -> Cell:
    """How many met their objectives, in all and by class."""
    rows = []
    for name, one in reached.items():
        interval = "" if one.ci is None else f"{percent(one.ci[0])} … {percent(one.ci[1])}"
        rows.append(
            row(
                "all requests" if name == "all" else text(name, 60),
                [
                    cell(count(one.n), "number"),
                    cell(count(one.met), "number"),
                    cell(ABSENT if one.share is None else percent(one.share), "number", small=interval),
                    cell(f"{one.goodput_per_s:,.2f}", "number"),
                    cell(_bounds(one)),
                ],
            )
        )
    heads = ("", "n", "met", "share", "goodput, /s", "objectives")
    return table(heads, rows, caption="Objectives met, by class", words=("objectives",))


def _bounds(one: Attainment) -> str:
    return ", ".join(
        f"{metric.replace('_', ' ')} {PERCENTILES.get(p, (p, 0))[0]} ≤ {ms(bound)} ms"
        for metric, bounds in one.objectives.items()
        for p, bound in bounds.items()
    )


def rate_table(rates: RateSummary) -> Cell:
    """Tokens a second of single requests: here the tail is at the low end."""
    cells = [cell(count(rates.n), "number"), cell(f"{rates.mean or 0.0:,.1f}", "number")]
    for key in ("p50", "p10", "p5", "p1"):
        value: float | None = getattr(rates, key)
        ends = rates.ci.get(key)
        small = "" if ends is None else " … ".join("?" if end is None else f"{end:,.1f}" for end in ends)
        cells.append(cell(ABSENT if value is None else f"{value:,.1f}", "number", small=small))
    cells.append(cell(f"{rates.min or 0.0:,.1f}", "number"))
    return table(
        ("tokens/s", "n", "mean", "p50", "p10", "p5", "p1", "lowest"),
        [row(Cell("to one reader<small>after the first token</small>"), cells)],
        caption="Output tokens a second of single requests",
    )


def bucket_table(summary: BenchSummary) -> Cell:
    """The same as the heat map, for who reads tables."""
    rows = []
    for bucket in summary.buckets:
        cells = [cell(bucket.output, "number"), cell(count(bucket.n), "number")]
        for key in ("ttft_ms", "tpot_ms", "e2e_ms"):
            metric = bucket.metrics[key]
            cells += [_percentile(metric, p, PERCENTILES[p][1]) if metric.n else cell(ABSENT, "number")
                      for p in ("p50", "p95", "p99")]  # fmt: skip
        rows.append(row(bucket.prompt, cells))
    heads = ["prompt tokens", "output tokens", "n"]
    heads += [f"{name} {p}" for name in ("TTFT", "TPOT", "E2E") for p in ("p50", "p95", "p99")]
    return table(heads, rows, caption="Latency by prompt length and output length, ms")
