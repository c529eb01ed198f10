"""`tailrace bench --sweep` and `--find-rate`: many load tests, one directory, one table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from tailrace.cli.bench_gate import exit_code

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cli.bench_result import Results
    from tailrace.probe.spec import BenchSpec
    from tailrace.store.sweep import Sweep, SweepRun

_EXIT_LIMITED: Final = 3
_EXIT_INTERRUPTED: Final = 130


class Sweeping(NamedTuple):
    """The options under `Many loads`, as they were typed."""

    sweep: str | None
    find_rate: bool
    find_concurrency: bool
    search_time: str
    search_from: float | None
    search_most: float | None

    def asked(self) -> bool:
        """Whether there are many loads rather than one. Raises `InputError` where two ways are asked for at once."""
        from tailrace.model.errors import InputError

        if (self.sweep is not None) + self.find_rate + self.find_concurrency > 1:
            raise InputError(
                "only one of --sweep, --find-rate and --find-concurrency can choose the loads", place="--sweep"
            )
        return self.sweep is not None or self.find_rate or self.find_concurrency


def run_many(spec: BenchSpec, sweeping: Sweeping, results: Results, **how: Any) -> None:
    """Run the sweep or the search, print its table, and leave with the exit code that the end calls for.

    `how` goes to each load test (`app.bench.bench`).
    """
    import time
    from pathlib import Path

    from tailrace.app.bench import bench
    from tailrace.app.sweep import SearchPlan, make_directory, search, sweep
    from tailrace.cli.bench_print import LiveProgress
    from tailrace.cli.durations import parse_span
    from tailrace.probe.run import Interrupted
    from tailrace.workload.axis import parse_axis

    axis = None if sweeping.sweep is None else parse_axis(sweeping.sweep)
    budget = parse_span(sweeping.search_time, place="--search-time") / 1e9
    plan = SearchPlan(
        axis="rate" if sweeping.find_rate else "concurrency",
        start=_positive(sweeping.search_from, "--search-from") or 1.0,
        most=_positive(sweeping.search_most, "--search-most") or float("inf"),
        budget_s=budget,
    )
    _check(spec, axis.name if axis is not None else plan.axis)
    directory = make_directory(Path(results.out or time.strftime("sweep-%Y%m%d-%H%M%S")))
    if not results.as_json:
        what = f"{axis.name} {', '.join(f'{v:g}' for v in axis.values)}" if axis else f"up to {budget:g} s of searching"
        sys.stderr.write(f"Sending real load to {spec.url}: {what}. Ctrl-C ends it and keeps what was measured.\n")

    def measure(one: BenchSpec, path: Path) -> Any:
        with LiveProgress(one.url) as progress:
            return bench(one, out=path, on_progress=progress.show, **how)

    def on_point(point: SweepRun) -> None:
        if not results.as_json:
            sys.stderr.write(_told(point) + "\n")
            sys.stderr.flush()

    try:
        if axis is not None:
            done = sweep(spec, axis, directory, measure, on_point=on_point)
        else:
            done = search(spec, plan, directory, measure, on_point=on_point)
    except Interrupted as error:
        sys.stderr.write(f"tailrace bench: {error}\n")
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    _show(done, directory, as_json=results.as_json)
    if done.stopped == "interrupted":
        raise typer.Exit(_EXIT_INTERRUPTED)
    if done.stopped.startswith("the load generator was the limit"):
        raise typer.Exit(_EXIT_LIMITED)
    # A sweep is there to find where objectives are missed: only errors can fail it.
    if results.fail_on == "errors" and exit_code("errors", [one.summary for one in done.runs]):
        raise typer.Exit(1)


def _positive(value: float | None, place: str) -> float | None:
    from tailrace.model.errors import InputError

    if value is not None and not 0 < value < float("inf"):
        raise InputError(f"must be above 0, got {value:g}", place=place)
    return value


def _check(spec: BenchSpec, axis: str) -> None:
    """Refuse before any directory is made what no point could run with."""
    from tailrace.workload.axis import arrivals_at

    arrivals_at(spec.workload.arrivals, axis, 1.0)


def _told(point: SweepRun) -> str:
    from tailrace.cli.metric_rows import number

    summary = point.summary
    found = summary.from_schedule.get("ttft_ms") or summary.metrics.get("ttft_ms")
    ttft = f"TTFT p50 {number(found.p50)} p95 {number(found.p95)} ms" if found is not None else ""
    failed = sum(summary.errors.values())
    return (
        f"{point.value:>9g}  n {summary.n}  {summary.requests_per_s:.2f} completed/s  {ttft}"
        + (f"  failed {failed}" if failed else "")
        + (f"  {point.saturated}" if point.saturated else "")
    )


def _show(done: Sweep, directory: Path, *, as_json: bool) -> None:
    import msgspec

    from tailrace.analyze.knee import knee_of
    from tailrace.analyze.sweep import sweep_points

    points = sweep_points(done)
    knee = knee_of(points) if done.kind == "sweep" else None
    if as_json:
        told = msgspec.to_builtins(done) | {"schema": 1, "directory": str(directory)}
        told["knee"] = None if knee is None else msgspec.to_builtins(knee)
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return
    print_sweep(done, directory, "" if knee is None else _knee_text(knee, done.axis))


def _knee_text(knee: Any, axis: str) -> str:
    unit = "requests/s" if axis == "rate" else "at once"
    if knee.at is None:
        return f"{knee.why[:1].upper()}{knee.why[1:]}."
    return f"Knee of {knee.metric}: {knee.at:.3g} {unit}, 95 % interval [{knee.low:.3g}, {knee.high:.3g}]; {knee.why}"


def print_sweep(done: Sweep, directory: Path, knee: str) -> None:
    """Print a sweep or a search for a person."""
    from rich.console import Console
    from rich.table import Table

    from tailrace.analyze.sweep import sweep_points
    from tailrace.cli.metric_rows import number

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    unit = "requests/s" if done.axis == "rate" else "at once"
    if done.target:
        console.print(f"[bold]{done.target}[/]  model {done.model}", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in (unit, "n", "completed/s", "tokens/s", "goodput/s", "failed", "TTFT p50", "p95", "p99", "TPOT p50", ""):
        table.add_column(name, justify="left" if not name else "right")
    for point in sweep_points(done):
        summary = point.summary
        ttft, tpot = point.latency("ttft_ms"), point.latency("tpot_ms")
        table.add_row(
            f"{point.value:g}",
            str(summary.n),
            f"{summary.requests_per_s:.2f}",
            f"{summary.tokens_per_s:.1f}",
            f"{summary.goodput_per_s:.2f}",
            str(sum(summary.errors.values()) or ""),
            *(number(getattr(ttft, name, None)) for name in ("p50", "p95", "p99")),
            number(getattr(tpot, "p50", None)),
            "client limited" if summary.client.limited else point.standing or ("saturated" if point.saturated else ""),
        )
    console.print(table)
    if done.axis == "rate":
        console.print("TTFT counts from the intended time, in ms.")
    if done.stopped:
        console.print(f"Stopped: {done.stopped}", soft_wrap=True, markup=False)
    if knee:
        console.print(knee, soft_wrap=True, markup=False)
    if done.found:
        console.print(found_text(done), soft_wrap=True, markup=False, style="bold")
        console.print(f"Why it ended: {done.found['why']}", soft_wrap=True, markup=False)
    console.print(f"Runs: {directory}", soft_wrap=True, markup=False)


def found_text(done: Sweep) -> str:
    """The answer of a search in one sentence."""
    found = done.found
    unit = "requests/s" if done.axis == "rate" else "at once"
    asked = ", ".join(found["objectives"])
    value, low, high = found["value"], found["low"], found["high"]
    at = f"at {found['confidence']:.0%}"
    if low is None and high is None:
        return f"Nothing could be proven of {asked}: {found['requests']} requests are too few"
    if low is None:
        return f"Below {high:g} {unit} ({at}): from there on {asked} is missed; no lower load was proven to meet it"
    if high is None:
        return f"At least {low:g} {unit} ({at}) meet {asked}; no higher load was proven to miss it"
    return f"{value:.3g} [{low:.3g}, {high:.3g}] {unit} {at} meet {asked}"
