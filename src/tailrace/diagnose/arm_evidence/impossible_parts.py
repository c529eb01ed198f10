"""Numbers that contradict each other: a part that is longer than its whole, a first token that took no time at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.as_written import shown
from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows
from tailrace.model.finding import Evidence

__all__ = [
    "Wrong",
    "no_time_at_all",
    "one_number_twice",
    "parts_of_arm",
    "parts_of_rows",
    "series_of_zeros",
    "timer_told",
]

Floats = NDArray[np.float64]
LEAST: Final = 3
"""Rows that say the same; fewer may be chance."""
LONGER: Final = 1.1
"""Part over whole: two clocks differ by less."""
MARGIN_MS: Final = 20.0
MOSTLY: Final = 0.8
"""Of the rows, those that must say it."""
_STATS: Final = ("mean", "p50", "p90", "p95", "p99", "")
_WHOLES: Final = {"ttft": ("queue", "prefill", "preprocess", "encode"), "e2e": ("queue", "prefill", "decode")}
"""What is inside of what: of the same requests each quantile of a part is at most that of the whole."""
_WHOLE: Final = re.compile(
    r"user[_ ]?bot[_ ]?latency|voice[_ ]?to[_ ]?voice|\bv2v\b|mouth[_ ]?to[_ ]?ear|end[_ ]?to[_ ]?end|\be2e\b|"
    r"total[_ ]?(?:latency|time|delay)|(?:turn|response|overall)[_ ]?(?:latency|time)",
    re.IGNORECASE,
)
_PART: Final = re.compile(
    r"(?:^|[_ ])(?:stt|asr|llm|tts|transcri\w*|synth\w*|endpoint\w*|vad)(?:[_ ]|$).*|.*(?:ttfb|ttft|ttfa)(?:[_ ]|$).*",
    re.IGNORECASE,
)
_SECOND_STAMPS: Final = ("final_recv", "speech_end")


class Wrong(NamedTuple):
    """A number that cannot be what it is called."""

    text: str
    """What is wrong, with its numbers."""
    relation: str
    evidence: Evidence
    certain: bool
    """By arithmetic; else it looks like a fault and may be chance."""
    doubtful: bool = False
    """Another reading of the same numbers is as good: no more than a suspicion."""


def no_time_at_all(arm: Arm) -> Iterator[Wrong]:
    """A TTFT of exactly 0 of requests that took time: no first token was ever stamped for them."""
    wholes = [v for v in arm.values.values() if v.quantity == "e2e" and not v.relative and v.unit == "ms"]
    whole = max(wholes, key=lambda v: v.value, default=None)
    if whole is None or whole.value < MARGIN_MS:
        return
    for stat in ("p50", "mean", "", "p90", "p99", "max"):
        first = arm.quoted("ttft", stat)
        if first is None or first.relative or first.value != 0.0 or first.unit != "ms" or first.qualifier:
            continue
        how_many = {"p50": "at least half of the requests have", "mean": "no request has"}.get(stat, "requests have")
        name = f"TTFT {stat}".strip()
        polluted = _polluted(arm)
        text = (
            f"{name} is 0 ms while E2E {whole.stat} is {shown(whole.value, 'ms')} in {arm.name}: {how_many} no stamp "
            f"of a first token, and a missing stamp was counted as 0{polluted}"
        )
        yield Wrong(
            text,
            f"{name} 0 ms < E2E {shown(whole.value, 'ms')}: no answer begins before it was asked for",
            Evidence(
                text=f"{arm.name}: {name} 0 ms, E2E {whole.stat} {shown(whole.value, 'ms')}",
                source=str(first.place) or str(arm.place) or "facts", name=first.key, value=0.0, unit="ms",
            ),
            certain=True,
        )  # fmt: skip
        return


def _polluted(arm: Arm) -> str:
    """What else was computed from the missing stamp: a TPOT far above the gaps between tokens."""
    for stat in ("p50", "mean"):
        token, gap = arm.get("tpot", stat), arm.get("itl", stat)
        if token and gap and token > 3.0 * gap:
            return (
                f"; TPOT {stat} {shown(token, 'ms')} against ITL {shown(gap, 'ms')} ({token / gap:.1f} x) is polluted "
                "the same way"
            )
    return ""


def parts_of_arm(arm: Arm) -> Iterator[Wrong]:
    """A queue or a prefill that is longer than the TTFT which holds it, at the same statistic."""
    for whole_name, parts in _WHOLES.items():
        for stat in _STATS:
            whole = arm.quoted(whole_name, stat)
            if whole is None or whole.relative or whole.unit != "ms" or whole.qualifier or whole.value <= 0:
                continue
            for part_name in parts:
                part = arm.quoted(part_name, stat)
                if part is None or part.relative or part.unit != "ms" or part.qualifier:
                    continue
                if part.value > LONGER * whole.value and part.value > whole.value + MARGIN_MS:
                    yield _longer(arm, part, whole)
                    return


def _longer(arm: Arm, part: Quoted, whole: Quoted) -> Wrong:
    names = [f"{'TTFT' if q.quantity == 'ttft' else q.quantity} {q.stat}".strip() for q in (part, whole)]
    text = (
        f"{names[0]} {shown(part.value, 'ms')} is longer than {names[1]} {shown(whole.value, 'ms')} in {arm.name}, of "
        "which it is a part: the two are not of the same requests, or not on one clock"
    )
    return Wrong(
        text[:1].upper() + text[1:],
        f"{shown(part.value)} > {shown(whole.value)} ms: a part cannot be longer than the whole",
        Evidence(text=text, source=str(part.place) or str(arm.place), name=part.key, value=part.value, unit="ms"),
        certain=False,
    )


def one_number_twice(arms: list[Arm]) -> Iterator[Wrong]:
    """The longest gap of each request is its TTFT: the first token's wait was counted among the gaps."""
    same = []
    for arm in arms:
        longest, first = arm.quoted("itl", "max") or arm.quoted("chunk_gap", "max"), arm.quoted("ttft", "")
        if longest is None or first is None or longest.relative or first.relative or first.value <= 0:
            continue
        same.append((arm, longest, abs(longest.value - first.value) <= 1e-3 * first.value))
    if len(same) < LEAST or sum(alike for *_, alike in same) < MOSTLY * len(same):
        return
    n, of = sum(alike for *_, alike in same), len(same)
    arm, longest, _ = next(item for item in same if item[2])
    text = (
        f"The longest ITL equals the TTFT in {n} of {of} requests ({shown(longest.value, 'ms')} in {arm.name}): the "
        "first token's wait was counted among the gaps"
    )
    yield Wrong(
        text,
        f"max ITL = TTFT in {n} of {of}",
        Evidence(
            text=text, source=str(longest.place) or str(arm.place), name=longest.key, value=longest.value, unit="ms"
        ),
        certain=False,
    )


