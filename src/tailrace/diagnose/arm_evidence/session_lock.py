"""Sessions slow each other down while the device idles: one lock (or one loop) does the work of all in turn."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.asked import GAUGE_FIRST, as_share, figure, given, said, told
from tailrace.diagnose.arms.pairs import changed
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["device_idle", "session_lock"]

IDLE: Final = 0.35
SLOWER: Final = 1.3
GROWTH: Final = 1.3
_IDLE_WORDS: Final = re.compile(
    r"\bidle\b|under[ -]?utili[sz]ed|mostly unused|near (?:0|zero)|not busy|\blow (?:gpu )?util|far from (?:full|"
    r"its limit)",
    re.IGNORECASE,
)
_LATENESS: Final = ("e2e", "lag", "final_latency", "first_partial", "ttft")


_SPEECH_LATENESS: Final = frozenset({"lag", "final_latency", "first_partial"})


class _Sessions(NamedTuple):
    arm: Arm
    sessions: float
    kind: str
    """What else the arm is called: its version, its build."""


def device_idle(observed: Observed) -> Evidence | None:
    """What says that the device had nothing to do; `None` where nothing does, or it was busy."""
    used = [(arm, value) for arm in observed.arms if (value := figure(arm, "gpu_util", stats=GAUGE_FIRST))]
    if used:
        arm, value = max(used, key=lambda item: item[1].value)
        return evidence_of(arm, value) if value.value <= IDLE else None
    for item in told(observed):
        if not re.search(r"gpu|device|accelerator", item.name, re.IGNORECASE):
            continue
        if isinstance(item.value, str) and _IDLE_WORDS.search(item.value):
            return evidence_of_setting(item)
        if "util" in item.name and item.number is not None:
            share = as_share(item.number, item.unit)
            return evidence_of_setting(item) if share <= IDLE else None
    return None


def session_lock(cause: Cause, observed: Observed) -> Finding | None:
    """Latency or lag by number of sessions, between versions or along the sessions, while the device idles."""
    arms = [found for arm in observed.arms if (found := _sessions(arm)) is not None]
    if not arms:
        return None
    between = _between(arms)
    growth = _along(arms)
    if between is None and growth is None:
        return None
    idle = device_idle(observed)
    busy = idle is None and _busy(observed)
    if busy:
        return None
    missing = [] if idle is not None else ["GPU utilisation meanwhile: a lock leaves it idle"]
    rivals = [] if idle is not None else ["SCHED_QUEUE_SATURATION", "COMPUTE_KERNEL_REGRESSION"]
    if not observed.of_kind("stack"):
        checked = ["no stack of the server was given: a dump (py-spy) while a session lags names the lock"]
    else:
        checked = []
    parts, evidence, relation, explains = _words(between, growth)
    what = changed(observed)
    if idle is not None:
        evidence.append(idle)
    return cause.finding(
        statement="; ".join(parts)
        + (", while the GPU is idle" if idle is not None else "")
        + ": one lock (or one loop) does the work of all sessions in turn.",
        evidence=[*evidence, *([Evidence(text=f"changed: {what}", source="form")] if what else [])],
        explains_ms=explains,
        relation="; ".join(relation),
        n=len(arms),
        advice="Remove the process-wide lock: give every session its own state, take decoding off the event loop, or "
        "run more processes with fewer sessions each; roll back the version that brought it until then.",
        price="Memory for a state per session; more processes hold the model more than once.",
        verify=(
            "tailrace diagnose dump.txt  # py-spy dump --pid PID > dump.txt of the server, twice "
            "while a session lags: the frame that all sessions wait in"
        ),
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
    )


def _busy(observed: Observed) -> bool:
    return any(
        (value := figure(arm, "gpu_util", stats=("", "mean", "p50"))) and value.value > 2 * IDLE
        for arm in observed.arms
    )


def _sessions(arm: Arm) -> _Sessions | None:
    found = arm.keys.get("sessions", arm.get("sessions"))
    if found is None and _SPEECH_LATENESS & {value.quantity for value in arm.values.values()}:
        found = given(arm, "concurrency")  # clients of a speech server are its sessions
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return None
    others = [value for name, value in arm.keys.items() if name not in {"sessions", "concurrency"}]
    kind = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in others)
    rest = re.sub(rf"\b{found:g}\b|\b\d+ sessions?\b|\bsessions?\b", "", said(arm)).strip()
    return _Sessions(arm, float(found), kind or rest)


def _late(arm: Arm) -> Quoted | None:
    return figure(arm, *_LATENESS, stats=("p50", "mean", "", "p95", "p99", "max"))


def _failed(arm: Arm) -> Quoted | None:
    return figure(arm, "failed", "failed_share")


class _Between(NamedTuple):
    good: _Sessions
    bad: _Sessions
    fast: Quoted | None
    slow: Quoted | None
    failed: Quoted | None


def _between(arms: list[_Sessions]) -> list[_Between] | None:
    """Two kinds at equal sessions, one of them slower or failing, at every number of sessions that both have."""
    kinds = sorted({item.kind for item in arms})
    if len(kinds) != 2:
        return None
    out = []
    for load in sorted({item.sessions for item in arms}):
        pair = [next((item for item in arms if item.kind == kind and item.sessions == load), None) for kind in kinds]
        if pair[0] is None or pair[1] is None:
            continue
        found = _worse(pair[0], pair[1])
        if found is not None:
            out.append(found)
    bad = {item.bad.kind for item in out}
    return out if len(bad) == 1 else None


def _worse(one: _Sessions, two: _Sessions) -> _Between | None:
    for good, bad in ((one, two), (two, one)):
        failed = _failed(bad.arm)
        others = _failed(good.arm)
        if failed is not None and failed.value > 0 and (others is None or others.value < failed.value):
            return _Between(good, bad, _late(good.arm), _late(bad.arm), failed)
        fast, slow = _late(good.arm), _late(bad.arm)
        if fast is not None and slow is not None and fast.key == slow.key and slow.value >= SLOWER * fast.value:
            return _Between(good, bad, fast, slow, None)
    return None


def _along(arms: list[_Sessions]) -> tuple[_Sessions, Quoted, _Sessions, Quoted] | None:
    """Of one kind, lateness that grows at least as fast as the sessions do."""
    best = None
    for kind in {item.kind for item in arms}:
        mine = sorted((item for item in arms if item.kind == kind and _late(item.arm)), key=lambda item: item.sessions)
        if len(mine) < 2:
            continue
        few, many = mine[0], mine[-1]
        low, high = _late(few.arm), _late(many.arm)
        if low is None or high is None or low.key != high.key or many.sessions <= few.sessions:
            continue
        if high.value >= max(GROWTH, 0.9 * many.sessions / few.sessions) * low.value:
            best = few, low, many, high
    return best


def _words(
    between: list[_Between] | None, growth: tuple[_Sessions, Quoted, _Sessions, Quoted] | None
) -> tuple[list[str], list[Evidence], list[str], float | None]:
    parts: list[str] = []
    evidence: list[Evidence] = []
    relation: list[str] = []
    explains: float | None = None
    for item in between or []:
        at = f"at {item.bad.sessions:g} sessions"
        if item.fast is not None and item.slow is not None and item.fast.key == item.slow.key:
            evidence += [evidence_of(item.good.arm, item.fast), evidence_of(item.bad.arm, item.slow)]
            parts.append(
                f"{at}, {item.bad.kind} has {quantity(item.slow)} {number(item.slow.value, item.slow.unit)} against "
                f"{number(item.fast.value, item.fast.unit)} of {item.good.kind}"
            )
            relation.append(f"{at} {item.slow.value / item.fast.value:.3g} x")
            explains = max(explains or 0.0, item.slow.value - item.fast.value)
        if item.failed is not None:
            evidence.append(evidence_of(item.bad.arm, item.failed))
            parts.append(f"{at}, {number(item.failed.value, item.failed.unit)} of them fail with {item.bad.kind}")
            for name in ("lag", "final_latency"):
                late = figure(item.bad.arm, name, stats=("p95", "p99", "p50", "mean", "", "max"))
                if late is not None:
                    evidence.append(evidence_of(item.bad.arm, late))
                    relation.append(f"{quantity(late)} {number(late.value, late.unit)} {at}")
                    explains = max(explains or 0.0, late.value)
    if growth is not None:
        few, low, many, high = growth
        evidence += [evidence_of(few.arm, low), evidence_of(many.arm, high)]
        parts.append(
            f"{quantity(high)} grows from {number(low.value, low.unit)} at {few.sessions:g} sessions to "
            f"{number(high.value, high.unit)} at {many.sessions:g}"
        )
        relation.append(f"{high.value / low.value:.3g} x at {many.sessions / few.sessions:.3g} x the sessions")
        explains = max(explains or 0.0, high.value - low.value)
    parts[0] = parts[0][:1].upper() + parts[0][1:]
    return parts, list(dict.fromkeys(evidence)), relation, explains
