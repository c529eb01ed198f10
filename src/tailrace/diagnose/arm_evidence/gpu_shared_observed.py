"""COMPUTE_GPU_SHARED from a form or a table: another process is said to be on the engine's device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, told
from tailrace.diagnose.arms.pairs import pairs, stated_same, unlike
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["gpu_shared_observed"]

SLOWER: Final = 0.1
_OTHER: Final = re.compile(
    r"(?:other|second|foreign|another|training|neighbou?r).*(?:process|job|pid|container|workload|model)|"
    r"gpu.*shared|shares? (?:the )?gpu|co.?located|with other\b|other (?:tenant|user|app)|"
    r"noisy neighbou?r|^neighbou?rs?$|\b(?:with|without|no|has) (?:an? )?neighbou?rs?\b|"
    r"\bneighbou?rs? (?:on|present|active|running|busy|process)",
    re.IGNORECASE,
)
"""Neighbours alone may be those of a search for the nearest ones."""
_NOT_COUNT: Final = re.compile(r"mem|gib|mib|util|\bms\b|tpot|itl", re.IGNORECASE)
_COUNT: Final = re.compile(
    r"^(?:gpu|compute) (?:processes|apps|pids)(?: count)?$|processes on (?:the )?gpu", re.IGNORECASE
)
_WORK: Final = re.compile(r"batch|concurren|running|mix|prompt|length|kv", re.IGNORECASE)


def gpu_shared_observed(cause: Cause, observed: Observed) -> Finding | None:
    """A stranger that is stated, and tokens that are slower with it."""
    stranger = _stranger(observed)
    if stranger is None:
        return _by_rows(cause, observed)
    slower = next((found for pair in pairs(observed.arms) if (found := _slower(pair.first, pair.second))), None)
    same = stated_same(observed)
    missing = []
    if slower is None:
        missing.append("TPOT with and without the other process, at equal batch")
    elif not any(_WORK.search(item) for item in same):
        missing.append("that batch and lengths were equal with and without it")
    others = [item for item in told(observed) if _OTHER.search(item.name.replace("_", " ")) and item is not stranger]
    evidence = [evidence_of_setting(item) for item in (stranger, *others)]
    relation = "another process on the device"
    words = ""
    if slower is not None:
        good, fast, bad, slow = slower
        evidence += [evidence_of(good, fast), evidence_of(bad, slow)]
        more = f"({slow.value / fast.value - 1:+.0%})"
        words = f": {quantity(slow)} {number(fast.value, fast.unit)} -> {number(slow.value, slow.unit)} {more}"
        relation = f"{number(slow.value)} / {number(fast.value)} = {slow.value / fast.value:.3g} {more}"
    if same:
        evidence.append(Evidence(f"equal: {', '.join(same)}", "form", "same"))
    named = next((str(item.value) for item in (stranger, *others) if isinstance(item.value, str)), "")
    return cause.finding(
        action=Action.FIX,
        statement="Another process computes on the engine's GPU" + (f" ({named})" if named else "") + words + ".",
        evidence=evidence,
        explains_ms=None if slower is None else slower[3].value - slower[1].value,
        relation=relation,
        n=2 if slower is not None else 1,
        advice="Give the engine a device of its own, or move the other process; if both must stay, isolate them (MIG "
        "partitions; MPS shares without protection).",
        price="A device more, or the other work runs elsewhere.",
        verify=again(),
        missing=missing,
        rivals=["DECODE_SLOWDOWN"] if missing else [],
        disproof_checked=[f"equal: {', '.join(same)}"] if same else [],
    )


def _by_rows(cause: Cause, observed: Observed) -> Finding | None:
    """Rows with and without another process: tokens are slower in all rows that have one, at equal load."""
    rows = [
        (arm, count, time)
        for arm in observed.arms
        if (count := _beside(arm)) is not None
        and (time := figure(arm, "tpot", "itl", stats=("p50", "mean", "", "p99"))) is not None
    ]
    busy = [(arm, time) for arm, count, time in rows if count]
    alone = [(arm, time) for arm, count, time in rows if not count]
    if not busy or not alone or len({time.key for *_, time in rows}) > 1:
        return None
    alike = [(one, two) for one in busy for two in alone if not unlike(one[0], two[0]) and two[1].value > 0]
    if not alike:
        return None
    (best, slow), (worst, fast) = min(alike, key=lambda rows: rows[0][1].value / rows[1][1].value)
    if slow.value < (1 + SLOWER) * fast.value:
        return None
    return cause.finding(
        action=Action.FIX,
        statement=f"Another process computes on the engine's GPU: with it {quantity(slow)} is "
        f"{number(slow.value, slow.unit)} ({best.name}), without it {number(fast.value, fast.unit)} ({worst.name}), "
        "and no two rows of like load are nearer to each other.",
        evidence=[*(evidence_of(arm, time) for arm, time in (*busy[:6], *alone[:6]))],
        explains_ms=slow.value - fast.value if slow.unit == "ms" else None,
        relation=f"{number(slow.value)} / {number(fast.value)} = {slow.value / fast.value:.3g}",
        n=len(rows),
        advice="Give the engine a device of its own, or move the other process; if both must stay, isolate them (MIG "
        "partitions; MPS shares without protection).",
        price="A device more, or the other work runs elsewhere.",
        verify=again(),
        missing=["that batch and lengths were equal in all rows"],
        disproof_checked=[
            f"every row with it is slower than every row of like load without ({len(busy)} and {len(alone)} rows)"
        ],
    )


def _beside(arm: Arm) -> bool | None:
    """Whether a row says that another process was there: a count, a name, yes or no; `None` where it says nothing."""
    for value in arm.values.values():
        words = [text.replace("_", " ") for text in (value.label, value.quantity)]
        if any(map(_OTHER.search, words)) and not any(map(_NOT_COUNT.search, words)):
            return value.value > 0
    for name, text in arm.keys.items():
        if _OTHER.search(name.replace("_", " ")) and isinstance(text, str):
            return not re.match(r"\W*(?:0|no|none|off|-|false|$)", text.strip().lower())
    return None


def _stranger(observed: Observed) -> Setting | None:
    for item in told(observed):
        name = item.name.replace("_", " ")
        if _COUNT.search(name) and item.number is not None and item.number >= 2:
            return item
    for item in told(observed):
        name = item.name.replace("_", " ")
        if _OTHER.search(name) and item.value and not re.search(r"mem|gib|mib|util", name, re.IGNORECASE):
            return item
    return None


def _slower(one: Arm, two: Arm) -> tuple[Arm, Quoted, Arm, Quoted] | None:
    for name in ("tpot", "itl"):
        for stat in ("p50", "mean", "", "p99"):
            first, second = figure(one, name, stats=(stat,)), figure(two, name, stats=(stat,))
            if first is None or second is None or min(first.value, second.value) <= 0:
                continue
            if max(first.value, second.value) < (1 + SLOWER) * min(first.value, second.value):
                return None
            return (one, first, two, second) if first.value < second.value else (two, second, one, first)
    return None
