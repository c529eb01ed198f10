"""`tailrace bench --repeat`: one prompt alone and among others, and what is printed of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import typer

from tailrace.cli.bench_gate import exit_code
from tailrace.cli.metric_rows import metric_name, number

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.analyze.repeatability import Repeatability
    from tailrace.cli.bench_result import Results
    from tailrace.probe.spec import BenchSpec

_EXIT_LIMITED: Final = 3
_EXIT_INTERRUPTED: Final = 130


def run_repeat(spec: BenchSpec, results: Results) -> None:
    """Run both phases, print, and leave with the exit code that the end calls for."""
    import msgspec

    from tailrace.app.repeat import paths, phases, repeat
    from tailrace.cli.bench_print import LiveProgress, announcement
    from tailrace.probe.run import Interrupted

    first, _ = phases(spec)
    out = results.path()
    with LiveProgress(spec.url, announcement="" if results.as_json else announcement(first)) as progress:
        try:
            result, interrupted = repeat(spec, out=out, on_progress=progress.show)
        except Interrupted as error:
            sys.stderr.write(f"tailrace bench: {error}\n")
            raise typer.Exit(_EXIT_INTERRUPTED) from None
    found = result.repeatability
    if results.as_json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    elif found is not None:
        _print(found, first.prompt or "", paths(out))
    if interrupted:
        raise typer.Exit(_EXIT_INTERRUPTED)
    both = [one for one in (result.alone, result.together) if one is not None]
    if any(one.client.limited for one in both):
        sys.stderr.write(
            "tailrace bench: the client was the limit in one of the phases; the spread is not the server's\n"
        )
        raise typer.Exit(_EXIT_LIMITED)
    if code := exit_code(results.fail_on, both):
        raise typer.Exit(code)


def _print(found: Repeatability, prompt: str, files: tuple[Path, Path]) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    shown = prompt if len(prompt) < 60 else prompt[:57] + "..."
    console.print(f"One prompt again and again, at temperature 0: {shown!r}", markup=False, soft_wrap=True)
    head = ("", "n", "mean", "sd", "p50", "p99", "|", "n", "mean", "sd", "p50", "p99", "added by scheduling")
    rows: list[tuple[str, ...]] = [head]
    for key, metric in found.metrics.items():
        cells: list[str] = [metric_name(key).replace("chunk_gap_max", "longest gap")]
        for i, spread in enumerate((metric.alone, metric.together)):
            cells += ["|"] * i
            cells += [f"{spread.n}", *(number(one) for one in (spread.mean, spread.sd, spread.p50, spread.p99))]
        grown = metric.scheduling_share
        share = "spread did not grow" if grown is None else f"{grown:.0%} of the variance"
        if metric.scheduling_share_ci is not None:
            low, high = metric.scheduling_share_ci
            share += f" ({low:.0%} … {high:.0%})"
        rows.append((*cells, share))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    console.print(f"{'':{widths[0]}}  alone (ms), then {found.concurrency} at once (ms)", markup=False)
    for row in rows:
        shown_cells = (f"{cell:>{w}}" for cell, w in zip(row[1:-1], widths[1:-1], strict=True))
        console.print("  ".join((f"{row[0]:<{widths[0]}}", *shown_cells, row[-1])), markup=False, soft_wrap=True)
    answers = found.answers
    if answers is None:
        console.print("Answers: none had a text")
    elif answers.identical:
        console.print(f"Answers: all {answers.n} identical")
    else:
        console.print(
            f"Answers: {answers.distinct} different texts among {answers.n} ({answers.distinct_alone} alone, "
            f"{answers.distinct_together} among others); {answers.commonest:.0%} are the commonest one",
            soft_wrap=True,
        )
    console.print(f"Run files: {files[0]}, {files[1]}", markup=False, soft_wrap=True)
