"""What `tailrace bench` shows: the run while it goes on (stderr), and its summary (stdout)."""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tailrace.cli.bench_gate import objective_words
from tailrace.cli.bench_print_work import work_lines
from tailrace.cli.metric_rows import adjusted_lines, metric_name, metric_rows, number
from tailrace.model.measurement import BenchSummary, MetricSummary
from tailrace.model.record import RequestRecord
from tailrace.probe.progress import Progress
from tailrace.probe.spec import BenchSpec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from tailrace.store.run_file import Run

_PLAIN_EVERY_S = 5.0
_SILENT_S = 2.0
"""Runs that are over by then show no progress."""

_WIDTH = 100
"""Where nobody says how wide the paper is."""
_WAITS = ("ttft_ms", "e2e_ms")
_CLASSES = 6


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
    """Print the whole result for a person: the headline first, what to do next last."""
    from rich.console import Console

    from tailrace.analyze.conditions import conditions_line
    from tailrace.store.run_file import read_run

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    run = read_run(path)
    if interrupted:
        console.print("[bold yellow]Interrupted: this is what had been measured.[/]")
    if summary.client.limited:
        _print_health(console, summary)
    _line(console, f"{run.header.target}  model {run.header.model}  {spec.workload.arrivals}  seed {spec.seed}")
    for line in _headline(summary):
        _line(console, line, style="bold")
    for line in _counts(summary, spec):
        _line(console, line)
    if summary.window:
        _line(console, f"Steady part only: {summary.window}.")
    _print_tables(console, summary)
    console.print()
    for line in _failures(summary, run):
        _line(console, line)
    if not summary.client.limited:
        _print_health(console, summary)
    _line(console, f"Conditions: {conditions_line(run.header.conditions)}")
    for line in (*work_lines(summary), *_notes(run)):
        _line(console, line)
    console.print(f"Run file: {path}", soft_wrap=True, markup=False)
    for line in _next(summary, path):
        console.print(line, soft_wrap=True, markup=False)


def _print_tables(console: Console, summary: BenchSummary) -> None:
    if summary.from_schedule:
        _table(console, "From the intended time: what a user waits (ms)", summary.from_schedule, adjusted=_WAITS)
    _table(console, "From the send (ms)", summary.metrics, adjusted=() if summary.from_schedule else _WAITS)
    _print_classes(console, summary)


def _failures(summary: BenchSummary, run: Run) -> list[str]:
    if not summary.errors:
        return []
    counted = ", ".join(f"{reason} {n}" for reason, n in sorted(summary.errors.items()))
    return [f"Not completed: {counted}", *(f"  {text}" for text in _examples(run.records))]


def _notes(run: Run) -> list[str]:
    return [f"Note: {note}" for note in (*run.header.notes, *(run.trailer.notes if run.trailer else ()))]


def _line(console: Console, text: str, style: str | None = None) -> None:
    """A line of prose, folded between words at the width: nothing in it is markup."""
    for row in textwrap.wrap(text, console.width, subsequent_indent="  ", break_on_hyphens=False) or [""]:
        console.print(row, markup=False, soft_wrap=True, style=style)


def _headline(summary: BenchSummary) -> list[str]:
    """One line: the two latencies that a reader looks for, with the p99's interval."""
    origin = summary.from_schedule or summary.metrics
    parts = []
    for key in ("ttft_ms", "e2e_ms"):
        metric = origin.get(key)
        if metric is None or not metric.n:
            continue
        p = next((name for name in ("p99", "p95", "p90", "p50") if getattr(metric, name) is not None), None)
        text = metric_name(key)
        if metric.p50 is not None:
            text += f" p50 {number(metric.p50)}"
        if p is None:
            text += f" longest {number(metric.max)} (n = {metric.n}: too few for a percentile)"
        elif p != "p50":
            low, high = metric.ci.get(p, [None, None])
            ends = " to ".join("?" if end is None else number(end) for end in (low, high))
            text += f", {p} {number(getattr(metric, p))} (95 %: {ends})"
        parts.append(f"{text} ms")
    return [";  ".join(parts)] if parts else []


