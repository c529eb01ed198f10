"""Numbers in words: the same in statements and in their evidence."""

from __future__ import annotations

import math

from tailrace.diagnose.observed import Arm, Quoted, Setting
from tailrace.model.finding import Evidence

__all__ = ["compared", "evidence_of", "evidence_of_setting", "number", "quantity"]

_WORDS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "chunk_gap": "gap",
    "output_tok_s": "output",
    "decode_tok_s": "decode",
    "prompt_tok_s": "prefill",
    "req_s": "requests",
    "offered_rps": "offered",
    "gpu_util": "GPU utilisation",
    "kv_usage": "KV usage",
    "prefix_hit": "prefix hit rate",
    "sm_clock": "SM clock",
    "n": "requests",
    "rtfx": "RTFx",
    "rtf": "RTF",
}


def number(value: float, unit: str = "") -> str:
    """A number with its unit as a person writes it: `47.9 ms`, `25.2 s`, `81.7 %`, `1065`. No thousands separators: a
    number in a statement is to be found in its source.
    """
    if unit == "ms" and abs(value) >= 10_000:
        return f"{_plain(value / 1000)} s"
    if unit == "share":
        return f"{_plain(100 * value)} %"
    words = {"count": "", "1/s": "/s"}.get(unit, unit)
    return _plain(value) if not words else f"{_plain(value)}{'' if words == '/s' else ' '}{words}"


def _plain(value: float) -> str:
    size = abs(value)
    if size >= 1e15 or math.isnan(value):
        return f"{value:.3g}"
    if value == int(value):
        return f"{value:.0f}"
    if size >= 1000:
        return f"{value:.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 10:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:.4g}"


def quantity(quoted: Quoted) -> str:
    """`TTFT p99`, `longest all-stream stall`: the heading where it says more than the vocabulary's word."""
    name = _WORDS.get(quoted.quantity, quoted.quantity.replace("_", " "))
    words = f"{quoted.qualifier} {name}" if quoted.qualifier else name
    return f"{words} {quoted.stat}".strip() if quoted.stat else words


def evidence_of(arm: Arm, quoted: Quoted) -> Evidence:
    """A number of an arm, with its heading and its place."""
    return Evidence(
        text=f"{arm.name}: {quantity(quoted)} {number(quoted.value, quoted.unit)}",
        source=str(quoted.place if quoted.place.source else arm.place) or "form",
        name=quoted.key,
        value=quoted.value,
        unit=quoted.unit,
    )


def evidence_of_setting(setting: Setting) -> Evidence:
    """What was stated, with its place."""
    value = setting.number
    words = f"{setting.name.replace('_', ' ')}: {_value(setting.value)}"
    return Evidence(
        text=f"{words} {setting.unit}".strip(),
        source=str(setting.place) or "form",
        name=setting.name,
        value=value,
        unit=setting.unit,
    )


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _plain(float(value))
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return str(value)


def compared(name: str, low: Quoted, high: Quoted) -> str:
    """`TTFT p99 25.5 -> 28.9 s (+13 %)`."""
    change = f" ({high.value / low.value - 1:+.0%})" if low.value else ""
    return f"{name} {number(low.value, low.unit)} -> {number(high.value, high.unit)}{change}"
