"""`tailrace compare`: did the change help?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from tailrace.analyze.compare_summaries import Side
    from tailrace.model.measurement import Comparison

app = CommandApp()

_EXIT_ANSWER = 1
_EXIT_INCONCLUSIVE = 3
_ANSWERS = ("regressed", "inconclusive")
_WIDTH = 118


@app.command()
def compare(
    before: Annotated[str, typer.Argument(help="Run file, records as JSON lines, data directory or admin URL: A.")],
    after: Annotated[str, typer.Argument(help="The same after the change: B.")],
    objective: Annotated[
        list[str] | None, typer.Option(help="For the goodput: ttft_p99=500ms, tpot_p99=80ms. Repeatable.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut run file still holds.")] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help="regressed: exit 1 when it is; inconclusive: exit 3 when it is. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Did the change help? improved, regressed, no difference or inconclusive, with n, intervals and trade-offs.

    Example: tailrace compare before.run after.run --fail-on regressed
    """
    from tailrace.analyze.compare_summaries import compare_any as compare_runs
    from tailrace.cli.objectives import parse_objectives
    from tailrace.model.errors import InputError

    answers = [part for text in fail_on or [] for part in text.split("|")]
    for answer in answers:
        if answer not in _ANSWERS:
            raise InputError(
                f"there is no answer {answer!r}", place="--fail-on", remedy=f"Use one of {', '.join(_ANSWERS)}."
            )
    (a, dropped_a), (b, dropped_b) = _read(before, partial), _read(after, partial)
    result = compare_runs(a, b, objectives=parse_objectives(objective or []), dropped=(dropped_a, dropped_b))
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        _print(result, before, after)
    limited = any(reason.startswith("client_limited") for reason in result.refused)
    if limited or ("inconclusive" in answers and result.verdict == "inconclusive"):
        raise typer.Exit(_EXIT_INCONCLUSIVE)
    if "regressed" in answers and result.verdict == "regressed":
        raise typer.Exit(_EXIT_ANSWER)


def _read(source: str, partial: bool) -> tuple[Side, float]:
    from tailrace.app.diagnose import read_any
    from tailrace.model.errors import InputError

    for one in read_any(source, allow_partial=partial):
        if one.run is not None:
            return one.run, one.dropped
        if one.table is not None:
            return one.table, one.dropped
        if one.aggregate is not None:
            return one.aggregate, one.dropped
    raise InputError("it holds no records of requests", place=source, remedy="Give a run file or records.")


def _print(result: Comparison, before: str, after: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)
    # Numbers that are cut to fit are worse than a line that wraps.
    console.width = max(console.width, _WIDTH)
    console.print(result.summary, style="bold", markup=False)
    console.print(f"A = {before} (n = {result.n_a}), B = {after} (n = {result.n_b})", markup=False)
    shown = {name: delta for name, delta in result.metrics.items() if _worth_showing(name, result)}
    if shown:
        table = Table(box=None, pad_edge=False)
        for title in ("metric", "A ms", "B ms", "change", "95 % interval", "n", "verdict"):
            table.add_column(title, justify="left" if title in ("metric", "verdict") else "right", no_wrap=True)
        for name, delta in shown.items():
            low, high = delta.ci_pct
            table.add_row(
                name + (" *" if name in result.headline else ""),
                "" if delta.a is None else f"{delta.a:,.1f}",
                "" if delta.b is None else f"{delta.b:,.1f}",
                "" if delta.delta_pct is None else f"{delta.delta_pct:+.1f} %",
                "" if low is None or high is None else f"{low:+.1f} to {high:+.1f} %",
                f"{delta.n_a}/{delta.n_b}",
                "" if low is None else str(delta.verdict).replace("_", " "),
            )
        console.print(table)
        console.print("* the verdict rests on these")
    for title, lines in (("Trade-offs", result.trade_offs), ("Good to know", result.checks)):
        if lines:
            console.print(f"\n{title}:")
            for line in lines:
                console.print(f"  - {line}", markup=False)
    if result.min_detectable_pct is not None:
        console.print(f"\nSmallest change of the headline that these runs could see: {result.min_detectable_pct:.0f} %")


def _worth_showing(name: str, result: Comparison) -> bool:
    """Headline statistics, and p50 and p99 over all requests; the rest is in --json."""
    return name in result.headline or ("/" not in name and name.endswith((".p50", ".p99")) and "longest" not in name)