def _counts(summary: BenchSummary, spec: BenchSpec) -> list[str]:
    left = f", {summary.left:,} left on purpose" if summary.left else ""
    share = f" ({summary.failed / summary.n:.1%})" if summary.n and summary.failed else ""
    user = summary.user_tokens_per_s
    reader = f", {user.p50:.1f} to the reader of one (p50)" if user is not None and user.p50 is not None else ""
    done = (
        f"{summary.n:,} requests in {summary.duration_s or 0.0:.1f} s: {summary.completed:,} completed, "
        f"{summary.failed:,} failed{share}{left}; {summary.requests_per_s:.2f} requests/s, "
        f"{summary.tokens_per_s:.1f} tokens/s in all{reader}"
    )
    lines = [done]
    reached = summary.attainment.get("all")
    if reached is not None and reached.share is not None and reached.ci is not None:
        low, high = reached.ci
        lines.append(
            f"goodput {summary.goodput_per_s:.2f}/s: {reached.share:.1%} met {_objectives(spec)} "
            f"(95 %: {low:.1%} to {high:.1%})"
        )
    lines += [f"  {objective_words(name, one)}" for name, one in summary.objectives.items() if one.n]
    return lines


def _next(summary: BenchSummary, path: Path) -> list[str]:
    if summary.client.limited:
        return [
            "Next: lower the load, give the client more cores or processes, and run again; see the health line above"
        ]
    name = str(path)
    quoted = shlex.quote(name)
    lines = [f"Next: tailrace report {quoted} --open    (a page with every figure)"]
    if summary.failed or summary.from_schedule:
        lines.append(f"      tailrace diagnose {quoted}         (why the tail is slow)")
    lines.append(f"      tailrace compare {quoted} AFTER.run    (did a change help?)")
    return lines


def _objectives(spec: BenchSpec) -> str:
    return ", ".join(
        f"{metric} p{p * 100:g} ≤ {bound / 1e6:g} ms"
        for metric, bounds in spec.objectives.bounds.items()
        for p, bound in bounds.items()
    )


def _table(console: Console, title: str, metrics: dict[str, MetricSummary], adjusted: Sequence[str] = ()) -> None:
    console.print()
    console.print(title, style="bold", markup=False)
    shown = {key: one for key, one in metrics.items() if key.endswith("_ms")}
    for row in (*metric_rows(shown, console.width), *adjusted_lines(metrics, console.width, adjusted)):
        console.print(row, markup=False, soft_wrap=True)


def _print_classes(console: Console, summary: BenchSummary) -> None:
    """The waits of each class, and how many of it met its objectives."""
    if not summary.classes:
        return
    origin = summary.classes_from_schedule or summary.classes
    shown = sorted(origin, key=lambda name: -summary.mix.get(name, 0))[:_CLASSES]
    rows: dict[str, MetricSummary] = {}
    for name in shown:
        for key in ("ttft_ms", "tpot_ms", "e2e_ms"):
            metric = origin[name].get(key) or summary.classes[name].get(key)
            if metric is not None and metric.n:
                rows[f"{name} {metric_name(key).partition(' (')[0]}"] = metric
    console.print("\nBy class (ms)", style="bold")
    for row in metric_rows(rows, console.width):
        console.print(row, markup=False, soft_wrap=True)
    parts = []
    for name in shown:
        reached = summary.attainment.get(name)
        if reached is not None and reached.share is not None:
            parts.append(f"{name} {reached.share:.1%} of {reached.n:,} ({reached.goodput_per_s:.2f}/s)")
    if parts:
        _line(console, "  met their objectives: " + ", ".join(parts))
    if len(origin) > len(shown):
        _line(console, f"  {len(origin) - len(shown)} smaller classes are in --json and the report")


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
        _line(console, f"Client-limited: these numbers are not the server's. {client.why} ({text})", style="bold red")
    else:
        _line(console, f"Client healthy: {text}")