def series_of_zeros(observed: Observed) -> Iterator[Wrong]:
    """A series of TTFT that is 0 at every reading, beside one of whole requests that is not."""
    for first in observed.of_series("ttft"):
        known = first.values[np.isfinite(first.values)]
        if known.size < LEAST or bool((known != 0).any()):
            continue
        for whole in observed.of_series("e2e"):
            long = whole.values[np.isfinite(whole.values)]
            if whole.place.source != first.place.source or not long.size or float(np.median(long)) < MARGIN_MS:
                continue
            middle = float(np.median(long))
            text = (
                f"TTFT is 0 ms in all {known.size} readings while E2E is {shown(middle, 'ms')}: no first token was "
                "stamped, and what is missing was counted as 0"
            )
            yield Wrong(
                text,
                f"0 ms < {shown(middle, 'ms')}: no answer begins before it was asked for",
                Evidence(text=text, source=str(first.place), name="ttft", value=0.0, unit="ms"),
                certain=True,
            )
            return


def parts_of_rows(observed: Observed) -> Iterator[Wrong]:
    """Turns (or moments) in which a stage is reported longer than the whole that holds it."""
    for rows in observed.rows:
        if rows.kind not in {"turns", "moments"}:
            continue
        names = [name for name, values in rows.columns.items() if values.dtype != object]
        wholes = [name for name in names if _WHOLE.search(name)]
        parts = [name for name in names if name not in wholes and _PART.search(name)]
        for part in parts:
            for whole in wholes:
                found = _row_part(observed, rows, part, whole)
                if found is not None:
                    yield found
                    return


def _row_part(observed: Observed, rows: Rows, part: str, whole: str) -> Wrong | None:
    inner, outer = rows.numbers(part), rows.numbers(whole)
    known = np.isfinite(inner) & np.isfinite(outer) & (outer > 0)
    n = int(known.sum())
    if n < LEAST:
        return None
    longer = known & (inner > LONGER * outer)
    bad = int(longer.sum())
    if bad < MOSTLY * n:
        return None
    low, high = float(inner[longer].min()), float(inner[longer].max())
    at = rows.line_of(int(np.flatnonzero(longer)[0]))
    names = [name.replace("_", " ") for name in (part, whole)]
    values = f"{_seconds(low)}" if high - low < 1e-9 else f"{_seconds(low)} to {_seconds(high)}"
    outers = f"{_seconds(float(outer[longer].min()))} to {_seconds(float(outer[longer].max()))}"
    timer = timer_told(observed, inner[known])
    real = _other_stamps(rows)
    text = (
        f"{names[0]} is {values} in {bad} of {n} rows, longer than the {names[1]} ({outers}) of which it is a part"
        f"{real}{timer}"
    )
    return Wrong(
        text[:1].upper() + text[1:],
        f"{_seconds(low)} > {_seconds(float(outer[longer].min()))}: a part cannot be longer than the whole",
        Evidence(text=text, source=str(at), name=part, value=low, unit="ms"),
        certain=True,
    )


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:.2f} s"


def timer_told(observed: Observed, values: Floats) -> str:
    """The configured timers that the number (ms) is the sum of, in words: the metric says when they expired."""
    middle = float(np.median(values))
    if not values.size or float(np.ptp(values)) > 0.05 * middle:
        return ""
    timers = []
    for item in observed.settings:
        if item.number is None or not re.search(r"timeout|stop_secs|silence|endpoint|timer|delay", item.name):
            continue
        unit = item.unit or ("s" if item.name.endswith("secs") else "")
        ms = item.number * {"s": 1e3, "ms": 1.0}.get(unit, 0.0)
        if ms > 0:
            timers.append((item.name, ms))
    sums = [((a, b), a[1] + b[1]) for i, a in enumerate(timers) for b in timers[i + 1 :]]
    for those, total in [*(((one,), one[1]) for one in timers), *sums]:
        if abs(total - middle) <= 0.02 * middle + 10.0:
            words = " + ".join(f"{name} {ms / 1e3:g} s" for name, ms in those)
            return f"; it is the expiry of a timer ({words} = {total / 1e3:g} s), not a time that anybody waited"
    return "; it hardly varies, so it is the expiry of a timer rather than a time that anybody waited"


def _other_stamps(rows: Rows) -> str:
    come, ended = (rows.numbers(name) for name in _SECOND_STAMPS)
    lag = (come - ended)[np.isfinite(come - ended)]
    if lag.size < LEAST:
        return ""
    return f", and the stamps say {_seconds(float(lag.min()))} to {_seconds(float(lag.max()))} (final - speech end)"
