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


ABSENT: Final = "–"  # noqa: RUF001  (a dash is how a table says "not there")
_SCALE: Final[tuple[tuple[float, float, int, str], ...]] = (
    (9_995, 1000, 1, "s"),
    (999.5, 1000, 2, "s"),
    (9.95, 1, 0, "ms"),
    (0.995, 1, 1, "ms"),
    (0, 1, 2, "ms"),
)
"""From this many ms: divisor, digits after the point, unit. Three digits at most."""


def duration(ms: float | None) -> str:
    """Milliseconds as a person reads them: `0.42 ms`, `81 ms`, `1.24 s`, `2 min 5 s`."""
    if ms is None or math.isnan(ms):
        return ABSENT
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms >= 120_000:
        minutes, seconds = divmod(round(ms / 1000), 60)
        return f"{minutes}{_SPACE}min{_SPACE}{seconds}{_SPACE}s"
    _, divisor, digits, unit = next(row for row in _SCALE if ms >= row[0])
    return f"{ms / divisor:.{digits}f}{_SPACE}{unit}"


def count(number: int) -> str:
    """An integer with thousands separated."""
    return f"{number:,}"


def percent(share: float) -> str:
    """A share (0..1) in percent; small ones keep a digit so that they are not read as zero."""
    value = share * 100
    if value and value < 0.1:
        return f"<{_SPACE}0.1{_SPACE}%"
    return f"{value:.1f}{_SPACE}%" if value < 9.95 else f"{value:.0f}{_SPACE}%"
