"""How figures write numbers and foreign text.

Plotly reads a small HTML in every text (`<b>`, `<a href>`): what comes from outside (model and lane names, error
texts) must pass through `plain` before it stands in a figure.
"""

from __future__ import annotations

import math


def plain(text: str, limit: int = 60) -> str:
    """`text` so that Plotly shows it letter by letter: markup neutralised, control characters out, shortened."""
    kept = "".join(char if char.isprintable() else " " for char in text)
    if len(kept) > limit:
        kept = kept[: limit - 1] + "…"
    return kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def duration(ms: float | None) -> str:
    """Milliseconds as a person reads them, three digits at most: `0.42 ms`, `81 ms`, `1.24 s`, `2 min 5 s`."""
    if ms is None or math.isnan(ms):
        return "–"
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms >= 120_000:
        minutes, seconds = divmod(round(ms / 1000), 60)
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    if ms >= 9_995:
        return f"{ms / 1000:.1f} s"
    if ms >= 999.5:
        return f"{ms / 1000:.2f} s"
    if ms >= 9.95:
        return f"{ms:.0f} ms"
    if ms >= 0.995:
        return f"{ms:.1f} ms"
    return f"{ms:.2f} ms" if ms else "0 ms"


def count(number: int) -> str:
    """An integer with thousands separated."""
    return f"{number:,}"


def percent(share: float) -> str:
    """A share (0..1) in percent; small ones keep a digit so that they are not read as zero."""
    value = share * 100
    if value and value < 0.1:
        return "< 0.1 %"
    return f"{value:.1f} %" if value < 10 else f"{value:.0f} %"


def tokens(number: float) -> str:
    """A token count as an axis writes it: `512`, `2k`, `131k`."""
    if number >= 1000:
        thousands = number / 1000 if number % 1000 == 0 or number % 1024 else number / 1024
        return f"{thousands:.0f}k" if thousands == int(thousands) else f"{thousands:.1f}k"
    return f"{number:.0f}"
