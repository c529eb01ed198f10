"""Numbers of arms in words and as evidence, and pairs of arms that may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tailrace.diagnose.observed import Arm, Observed, Quoted, Role
from tailrace.model.finding import Evidence

__all__ = ["LOADS", "ArmPair", "concurrency_of", "name_of", "pairs_of", "seen", "shown", "unlike"]

LOADS: Final = ("concurrency", "offered_rps", "prompt_tokens", "output_tokens", "sessions")
"""What an arm was given to do."""
_ALIKE: Final = 0.05
_NAMES: Final = {
    "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "output_tok_s": "output throughput",
    "peak_output_tok_s": "peak output throughput", "req_s": "request throughput", "failed_share": "failed share",
    "n": "requests", "accept_length": "accept length", "chunk_gap": "gap",
}  # fmt: skip


class ArmPair(NamedTuple):
    """The arm from before and the one from after, under the same conditions as far as they are written down."""

    before: Arm
    after: Arm


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


def concurrency_of(arm: Arm, observed: Observed) -> float | None:
    """At how many requests at once the arm was measured: its own, else the one that a command or a form states."""
    own = arm.keys.get("concurrency")
    if isinstance(own, (int, float)):
        return float(own)
    found = arm.get("concurrency")
    return found if found is not None else observed.number("max_concurrency", "concurrency")


def unlike(first: Arm, second: Arm) -> list[str]:
    """The loads that both arms name and that differ: `output tokens 128 and 512`."""
    out = []
    for name in LOADS:
        one, other = _load(first, name), _load(second, name)
        if one is not None and other is not None and abs(one - other) > _ALIKE * max(abs(one), abs(other)):
            out.append(f"{name.replace('_', ' ')} {one:g} and {other:g}")
    return out


def _load(arm: Arm, name: str) -> float | None:
    value = arm.keys.get(name)
    return float(value) if isinstance(value, (int, float)) else arm.get(name)


def pairs_of(arms: Sequence[Arm]) -> Iterator[ArmPair]:
    """Each arm from before with the one from after that has the same conditions. Without roles there is no pair."""
    for before in arms:
        if before.role is Role.BEFORE:
            for after in _closest(before, arms):
                yield ArmPair(before, after)


def _closest(before: Arm, arms: Iterable[Arm]) -> list[Arm]:
    others = [arm for arm in arms if arm.role is Role.AFTER and arm.place.source == before.place.source] or [
        arm for arm in arms if arm.role is Role.AFTER
    ]
    alike = [arm for arm in others if not unlike(before, arm)]
    return alike or others[:1]
