"""A timeline with words: a rollout, a latency that rose with it, replicas that were added, and what they changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.asked import figure
from tailrace.diagnose.arms.moments import moments
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["rollout_timeline"]

WORSE: Final = 1.5
"""Latency after the rollout over that before it."""
HELPED: Final = 0.8
"""Of the worst: a latency that is below it with the new replicas shows an effect."""
SAME_VOLUME: Final = 0.1
LEAST: Final = 4
_ROLLOUT: Final = re.compile(
    r"roll(?:ed|ing)?[ -]?out|\bdeploy\w*|\breleas\w*|\bupgrad\w*|new (?:model|version|revision|build|image|config)|"
    r"\brevision\b|config (?:change|push)|\bcanary\b|\bv\d+(?:\.\d+)*\b.{0,20}\b(?:live|out|shipped)|\bmigrat\w*",
    re.IGNORECASE,
)
_SCALED: Final = re.compile(
    r"\bscal(?:ed?|ing)\b|\bscale[ -]?(?:out|up)|\bhpa\b|autoscal\w*|\badd(?:ed|ing|s)?\b.{0,25}"
    r"(?:replicas?|pods?|nodes?|gpus?|instances?|workers?)|"
    r"(?:replicas?|pods?|nodes?|instances?) (?:added|requested|asked)",
    re.IGNORECASE,
)
_MOMENT: Final = re.compile(r"t|time|elapsed|(?:t|time|elapsed)_(?:s|sec|seconds|min|minutes)|minutes?|min|seconds?")
_CLOCK: Final = re.compile(r"(?<!\d)(\d{1,2}):(\d\d)(?::(\d\d))?(?!\d)")
_NO_ROLLOUT: Final = re.compile(r"roll(?:ed|ing)?[ -]?back|\brevert", re.IGNORECASE)


class _Row(NamedTuple):
    arm: Arm
    text: str
    """What is written beside it."""
    minutes: float | None


def rollout_timeline(cause: Cause, observed: Observed) -> Finding | None:
    """Latency up with a rollout at an equal volume, and still up when the added replicas are ready."""
    rows = _rows(observed)
    if len(rows) < LEAST:
        return None
    rolled = next((n for n, row in enumerate(rows) if _ROLLOUT.search(row.text) and not _SCALED.search(row.text)), None)
    begin = len(rows) if rolled is None else rolled
    scaled = next((n for n in range(begin, len(rows)) if _SCALED.search(rows[n].text)), None)
    if rolled is None or scaled is None or any(_NO_ROLLOUT.search(row.text) for row in rows[: scaled + 1]):
        return None
    good = _latency(rows[: rolled + 1], min)
    bad = _latency(rows[rolled + 1 :], max)
    last = _latency(rows[-1:], max)
    if good is None or bad is None or last is None or not _stays_bad(good[1], bad[1], last[1]):
        return None
    volumes = [value for row in rows if (value := figure(row.arm, "offered_rps", "req_s")) is not None]
    volume = (min(v.value for v in volumes), max(v.value for v in volumes)) if volumes else None
    if volume is not None and volume[1] > (1.0 + SAME_VOLUME) * volume[0]:
        return None
    return _found(cause, rows, rolled, scaled, (good, bad, last), volume)


def _stays_bad(good: Quoted, bad: Quoted, last: Quoted) -> bool:
    """Whether the latency rose, and the last reading shows no effect of what was added."""
    rose = good.value > 0 and good.key == bad.key and bad.value >= WORSE * good.value
    return rose and last.value >= HELPED * bad.value


def _found(
    cause: Cause,
    rows: list[_Row],
    rolled: int,
    scaled: int,
    latency: tuple[tuple[Arm, Quoted], tuple[Arm, Quoted], tuple[Arm, Quoted]],
    volume: tuple[float, float] | None,
) -> Finding:
    good, bad, last = latency
    ready = _ready(rows, scaled)
    took = _between(rows[scaled], rows[ready]) if ready is not None else None
    what = rows[rolled].text[:80]
    counts = [value.value for row in rows if (value := figure(row.arm, "replicas", "ready_endpoints")) is not None]
    name = quantity(bad[1])
    evidence = [
        evidence_of(*good),
        evidence_of(*bad),
        evidence_of(*last),
        Evidence(f"{rows[rolled].arm.label}: {what}", str(rows[rolled].arm.place) or "form", "rollout"),
        Evidence(
            f"{rows[scaled].arm.label}: {rows[scaled].text[:80]}", str(rows[scaled].arm.place) or "form", "scaled"
        ),
    ]
    missing = []
    equal = ""
    if volume is None:
        missing.append("the request volume before and after (it must be equal)")
    else:
        equal = f" at an equal volume ({number(volume[0])} to {number(volume[1])}/s)"
        evidence.append(
            Evidence(f"volume {number(volume[0])} to {number(volume[1])}/s", str(rows[0].arm.place), "req_s")
        )
    after = ""
    if ready is not None and counts:
        after = f"with {number(counts[-1])} instead of {number(counts[0])} replicas it is still "
        evidence.append(
            Evidence(
                f"replicas {number(counts[0])} -> {number(counts[-1])} at {rows[ready].arm.label}"
                + (f", {number(took)} min after they were asked for" if took else ""),
                str(rows[ready].arm.place) or "form", "replicas", counts[-1],
            )
        )  # fmt: skip
    else:
        missing.append("when the added replica served its first request")
    late = f"; the replicas were ready {number(took)} min after they were asked for" if took else ""
    rose = f"{number(good[1].value, good[1].unit)} to {number(bad[1].value, bad[1].unit)}"
    return cause.finding(
        statement=f"{name} went from {rose}{equal} after “{what}” ({rows[rolled].arm.label}){late}, and {after}"
        f"{number(last[1].value, last[1].unit)}. The change came with the rollout, not with the load: roll back before "
        "adding capacity.",
        evidence=evidence,
        explains_ms=bad[1].value - good[1].value,
        relation=f"{name} {rose} ({bad[1].value / good[1].value:.3g} x)"
        + (f"; {number(took)} min from the request to ready" if took else ""),
        n=len(rows),
        advice=f"Roll back first ({what}); meanwhile shed load (429) or shorten outputs (max_tokens). A scale-out is "
        "no incident action: a replica needs minutes to load its weights and warm up before it takes traffic.",
        price="Users lose what the rollout brought; refused requests are to be retried by their clients.",
        verify="tailrace diagnose http://127.0.0.1:9480 --before before.run  # after the rollback",
        missing=[*missing, "what the rollout changed, and the same load on the old revision"],
        disproof_checked=[f"volume {number(volume[0])} to {number(volume[1])}/s"] if volume else [],
    )


def _rows(observed: Observed) -> list[_Row]:
    """The moments of the first table that has words beside them, in its order."""
    out = [
        _Row(arm, text, _minutes(arm))
        for arm in observed.arms
        if (text := " ".join(str(v) for v in arm.keys.values() if isinstance(v, str))) is not None
        and _minutes(arm) is not None
    ]
    if len(out) >= LEAST and any(row.text for row in out):
        return out
    for table in observed.table("moments"):
        texts = [name for name, column in table.columns.items() if column.dtype == object]
        words = {
            table.line_of(row).line: " ".join(filter(None, (table.texts(name)[row] for name in texts)))
            for row in range(len(table))
        }
        mine: dict[int, Arm] = {
            arm.place.line: arm for arm in moments(observed) if arm.place.source == table.place.source
        }
        times = table.numbers("time")
        out = [
            _Row(mine[line], words[line], float(times[row]) / 60.0)
            for row in range(len(table))
            if (line := table.line_of(row).line) in mine
        ]
        if len(out) >= LEAST:
            return out
    return []


def _minutes(arm: Arm) -> float | None:
    found = _CLOCK.search(arm.label)
    if found is not None:
        return int(found[1]) * 60 + int(found[2]) + int(found[3] or 0) / 60.0
    quoted = {item.label: item.value for item in arm.values.values()}
    for name, value in [*arm.keys.items(), *quoted.items()]:
        moment = _MOMENT.fullmatch(name)
        if moment is not None and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value) / (1.0 if "min" in name else 60.0)
    return None


def _latency(rows: list[_Row], best: object) -> tuple[Arm, Quoted] | None:
    for name in ("ttft", "e2e", "queue"):
        for stat in ("p99", "p95", "p90", "p50", "mean", ""):
            known = [(row.arm, value) for row in rows if (value := figure(row.arm, name, stats=(stat,))) is not None]
            if known:
                pick = min if best is min else max
                return pick(known, key=lambda item: item[1].value)
    return None


def _ready(rows: list[_Row], scaled: int) -> int | None:
    """The first row with more replicas than when they were asked for."""
    had = figure(rows[scaled].arm, "replicas", "ready_endpoints")
    for place in range(scaled + 1, len(rows)):
        now = figure(rows[place].arm, "replicas", "ready_endpoints")
        if had is not None and now is not None and now.value > had.value:
            return place
    return None


def _between(one: _Row, two: _Row) -> float | None:
    return None if one.minutes is None or two.minutes is None else two.minutes - one.minutes
