"""`tailrace records view`: one load test, ours or another tool's, in numbers; with `--as` in another tool's words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.analyze.aggregate import Aggregate
    from tailrace.store.run_file import Run

RunSource = Annotated[
    str,
    typer.Argument(help="Run file, or the result of another load generator (FILE#2: the second run of a file)."),
]
AsTool = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="In the words of vllm, sglang, guidellm, aiperf, genai-perf, inference-perf, llmperf, evalscope or "
        "genai-bench.",
    ),
]


def view(
    run: RunSource,
    as_tool: AsTool = None,
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut file still holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one load test: its metrics, what its source does not tell, and how its words differ from ours."""
    import msgspec

    from tailrace.analyze.aggregate import Aggregate
    from tailrace.analyze.as_tool import as_tool as view_of
    from tailrace.analyze.bench_summary import summarise_run
    from tailrace.cli.as_tool_print import print_view
    from tailrace.model.errors import InputError

    source, notes = read_load_test(run, partial=partial)
    if as_tool is not None:
        if isinstance(source, Aggregate):
            raise InputError("it holds percentiles, no requests", place=run, remedy="Leave out --as.")
        shown = view_of(as_tool, source)
        if as_json:
            sys.stdout.write(msgspec.json.encode(shown).decode() + "\n")
        else:
            print_view(shown)
        return
    if as_json:
        summary = source.summary if isinstance(source, Aggregate) else summarise_run(source)
        header = {"source": source.header.source, "granularity": source.header.granularity}
        said = {"absent": source.header.absent, "notes": notes, "theirs": getattr(source, "theirs", {})}
        sys.stdout.write(msgspec.json.encode({"summary": summary, **header, **said}).decode() + "\n")
    else:
        _print(source, notes)


def read_load_test(name: str, *, partial: bool) -> tuple[Run | Aggregate, list[str]]:
    """The run or aggregate that `name` holds, and what is to be known of it. InputError where it holds none."""
    from tailrace.app.diagnose import is_url, read_any
    from tailrace.model.errors import InputError

    if is_url(name):
        raise InputError("this is an address", place=name, remedy="Give a file.")
    (source,) = read_any(name, allow_partial=partial)
    found = source.run or source.aggregate
    if found is None:
        raise InputError(
            f"this is no load test ({source.kind})",
            place=name,
            remedy="Give a run file, or what another load generator wrote.",
        )
    return found, source.notes


def _print(source: Run | Aggregate, notes: list[str]) -> None:
    from tailrace.analyze.bench_summary import summarise_run
    from tailrace.cli.console import Console
    from tailrace.cli.metric_rows import metric_rows, number
    from tailrace.store.run_file import Run

    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    header = source.header
    aggregate = None if isinstance(source, Run) else source
    summary = summarise_run(source) if isinstance(source, Run) else source.summary
    console.print(f"{source.path}: measured by {header.source}, granularity {header.granularity}", markup=False)
    console.print(
        f"{summary.n} requests, {sum(summary.errors.values())} did not complete; "
        f"{summary.requests_per_s:.2f} requests/s, {summary.tokens_per_s:.1f} tokens/s",
        markup=False,
    )
    metrics = dict(summary.metrics)
    if aggregate is not None:
        for name, one in list(metrics.items()):
            if not one.n and one.mean is not None:
                told = ", ".join(
                    f"{p} {number(getattr(one, p))}" for p in ("mean", "p50", "p90", "p95", "p99") if getattr(one, p)
                )
                console.print(f"{name.removesuffix('_ms')} (ms; {one.reason}): {told}", markup=False)
                del metrics[name]
    for row in metric_rows(metrics, console.width):
        console.print(row, markup=False)
    for name, values in (aggregate.theirs if aggregate else {}).items():
        told = ", ".join(f"{key} {number(value)}" for key, value in values.items())
        console.print(f"theirs, {name} (ms): {told}", markup=False)
    if header.absent:
        console.print(f"Absent: {', '.join(header.absent)}", markup=False)
    for note in notes:
        console.print(f"Note: {note}", markup=False)
