"""The report of a load test of which only another tool's summary is left: its numbers, and what they cannot say."""

from __future__ import annotations

from typing import Final

from tailrace.analyze.aggregate import Aggregate
from tailrace.app.report_conditions import conditions_card
from tailrace.app.report_markup import Cell, Section, card, cell, ms, row, table, text
from tailrace.app.report_tables import NAMES, PERCENTILES
from tailrace.figures.wording import count
from tailrace.store.run_file import Run

__all__ = ["aggregate_sections"]

_HEADS: Final = ("ms", "n", "mean", *(name for name, _ in PERCENTILES.values()), "longest")
_UNKNOWN: Final = Cell('<span class="unknown">unknown</span>')


def aggregate_sections(found: Aggregate) -> list[Section]:
    """Everything on the page. There are no intervals: they would need the requests, and the file has none."""
    source = found.header.source
    banner = (
        f'<p class="banner doubt">Only a summary by {text(source)} is left of this run: no request, so no interval, no '
        "failure beside a percentile, no class, no time. Whether the load generator kept up is <b>unknown</b>.</p>"
    )
    summary = found.summary
    sections = [Section(markup=banner)]
    title = f"{count(summary.n)} requests, {summary.requests_per_s:,.2f}/s, {summary.tokens_per_s:,.0f} tokens/s"
    note = f"As {source} gives them, where its definition is ours; a percentile is shown whatever its n."
    sections.append(Section(markup=card("Latency", title, _metrics(found), note=note)))
    if found.theirs:
        sections.append(
            Section(
                markup=card(
                    "By other definitions",
                    f"What {source} calls by these names is something else than it is here",
                    _theirs(found),
                )
            )
        )
    sections.append(Section(markup=conditions_card(Run(path=found.path, header=found.header, records=[]))))
    return sections


def _metrics(found: Aggregate) -> Cell:
    rows, unknown = [], []
    for key, metric in found.summary.metrics.items():
        name, words = NAMES.get(key, (key.removesuffix("_ms"), "stage"))
        values = [metric.mean, *(getattr(metric, p) for p in PERCENTILES), metric.max]
        if all(value is None for value in values):
            unknown.append(f"{name}: {metric.reason}")
            continue
        cells = [
            cell(count(metric.n) if metric.n else _UNKNOWN, "number"),
            *(cell(ms(one), "number") for one in values),
        ]
        rows.append(row(Cell(f"{text(name)}<small>{text(words)}</small>"), cells))
    below = f'<p class="aside">Not known: {text("; ".join(unknown), 2000)}.</p>' if unknown else ""
    return Cell(table(_HEADS, rows, caption="Latency, ms") + below)


def _theirs(found: Aggregate) -> Cell:
    names = list(dict.fromkeys(name for values in found.theirs.values() for name in values))
    rows = [
        row(metric, [cell(ms(values.get(name)), "number") for name in names]) for metric, values in found.theirs.items()
    ]
    return table(("ms", *names), rows, caption="By other definitions, ms")
