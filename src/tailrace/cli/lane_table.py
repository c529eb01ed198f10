"""The lanes of a simulated gateway as a table, and what refused clients were told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from tailrace.app.simulate import Simulation


def print_lanes(console: Console, result: Simulation) -> None:
    """Print a row a lane; times in ms. `good/s` is a second of the time in which requests came."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("lane", "tries", "done", "good/s", "TTFT p50", "p99", "TPOT p99", "queue"):
        table.add_column(column, justify="left" if column == "lane" else "right", no_wrap=True)
    for lane in result.lanes.values():
        table.add_row(
            lane.lane,
            f"{lane.n:,}",
            f"{lane.completed:,}",
            f"{lane.goodput_per_s:.2f}",
            _ms(lane.ttft_p50_ms),
            _ms(lane.ttft_p99_ms),
            _ms(lane.tpot_p99_ms),
            _ms(lane.longest_queue_ms),
        )
    console.print(table)
    for lane in result.lanes.values():
        if lane.reasons:
            reasons = ", ".join(f"{name} {count:,}" for name, count in lane.reasons.items())
            console.print(f"{lane.lane}, did not complete: {reasons}", markup=False)
    console.print(f"{result.served_calls:,} of {result.calls:,} calls were served")
    refusals = result.refusals
    if refusals is None or not refusals.n:
        return
    line = f"{refusals.n:,} refusals, {refusals.with_retry_after:,} of them with Retry-After"
    if refusals.median_error is not None:
        line += (
            f"; the predicted wait was off by {100 * refusals.median_error:.0f} % in the median of the "
            f"{refusals.judged:,} that were longer than 1 s"
        )
    console.print(line)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
