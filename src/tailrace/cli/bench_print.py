"""What `tailrace bench` shows: the run while it goes on (stderr), and its summary (stdout)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tailrace.cli.bench_print_work import work_lines
from tailrace.cli.metric_rows import metric_rows
from tailrace.model.measurement import BenchSummary, MetricSummary
from tailrace.model.record import RequestRecord
from tailrace.probe.progress import Progress
from tailrace.probe.spec import BenchSpec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_PLAIN_EVERY_S = 5.0
_SILENT_S = 2.0
"""Runs that are over by then show no progress."""


class LiveProgress:
    """Shows progress about every half second on a terminal, as plain lines every five seconds elsewhere."""

    def __init__(self, target: str, *, announcement: str = "") -> None:
        self._target = target
        self._announcement = announcement
        self._terminal = sys.stderr.isatty()
        self._live: Live | None = None
        self._began = self._printed = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show one snapshot."""
        now = time.monotonic()
        if self._announcement and progress.phase != "look":
            sys.stderr.write(self._announcement + "\n")
            sys.stderr.flush()
            self._announcement = ""
        if self._terminal:
            if now - self._began < _SILENT_S and self._live is None:
                return
            self._show_live(progress)
        elif now - self._printed >= _PLAIN_EVERY_S:
            self._printed = now
            sys.stderr.write(self._line(progress) + "\n")
            sys.stderr.flush()

    def _show_live(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # No refresh thread: it would compete with the stamps. The driver calls twice a second.
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text(self._line(progress)), refresh=True)

    def _line(self, progress: Progress) -> str:
        if progress.phase == "look":
            return f"looking at {self._target}"
        whole = f"/{progress.planned_s:.0f}" if progress.planned_s else ""
        count = f"/{progress.planned_requests}" if progress.planned_requests else ""
        ttft = ""
        if progress.ttft_p50_ms is not None and progress.ttft_p99_ms is not None:
            ttft = f"  TTFT p50 {progress.ttft_p50_ms:.0f} p99 {progress.ttft_p99_ms:.0f} ms"
        return (
            f"{progress.phase:9} {progress.elapsed_s:5.1f}{whole} s  sent {progress.sent}{count}  "
            f"in flight {progress.in_flight}  done {progress.done}  errors {progress.errors}{ttft}"
        )


def announcement(spec: BenchSpec) -> str:
    """What is about to happen to the target, in one line."""
    arrivals = spec.workload.arrivals
    long = f" for {spec.duration_ns / 1e9:g} s" if spec.duration_ns else ""
    many = f", {spec.requests} in all" if spec.requests else ""
    return f"Sending real load to {spec.url}: {arrivals}{long}{many}. Ctrl-C ends it and keeps what was measured."


def print_summary(summary: BenchSummary, spec: BenchSpec, path: Path, *, interrupted: bool) -> None:
    """Print the whole result for a person."""
    from rich.console import Console

    from tailrace.analyze.conditions import conditions_line
    from tailrace.store.run_file import read_run

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    run = read_run(path)
    arrivals = spec.workload.arrivals
    how = str(arrivals)
    if interrupted:
        console.print("[bold yellow]Interrupted: this is what had been measured.[/]")
    duration = run.trailer.duration_s if run.trailer else 0.0
    console.print(f"[bold]{run.header.target}[/]  model {run.header.model}  {how}  seed {spec.seed}", soft_wrap=True)
    failed = sum(summary.errors.values())
    console.print(
        f"{summary.n} requests in {duration:.1f} s: {summary.n - failed} completed, {failed} did not; "
        f"{summary.requests_per_s:.2f} requests/s, {summary.tokens_per_s:.1f} tokens/s, "
        f"goodput {summary.goodput_per_s:.2f}/s ({_objectives(spec)})",
        soft_wrap=True,
    )
    if summary.from_schedule:
        _table(console, "From schedule: what a user waits, counted from the intended time (ms)", summary.from_schedule)
        _table(console, "From send (ms)", summary.metrics)
    else:
        _table(console, "From send (ms)", summary.metrics)
    if summary.errors:
        console.print("[bold]Not completed[/]: " + ", ".join(f"{k} {v}" for k, v in sorted(summary.errors.items())))
        for text in _examples(run.records):
            console.print(f"  {text}", soft_wrap=True, markup=False)
    _print_health(console, summary)
    console.print(f"Conditions: {conditions_line(run.header.conditions)}", soft_wrap=True, markup=False)
    for line in work_lines(summary):
        console.print(line, soft_wrap=True, markup=False)
    for note in [*run.header.notes, *(run.trailer.notes if run.trailer else [])]:
        console.print(f"Note: {note}", soft_wrap=True, markup=False)
    console.print(f"Run file: {path}", soft_wrap=True, markup=False)


def _objectives(spec: BenchSpec) -> str:
    return ", ".join(
        f"{metric} p{p * 100:g} ≤ {bound / 1e6:g} ms"
        for metric, bounds in spec.objectives.bounds.items()
        for p, bound in bounds.items()
    )


def _table(console: Console, title: str, metrics: dict[str, MetricSummary]) -> None:
    console.print()
    console.print(title, style="bold", markup=False)
    for row in metric_rows({key: one for key, one in metrics.items() if key.endswith("_ms")}, console.width):
        console.print(row, markup=False, soft_wrap=True)
    console.print()


def _examples(records: list[RequestRecord]) -> list[str]:
    """What the server said, once a reason."""
    seen: dict[str, str] = {}
    for record in records:
        if record.reason and record.error and record.reason not in seen:
            seen[record.reason] = f"{record.reason.value}: {record.error}"
    return list(seen.values())[:8]


def _print_health(console: Console, summary: BenchSummary) -> None:
    client = summary.client
    parts = [
        f"loop lag p99 {client.loop_lag_p99_ms:.1f} ms" if client.loop_lag_p99_ms is not None else "",
        f"late sends p99 {client.late_send_p99_ms:.1f} ms" if client.late_send_p99_ms is not None else "",
        f"CPU {client.cpu_share:.0%} of a core" if client.cpu_share is not None else "",
        f"run-queue wait {client.run_queue_wait_share:.0%}" if client.run_queue_wait_share is not None else "",
        f"{client.connections_opened} connections opened",
    ]
    text = ", ".join(part for part in parts if part)
    if client.limited:
        console.print(f"[bold red]Client-limited: these numbers are not the server's.[/] {client.why} ({text})")
    else:
        console.print(f"Client healthy: {text}", soft_wrap=True)
