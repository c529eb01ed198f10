"""What a gateway adds to the first token, and to a whole answer, at one connection.

One warm keep-alive connection, so that neither connecting nor queueing is in the figure, and many short streams on it,
so that the 40 ms of Nagle's algorithm against delayed acknowledgements show where a gateway does not switch it off.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from harness import Harness, control
from windows import Row, Spread, settle

TOKENS, GAP_MS = 20, 2


def measure(
    harness: Harness, targets: list[dict[str, Any]], *, rounds: int, seconds: float, say: Callable[[str], None]
) -> list[Row]:
    """One row a round, gateway and mode, with the p50 and p99 in microseconds."""
    rows: list[Row] = []
    order = random.Random()
    for number in range(rounds):
        for mode in ("stream", "single"):
            for target in order.sample(targets, len(targets)):
                control(interval_ms=GAP_MS)
                shape = ["--mode", mode, "--conc", "1", "--tokens", str(TOKENS), "--warmup", "0.5"]
                row = harness.load(target, *shape, "--seconds", str(seconds))
                rows.append(row | {"mode": mode, "round": number})
                settle(harness, target)
    say(f"first token at one connection: {rounds} rounds of {seconds:g} s")
    return rows


def added(rows: list[Row], name: str, mode: str) -> Spread | None:
    """Median TTFT through the gateway less that of the same round without it, in milliseconds."""
    cells = {(row["round"], row["name"]): row for row in rows if row.get("mode") == mode and "fatal" not in row}
    out = []
    for number in sorted({number for number, _ in cells}):
        ours, floor = cells.get((number, name)), cells.get((number, "direct"))
        if ours and floor and ours["ttft_us"]["p50"] and floor["ttft_us"]["p50"]:
            out.append((ours["ttft_us"]["p50"] - floor["ttft_us"]["p50"]) / 1e3)
    return Spread.of(out)
