"""Numbers of arms with the digits that their source has, in words and as evidence.

Checks of the numbers themselves speak of them so: whoever looks one up must find the same digits. Everybody else rounds
to what a person reads (`shown`).
"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.observed import Arm, Quoted
from tailrace.model.finding import Evidence

__all__ = ["called", "name_of", "seen", "shown"]

_NAMES: Final = {
    "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "output_tok_s": "output throughput",
    "peak_output_tok_s": "peak output throughput", "req_s": "request throughput", "failed_share": "failed share",
    "n": "requests", "accept_length": "accept length", "chunk_gap": "gap",
}  # fmt: skip


BEYOND_READING: Final = 1e15
"""From here on nobody reads the digits: `1e+300`."""


def shown(value: float, unit: str = "") -> str:
    """A number as a person writes it: `8.72 ms`, `25510 ms`, `95 %`."""
    if unit == "share":
        return f"{value * 100:.4g} %"
    if abs(value) >= BEYOND_READING:
        return f"{value:.3g} {unit}".strip() if unit != "count" else f"{value:.3g}"
    text = f"{value:.0f}" if abs(value) >= 1e4 or value == int(value) else f"{value:.4g}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if 100 <= abs(value) < 1e4 and value != int(value) else text
    return f"{text} {unit}".strip() if unit != "count" else text


def called(quantity: str) -> str:
    """A quantity in a sentence: `TTFT`, `queue`."""
    return quantity.upper() if len(quantity) < 5 else quantity


def name_of(quoted: Quoted) -> str:
    """`TTFT p99`, with the words of the heading that tell more."""
    name = _NAMES.get(quoted.quantity, quoted.quantity.replace("_", " "))
    return " ".join(filter(None, (quoted.qualifier, name, quoted.stat)))


def seen(arm: Arm, quoted: Quoted) -> Evidence:
    """A number of an arm as evidence, with its place."""
    change = "+" if quoted.relative and quoted.value > 0 else ""
    kind = " against the baseline" if quoted.relative else ""
    return Evidence(
        text=f"{arm.name}: {name_of(quoted)} {change}{shown(quoted.value, quoted.unit)}{kind}",
        source=str(quoted.place) or str(arm.place) or "facts",
        name=quoted.key,
        value=quoted.value,
        unit=quoted.unit,
    )
