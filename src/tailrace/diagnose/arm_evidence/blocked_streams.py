"""A table of stalls that all streams share, with the front end's work on its event loop and off it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import condition, figure, said
from tailrace.diagnose.arms.pairs import changed, pairs
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.limits import LOOP_LATE_MS
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.arms.pairs import Pair
    from tailrace.diagnose.cause import Cause

__all__ = ["OF_THE_LOOP", "blocked_streams"]

LONGER: Final = 3.0
OF_THE_LOOP: Final = re.compile(
    r"event[ _-]?loop|\bloop\b|inline|off[ _-]?load|\bpool\b|executor|to[ _-]?thread|\bthread|subprocess|process pool|"
    r"async|tokeni[sz]|preprocess|image|audio|multi[ _-]?modal|vision|processor|decoder on|serial|\block\b",
    re.IGNORECASE,
)
_SHARED: Final = re.compile(
    r"all[ _-]?(?:the )?(?:stream|request|session|client)|every stream|loop|simultaneous|common|global|whole server|"
    r"server stall|freeze",
    re.IGNORECASE,
)


def _stall(arm: Arm) -> Quoted | None:
    found = figure(arm, "chunk_gap", "loop_lag", stats=("max", "p99", "", "p95"))
    if found is not None:
        return found
    return next(
        (
            value
            for value in arm.values.values()
            if value.unit == "ms"
            and not value.relative
            and re.search(r"stall|freeze|block|lag", value.label, re.IGNORECASE)
        ),
        None,
    )


def blocked_streams(cause: Cause, observed: Observed) -> Finding | None:
    """The stall is long where the work is done on the loop, and short where it is not."""
    worst = None
    for pair in pairs([arm for arm in observed.arms if _stall(arm) is not None]):
        one, two = _stall(pair.first), _stall(pair.second)
        if one is None or two is None or one.quantity != two.quantity:
            continue
        (long, bad), (short, good) = sorted(((one, pair.first), (two, pair.second)), key=lambda item: -item[0].value)
        if long.value <= LOOP_LATE_MS or long.value < LONGER * max(short.value, 1e-9):
            continue
        if worst is None or long.value > worst[1].value:
            worst = pair, long, bad, short, good
    if worst is None:
        return None
    pair, long, bad, short, good = worst
    words = f"{changed(observed)} {said(bad)} {said(good)} {' '.join(pair.first.keys)}"
    shared = _SHARED.search(f"{long.label} {long.qualifier}") is not None or long.quantity == "loop_lag"
    if OF_THE_LOOP.search(words) is None or (not shared and figure(bad, "preprocess", stats=_ANY) is None):
        return None
    return _found(cause, pair, (long, bad), (short, good), shared=shared)


def _found(
    cause: Cause,
    pair: Pair,
    worse: tuple[Quoted, Arm],
    better: tuple[Quoted, Arm],
    *,
    shared: bool,
) -> Finding:
    (long, bad), (short, good) = worse, better
    missing = []
    if not shared:
        missing.append("whether all streams stop at the same moment, or the loop's lag (round trip of /health)")
    if not pair.same:
        missing.append("that both arms had the same load (concurrency, n)")
    notes, more = _end_to_end(bad, good)
    evidence = [evidence_of(bad, long), evidence_of(good, short), *more]
    for name in ("preprocess", "req_s"):
        for arm in (bad, good):
            found = figure(arm, name, stats=_ANY)
            if found is not None:
                evidence.append(evidence_of(arm, found))
    n = condition(bad, r"\bn\b|requests|samples") or 0
    one_change = not missing and not pair.differs
    if one_change:
        same = ", ".join(pair.same)
        evidence.append(
            Evidence(f"what was changed: {bad.name} to {good.name}; equal: {same}", str(bad.place) or "form", "changed")
        )
    return cause.finding(
        statement=f"With {bad.label or bad.name}, the {quantity(long)} is {number(long.value, 'ms')}; with "
        f"{good.label or good.name} it is {number(short.value, 'ms')}: the work of one request is done on the event "
        "loop, and no stream gets a token meanwhile.",
        evidence=evidence,
        explains_ms=long.value - short.value,
        relation=f"{number(long.value, 'ms')} / {number(short.value, 'ms')} = "
        f"{long.value / max(short.value, 1e-9):.3g} x" + (f" at {', '.join(pair.same)}" if pair.same else ""),
        n=int(n),
        advice="Take tokenising, image and audio work off the event loop (a pool of threads or processes, or more API "
        "server processes) and bound how much of it runs at once.",
        price="The stage's own time may rise, because waiting moves into it: compare end to end first, and read stages "
        "by Little's law.",
        verify=again(bad),
        missing=missing,
        disproof_checked=[*notes, f"equal load: {', '.join(pair.same)}" if pair.same else "the load is not stated"],
        level=Level.PROVEN if one_change else None,
        proof=Proof.ONE_CHANGE,
    )


def _end_to_end(bad: Arm, good: Arm) -> tuple[list[str], list[Evidence]]:
    """Where the stage got slower while the system got faster: the time in the system by Little's law."""
    rates = [figure(arm, "req_s") for arm in (bad, good)]
    held = [condition(arm, r"concurrency|in flight|users") for arm in (bad, good)]
    slow, fast = (figure(arm, "preprocess", stats=_ANY) for arm in (bad, good))
    notes: list[str] = []
    out: list[Evidence] = []
    spent = [load / rate.value for load, rate in zip(held, rates, strict=True) if load and rate and rate.value]
    if len(spent) == 2:
        words = f"by Little's law (concurrency / rate): {spent[0]:.3g} s -> {spent[1]:.3g} s"
        notes.append(f"end to end {words}")
        source = str(good.place) or "form"
        out.append(Evidence(f"time in the system {words}", source, "residence_s", round(spent[1], 4), "s"))
    if slow is not None and fast is not None and fast.value > slow.value:
        notes.append(
            f"the stage itself went {number(slow.value, 'ms')} -> {number(fast.value, 'ms')}: waiting moved into it; "
            "end to end decides, not the stage"
        )
    return notes, out


_ANY: Final = ("p99", "p95", "p50", "mean", "", "max")
