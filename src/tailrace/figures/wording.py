"""How figures write numbers and foreign text.

Plotly reads a small HTML in every text (`<b>`, `<a href>`): what comes from outside (model and lane names, error
texts) must pass through `plain` before it stands in a figure.
"""

from __future__ import annotations

import math
from typing import Final

METRIC_NAMES: Final = {
    "e2e": "end-to-end time",
    "ttft": "time to first token",
    "tpot": "time per output token",
}


def plain(text: str, limit: int = 60) -> str:
    """`text` so that Plotly shows it letter by letter: markup neutralised, control characters out, shortened."""
    kept = "".join(char if char.isprintable() else " " for char in text)
    if len(kept) > limit:
        kept = kept[: limit - 1] + "…"
    return kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_SPACE: Final = "\u00a0"
"""No line break between a number and its unit."""


def duration(ms: float | None) -> str:
    """Milliseconds as a person reads them, three digits at most: `0.42 ms`, `81 ms`, `1.24 s`, `2 min 5 s`."""
    if ms is None or math.isnan(ms):
        return "–"
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms >= 120_000:
        minutes, seconds = divmod(round(ms / 1000), 60)
        return f"{minutes}{_SPACE}min{_SPACE}{seconds}{_SPACE}s"
    if ms >= 9_995:
        return f"{ms / 1000:.1f}{_SPACE}s"
    if ms >= 999.5:
        return f"{ms / 1000:.2f}{_SPACE}s"
    if ms >= 9.95:
        return f"{ms:.0f}{_SPACE}ms"
    if ms >= 0.995:
        return f"{ms:.1f}{_SPACE}ms"
    return f"{ms:.2f}{_SPACE}ms" if ms else f"0{_SPACE}ms"


def count(number: int) -> str:
    """An integer with thousands separated."""
    return f"{number:,}"


def percent(share: float) -> str:
    """A share (0..1) in percent; small ones keep a digit so that they are not read as zero."""
    value = share * 100
    if value and value < 0.1:
        return f"<{_SPACE}0.1{_SPACE}%"
    return f"{value:.1f}{_SPACE}%" if value < 9.95 else f"{value:.0f}{_SPACE}%"
