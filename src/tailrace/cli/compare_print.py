"""A comparison as text for a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from tailrace.model.measurement import Comparison, ComparisonSet, EngineRow, EngineView, MetricDelta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.cli.console import Console

__all__ = ["as_text", "engine_cells", "engine_remark", "interval", "mark_of", "number", "shown_metrics"]

_WIDTH = 118
_MOST_FAILURES = 6


def as_text(result: Comparison | ComparisonSet | EngineView) -> str:
    """The result as a person reads it, with colours where standard output is a terminal."""
    import sys

    from tailrace.cli.console import Console

    terminal = sys.stdout.isatty()
    out = io.StringIO()
    console = Console(file=out, soft_wrap=True, highlight=False, force_terminal=terminal, no_color=not terminal)
    # Numbers that are cut to fit are worse than a line that wraps.
    console.width = max(Console().width, _WIDTH)
    if isinstance(result, EngineView):
        _engines(console, result)
    elif isinstance(result, ComparisonSet):
        _many(console, result)
    else:
        _one(console, result)
    return out.getvalue()


def shown_metrics(result: Comparison) -> dict[str, MetricDelta]:
    """Headline statistics, and p50, p95 and p99 over all requests; the rest is in --json."""
    return {
        name: delta
        for name, delta in result.metrics.items()
        if name in result.headline
        or ("/" not in name and name.endswith((".p50", ".p95", ".p99")) and "longest" not in name)
    }


def interval(delta: MetricDelta) -> str:
    """`-40.1 to -22.0 %`; empty where nothing bounds it."""
    low, high = delta.ci_pct
    return "" if low is None or high is None else f"{low:+.1f} to {high:+.1f} %"


def number(value: float | None) -> str:
    """Milliseconds or a rate as people read them; empty where absent."""
    return "" if value is None else f"{value:,.1f}"


def mark_of(passed: bool | None) -> str:
    """`kept`, `BROKEN`, `undecided`."""
    return "undecided" if passed is None else "kept" if passed else "BROKEN"


def _one(console: Console, result: Comparison) -> None:
    from rich.table import Table

    console.print(result.summary, style="bold", markup=False)
    if result.in_short and not result.summary.startswith("No verdict"):
        console.print(f"In short: {result.in_short}", markup=False)
    runs = [f", {count} runs" if count > 1 else "" for count in (result.runs_a, result.runs_b)]
    console.print(
        f"A = {result.name_a} (n = {result.n_a}{runs[0]}), B = {result.name_b} (n = {result.n_b}{runs[1]})",
        markup=False,
    )
    shown = shown_metrics(result)
    if shown:
        table = Table(box=None, pad_edge=False)
        for title in ("metric", "A ms", "B ms", "change", "95 % interval", "n", "verdict"):
            # On narrow paper names and words are folded; a number that is cut is another number.
            words = title in ("metric", "verdict")
            table.add_column(title, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for name, delta in shown.items():
            table.add_row(
                name + (" *" if name in result.headline else ""),
                number(delta.a),
                number(delta.b),
                "" if delta.delta_pct is None else f"{delta.delta_pct:+.1f} %",
                interval(delta),
                f"{delta.n_a}/{delta.n_b}",
                delta.note or ("" if delta.ci_pct[0] is None else str(delta.verdict).replace("_", " ")),
            )
        console.print(table)
        console.print("* the verdict rests on these")
    for metric, why in result.not_comparable.items():
        console.print(f"{metric}: not comparable ({why})", markup=False)
    _rates(console, result)
    _list(console, "Rules", [f"{mark_of(one.passed)}: {one.rule}: {one.text}" for one in result.rules])
    _list(console, "Trade-offs", result.trade_offs)
    _list(console, "Ended without completing (A, B)", _failures(result))
    _list(console, "What else changed", result.same_work.get("changed", []))
    if result.unknown and result.name_a:
        console.print(f"\nNot told by both arms, so possibly different: {', '.join(result.unknown)}", markup=False)
    _list(console, "Good to know", result.checks)
    if result.min_detectable_pct is not None:
        console.print(f"\nSmallest change of the headline that these runs could see: {result.min_detectable_pct:.0f} %")


def _rates(console: Console, result: Comparison) -> None:
    names = {"requests_per_s": "requests/s", "tokens_per_s": "tokens/s", "goodput_per_s": "goodput/s"}
    parts = [
        f"{names[name]} {rate.a:,.2f} to {rate.b:,.2f}"
        + ("" if rate.delta_pct is None else f" ({rate.delta_pct:+.1f} %)")
        for name, rate in result.rates.items()
    ]
    if len(result.failed_share) == 2:
        parts.append(f"not completed {result.failed_share[0]:.2%} to {result.failed_share[1]:.2%}")
    if parts:
        console.print("; ".join(parts), markup=False)


def _failures(result: Comparison) -> list[str]:
    out = []
    for one in result.failures[:_MOST_FAILURES]:
        budget = f", budget {one.budget}" if one.budget else ""
        timer = "" if one.limit_ms is None else f", all after {one.limit_ms:,.0f} ms"
        out.append(f"{one.outcome.replace('_', ' ')} ({one.reason}{budget}{timer}): {one.a}, {one.b}")
    return out


def _list(console: Console, title: str, lines: Iterable[str]) -> None:
    lines = list(lines)
    if not lines:
        return
    console.print(f"\n{title}:")
    for line in lines:
        console.print(f"  - {line}", markup=False)


def _many(console: Console, result: ComparisonSet) -> None:
    from rich.table import Table

    console.print(result.summary, style="bold", markup=False)
    if result.metric:
        console.print(f"Ranked by {result.metric}", markup=False)
    table = Table(box=None, pad_edge=False)
    titles = (
        "rank",
        "arm",
        "ms",
        "change",
        "95 % interval",
        "not completed",
        "n",
        "verdict",
    )
    for title in titles:
        table.add_column(title, justify="left" if title in ("arm", "verdict") else "right", no_wrap=True)
    for row in result.ranking:
        one = result.comparisons.get(row.name)
        delta = None if one is None else one.metrics.get(result.metric)
        table.add_row(
            str(row.rank) if row.comparable else "-",
            row.name,
            number(row.value_ms),
            "" if delta is None or delta.delta_pct is None else f"{delta.delta_pct:+.1f} %",
            "" if delta is None else interval(delta),
            f"{row.failed_share:.2%}",
            str(row.n),
            "baseline" if row.verdict is None else str(row.verdict).replace("_", " "),
        )
    console.print(table)
    console.print("Verdicts hold for all arms together (Holm, 5 %). Arms that share a rank could not be told apart.")
    for name, one in result.comparisons.items():
        lines = [one.summary, *([f"in short: {one.in_short}"] if one.in_short else []), *one.trade_offs]
        lines += [f"rule {mark_of(rule.passed)}: {rule.rule}: {rule.text}" for rule in one.rules]
        lines += [f"also changed: {text}" for text in one.same_work.get("changed", [])]
        lines += [f"{metric}: not comparable ({why})" for metric, why in one.not_comparable.items()]
        _list(console, name, lines)


def _engines(console: Console, view: EngineView) -> None:
    from rich.table import Table

    group = ""
    table: Table | None = None
    for row in view.rows:
        if row.group != group:
            if table is not None:
                console.print(table)
            group = row.group
            table = Table(box=None, pad_edge=False, title=group, title_justify="left", title_style="bold")
            table.add_column("", no_wrap=True)
            for engine in view.engines:
                table.add_column(engine, justify="right", no_wrap=True)
            table.add_column("", no_wrap=False)
        assert table is not None
        table.add_row(
            f"{row.name}{f', {row.unit}' if row.unit else ''}", *engine_cells(view.engines, row), engine_remark(row)
        )
    if table is not None:
        console.print(table)
    _list(console, "Good to know", view.checks)


def engine_cells(engines: Sequence[str], row: EngineRow) -> list[str]:
    """One cell an engine. Too few requests are not the engine's silence: the cell says how many it would take."""
    out = []
    for name, value in zip(engines, row.values, strict=True):
        if value is None:
            out.append(f"n ≥ {row.needs[name]:,}" if name in row.needs else "not reported")
        elif isinstance(value, str):
            out.append(value)
        else:
            # What was counted has no decimals.
            out.append(f"{value:,.1f}" if row.unit or value != round(value) else f"{value:,.0f}")
    return out


def engine_remark(row: EngineRow) -> str:
    """Why a row cannot be compared; empty where its cells say it: all that is missing needs more requests."""
    if row.comparable:
        return row.why
    if row.needs and len(row.needs) == sum(value is None for value in row.values):
        return "not comparable: too few requests"
    return f"not comparable: {row.why}"
