"""Quantiles of which a table does not say of what: `p50 ms | p99 ms` is a latency, of whole requests mostly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Quoted
from tailrace.diagnose.observed.vocabulary import QUANTITIES, in_unit
from tailrace.diagnose.readers.heading import heading

__all__ = ["with_latencies"]

_BARE: Final = re.compile(
    r"(?:p\d{2}\d?(?:\.\d)?|mean|avg|average|median|max|min|worst|(?:mean|avg|p\d\d) latency)"
    r"[ _]*(?:[(\[]?(?:ms|s|msec|sec|seconds|us)[)\]]?)?",
    re.IGNORECASE,
)
_UNIT_BEHIND: Final = re.compile(r"[ _(\[]+(?:ms|s|msec|sec|seconds)[)\]]?$", re.IGNORECASE)
_DURATIONS: Final = frozenset({"ttft", "e2e", "itl", "tpot", "queue", "prefill", "decode"})


def with_latencies(arms: Sequence[Arm], caption: str, named: str = "") -> list[Arm]:
    """The arms, in which such quantiles have the quantity of the caption (`TTFT by version`), else of whole requests;
    where one arm has them under two other words (`before (ms)`, `after (ms)`), as an arm for each of these words.
    """
    told = next((q for text in (caption, named) if (q := heading(text).quantity) in _DURATIONS), "e2e")
    arms = [part for arm in arms for part in _sides(arm, told)]
    return [_named(arm, told) for arm in arms]


def _named(arm: Arm, quantity: str) -> Arm:
    bare = [item for item in arm.values.values() if _is_bare(item) and _BARE.fullmatch(item.label)]
    if not bare or any(item.quantity == quantity and item.stat for item in arm.values.values()):
        return arm
    values: dict[str, Quoted] = {}
    for key, item in arm.values.items():
        new = _of(item, quantity) if item in bare else item
        values[new.key if item in bare else key] = new
    return msgspec.structs.replace(arm, values=values)


def _of(item: Quoted, quantity: str) -> Quoted:
    value = in_unit(item.value, item.unit, "ms")
    return msgspec.structs.replace(item, quantity=quantity, value=item.value if value is None else value, unit="ms")


def _is_bare(item: Quoted) -> bool:
    """A time with a statistic, of nothing that the vocabulary has."""
    return item.quantity not in QUANTITIES and item.unit in {"ms", "s"} and bool(item.stat) and not item.relative


def _sides(arm: Arm, quantity: str) -> list[Arm]:
    """`before_ms.p50`, `after_ms.p50` of one arm as two arms; the arm itself where its columns are no such pair."""
    groups: dict[str, dict[str, Quoted]] = {}
    for item in arm.values.values():
        if _is_bare(item) and not _BARE.fullmatch(item.label):
            groups.setdefault(item.label, {})[item.stat] = item
    if (
        len(groups) < 2
        or len({frozenset(stats) for stats in groups.values()}) > 1
        or len(next(iter(groups.values()))) < 2
    ):
        return [arm]
    taken = {id(item) for stats in groups.values() for item in stats.values()}
    common = {key: item for key, item in arm.values.items() if id(item) not in taken}
    out = []
    for label, stats in groups.items():
        name = _UNIT_BEHIND.sub("", label).replace("_", " ") or label
        new = {f"{quantity}.{stat}": _of(item, quantity) for stat, item in stats.items()}
        out.append(msgspec.structs.replace(arm, name=name, label=name, values={**common, **new}))
    return out
