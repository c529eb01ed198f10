"""The words of `tailrace demo`: each step of the story as it happens."""

from __future__ import annotations

import sys
import textwrap
import time
from typing import TYPE_CHECKING

from rich.console import Console

from tailrace.cli.bench_print import LiveProgress
from tailrace.model.finding import Diagnosis, Finding
from tailrace.model.measurement import BenchSummary, Comparison, MetricSummary, Verdict

if TYPE_CHECKING:
    from tailrace.analyze.decompose import TailStages
    from tailrace.app.demo import Step
    from tailrace.probe.progress import Progress

_WIDTH = 100
_COLOURS = {
    Verdict.IMPROVED: "green",
    Verdict.REGRESSED: "red",
    Verdict.NO_DIFFERENCE: "yellow",
    Verdict.INCONCLUSIVE: "yellow",
}


class Storyteller:
    """Prints to stdout, or to stderr where stdout belongs to the JSON result."""

    def __init__(self, *, to_stderr: bool) -> None:
        stream = sys.stderr if to_stderr else sys.stdout
        self._console = Console(file=stream, highlight=False, width=None if stream.isatty() else _WIDTH)
        self._live: LiveProgress | None = None
        self._page = ""
        self._began = time.monotonic()

    def tell(self, step: Step) -> None:
        """Print one step."""
        getattr(self, f"_{step.name}")(step)

    def progress(self, progress: Progress) -> None:
        """Show how the arm under way is going (stderr)."""
        if self._live is not None:
            self._live.show(progress)

    def page_stays_open(self) -> None:
        """The last words of the interactive demo."""
        self._console.print(f"\nThe gateway's page stays open: [bold]{self._page}[/]   (Ctrl-C ends the demo)")

    # -- the steps

    def _starting(self, step: Step) -> None:
        self._console.print(f"Starting {step.text} and a Tailrace gateway in front of it.")

    def _ready(self, step: Step) -> None:
        self._page = step.page
        self._console.print(f"Watch it live: [bold]{step.page}[/]")

    def _loading(self, step: Step) -> None:
        again = "the same arrivals again" if step.arm == "candidate" else "Poisson arrivals"
        self._heading("After the change" if step.arm == "candidate" else "Before")
        self._console.print(f"Load: {step.text}, {again}, {step.seconds:.0f} s.")
        self._live = LiveProgress("the gateway")

    def _measured(self, step: Step) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None
        assert step.summary is not None
        self._print_arm(step.summary, step.by_class)
        if step.stages is not None:
            self._print_stages(step.stages)

    def _diagnosed(self, step: Step) -> None:
        assert step.diagnosis is not None
        self._heading("Why")
        self._print_diagnosis(step.diagnosis)
        if step.worst is not None and step.diagnosis.findings:
            self._bullet(f"the worst of them, {step.worst.request_id}: {step.worst.sentences[0]}")

    def _changed(self, step: Step) -> None:
        self._heading("The change")
        for change in step.changes:
            self._bullet(change)

    def _compared(self, step: Step) -> None:
        assert step.comparison is not None
        self._heading("Did it help?")
        self._print_comparison(step.comparison)

    # -- how they look

    def _heading(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/]  [dim]{time.monotonic() - self._began:.0f} s[/]")

    def _bullet(self, text: str, mark: str = "-") -> None:
        width = min(self._console.width, 120)
        self._console.print(
            textwrap.fill(text, width, initial_indent=f"  {mark} ", subsequent_indent="    "), markup=False
        )

    def _print_arm(self, summary: BenchSummary, by_class: dict[str, BenchSummary]) -> None:
        console = self._console
        failed = sum(summary.errors.values())
        console.print(
            f"{summary.n} requests, {failed} not completed, {summary.tokens_per_s:.0f} tokens/s, "
            f"goodput {summary.goodput_per_s:.1f} of {summary.requests_per_s:.1f} requests/s"
        )
        console.print(f"  {'ms':18} {'n':>7} {'mean':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8}")
        self._row("TTFT", summary.metrics["ttft_ms"])
        for name, one in by_class.items() if len(by_class) > 1 else ():
            self._row(f"  of {name}", one.metrics["ttft_ms"])
        self._row("chunk gap", summary.metrics["chunk_gap_ms"])
        self._row("E2E", summary.metrics["e2e_ms"])
        typical = max(by_class.values(), key=lambda one: one.n, default=summary)
        ttft = typical.metrics["ttft_ms"]
        if ttft.p50 and ttft.p99 is not None and ttft.p99 > 5 * ttft.p50:
            console.print(
                f"  The typical request waits {ttft.p50:.0f} ms for its first token; one in a hundred waits "
                f"[bold red]{ttft.p99:.0f} ms[/] or more."
            )
        if summary.client.limited:
            console.print(f"  [bold red]The load generator was the limit[/]: {summary.client.why}", soft_wrap=True)

    def _row(self, label: str, metric: MetricSummary) -> None:
        values = (metric.mean, metric.p50, metric.p90, metric.p99, metric.max)
        cells = " ".join(f"{'-' if value is None else f'{value:.0f}':>8}" for value in values)
        self._console.print(f"  {label:18} {metric.n:>7} {cells}", markup=False)

    def _print_stages(self, stages: TailStages) -> None:
        console = self._console
        console.print(f"Where the time of short prompts went (gateway's records, {stages.total}, n = {stages.n}):")
        names = [name for name in stages.tail_ms if max(stages.tail_ms[name], stages.typical_ms.get(name, 0.0)) >= 0.5]
        whole = max(1.0, sum(stages.tail_ms.values()))
        console.print(f"  {'stage':14} {'typical':>9} {'slowest 1 %':>12}")
        for name in names:
            bar = "█" * round(36 * stages.tail_ms[name] / whole)
            typical, tail = stages.typical_ms.get(name, 0.0), stages.tail_ms[name]
            console.print(f"  {name:14} {typical:>6.0f} ms {tail:>9.0f} ms  {bar}")
        self._bullet(stages.sentence, mark=">")

    def _print_diagnosis(self, diagnosis: Diagnosis) -> None:
        console = self._console
        if not diagnosis.findings:
            console.print(diagnosis.summary, soft_wrap=True, markup=False)
            return
        first, rest = diagnosis.findings[0], diagnosis.findings[1:]
        self._print_finding(first)
        if rest:
            also = ", ".join(f"{finding.code} ({finding.level})" for finding in rest)
            self._bullet(f"also: {also}", mark=" ")

    def _print_finding(self, finding: Finding) -> None:
        self._console.print(f"[bold]{finding.code}[/]  layer {finding.layer}, level {finding.level}, n = {finding.n}")
        self._bullet(finding.statement or "; ".join(finding.missing), mark=" ")
        for evidence in finding.evidence[:5]:
            self._bullet(f"{evidence.text}  [{evidence.source}]")
        if finding.relation:
            self._bullet(f"arithmetic: {finding.relation}")
        for label in ("advice", "price", "disproof"):
            text = getattr(finding, label)
            if text:
                self._bullet(f"{label}: {text}")

    def _print_comparison(self, comparison: Comparison) -> None:
        console = self._console
        colour = _COLOURS[comparison.verdict]
        console.print(f"[bold {colour}]{comparison.verdict.upper()}[/]")
        self._bullet(comparison.summary, mark=" ")
        for name in comparison.headline:
            delta = comparison.metrics.get(name)
            if delta is None or delta.a is None or delta.b is None:
                continue
            low, high = delta.ci_pct
            interval = "" if low is None or high is None else f" [{low:+.0f} %, {high:+.0f} %]"
            change = "" if delta.delta_pct is None else f"  {delta.delta_pct:+.0f} %{interval}"
            console.print(
                f"  {name:34} {delta.a:>8.0f} → {delta.b:>6.0f} ms{change}  n {delta.n_a}/{delta.n_b}", markup=False
            )
        for text in comparison.refused:
            self._bullet(text, mark="!")
        if comparison.trade_offs:
            console.print("The price:")
            for text in comparison.trade_offs:
                self._bullet(text)
