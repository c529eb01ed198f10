"""What `--as TOOL` shows: the run's numbers under another tool's definitions, ours beside them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tailrace.cli.metric_rows import metric_name, number

if TYPE_CHECKING:
    from tailrace.analyze.as_tool import TheirMetric, ToolView

_WIDTH: Final = 120
_COLUMNS: Final = ("mean", "p50", "p90", "p95", "p99", "max")


def print_view(view: ToolView) -> None:
    """Print it for a person."""
    from rich.table import Table

    from tailrace.cli.console import Console

    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH)
    console.width = max(console.width, _WIDTH)
    console.print(f"As {view.version} would have it", style="bold", markup=False)
    rates = [f"{view.successes} of {view.requests} requests successful"]
    if view.requests_per_s is not None:
        rates.append(f"{view.requests_per_s:.2f} requests/s")
    if view.output_tokens_per_s is not None:
        rates.append(f"{view.output_tokens_per_s:.1f} output tokens/s")
    if view.peak_frames_per_s is not None:
        rates.append(f"peak {view.peak_frames_per_s:.0f} output tokens/s (it counts frames)")
    console.print(", ".join(rates), markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("metric (ms)", no_wrap=True)
    for name in ("n", *_COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    for title in ("ours", "p50", "p99"):
        table.add_column(title, justify="left" if title == "ours" else "right", no_wrap=True, style="dim")
    for one in view.metrics:
        table.add_row(*_row(one))
    console.print(table)
    for one in view.metrics:
        console.print(f"  {one.name}: {one.differs or 'as ours'}", markup=False)
    for note in view.notes:
        console.print(f"  - {note}", markup=False)


def _row(one: TheirMetric) -> list[str]:
    values = [getattr(one, name) for name in _COLUMNS]
    ours = one.ours
    return [
        one.name,
        f"{one.n:,}",
        *(number(value) for value in values),
        metric_name(one.ours_name) if one.ours_name else "",
        "" if ours is None else number(ours.p50),
        "" if ours is None else number(ours.p99),
    ]
