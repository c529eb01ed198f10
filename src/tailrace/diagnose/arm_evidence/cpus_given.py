"""Arms that differ in the CPUs of the engine's process: half the speed with few of them, whatever the throttle says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import USUAL_FIRST, figure, told
from tailrace.diagnose.arms.pairs import Point, changed, stated_same, sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.commands import CPU_STAT_TWICE
from tailrace.diagnose.limits import THROTTLED
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["cpus_given"]

CPUS: Final = (
    r"\bv?cpus?\b(?! ?util)(?! ?usage)|\bcores?\b(?! ?util)|\bomp(?: num)? threads?\b|\bcpu (?:request|"
    r"limit|quota|count)"
)
SLOWER: Final = 1.5
"""So many times slower with few CPUs than with many; two times is the page's own case."""
PINNED: Final = 95.0
_SPEEDS: Final = ("decode_tok_s", "output_tok_s", "req_s")
_PACES: Final = ("itl", "tpot", "chunk_gap")
_NEEDED: Final = (
    (r"clock|frequency", "GPU clocks"),
    (r"batch|concurren|running|load|rate", "batch size (running requests)"),
    (r"\bkv\b|cache", "KV usage"),
)


def cpus_given(cause: Cause, observed: Observed) -> Finding | None:
    """By a sweep over CPUs, by the throttle's counters, or by a core that is pinned."""
    return surest([_sweep(cause, observed), _throttled(cause, observed), _pinned(cause, observed)])


def _pace(arm: Arm) -> Quoted | None:
    """What tells the speed of decoding: time a token, else tokens a second."""
    return figure(arm, *_PACES, *_SPEEDS, stats=USUAL_FIRST)


def _sweep(cause: Cause, observed: Observed) -> Finding | None:
    points = sweep(observed, CPUS, lambda arm: _pace(arm) is not None)
    if len(points) < 2:
        return None
    few, many = points[0], points[-1]
    slow = _pace(few.arm)
    fast = None if slow is None else figure(many.arm, slow.quantity, stats=(slow.stat,))
    if slow is None or fast is None or not slow.value or not fast.value:
        return None
    ratio = slow.value / fast.value if slow.quantity in _PACES else fast.value / slow.value
    if ratio < SLOWER:
        return None
    same = " ".join(stated_same(observed))
    missing = [words for pattern, words in _NEEDED if not re.search(pattern, same, re.IGNORECASE)]
    missing = [f"that {' and '.join(missing)} were equal in all arms"] if missing else []
    counters = _counters(observed)
    evidence = [item for point in points for item in _numbers(point, slow)]
    if counters is not None:
        evidence.append(counters[2])
    ttft = [figure(point.arm, "ttft") for point in (few, many)]
    checked = []
    if ttft[0] is not None and ttft[1] is not None:
        checked.append(f"TTFT {number(ttft[0].value, 'ms')} and {number(ttft[1].value, 'ms')}")
    unmoved = observed.setting("ttft_changed")
    if unmoved is not None:
        checked.append(f"TTFT {'changed' if unmoved.value else 'unchanged'}")
        evidence.append(evidence_of_setting(unmoved))
    if same:
        checked.append(f"stated to be equal: {', '.join(stated_same(observed))}")
        evidence.append(Evidence(text=f"equal in all arms: {', '.join(stated_same(observed))}", source="form"))
    if counters is not None:
        checked.append(_of_throttle(counters[0], counters[1]))
    plateau = _plateau(points, slow)
    what = changed(observed)
    return cause.finding(
        statement=f"With {few.x:g} CPUs, {quantity(slow)} is {number(slow.value, slow.unit)}; with {many.x:g}, "
        f"{number(fast.value, fast.unit)}: {ratio:.3g} x. The engine's process lacks CPU; that more CPUs help is "
        "shown, "
        "by which mechanism (scheduling, steal, thread pool) is not: mechanism unproven.",
        evidence=evidence,
        explains_ms=slow.value - fast.value if slow.quantity in _PACES else None,
        relation=f"{number(slow.value)} / {number(fast.value)} = {slow.value / fast.value:.3g} at {few.x:g} and "
        f"{many.x:g} CPUs" + (f"; nothing more above {plateau:g}" if plateau is not None else ""),
        n=len(points),
        advice=f"Give the engine's process {plateau or many.x:g} CPUs (request and limit), keep its threads at or "
        "below "
        "that (OMP_NUM_THREADS, --api-server-count), and pin it apart from its neighbours.",
        price="Cores that other work cannot use.",
        verify=again(many.arm),
        missing=missing,
        disproof_checked=checked + ([f"the one difference: {what}"] if what else []),
        # An intervention that works proves the lever, not the mechanism.
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _numbers(point: Point, like: Quoted) -> list[Evidence]:
    out = []
    for name in dict.fromkeys((like.quantity, *_PACES, *_SPEEDS)):
        found = figure(point.arm, name, stats=(like.stat, "mean", "p50", ""))
        if found is not None:
            item = evidence_of(point.arm, found)
            out.append(
                Evidence(
                    f"{point.x:g} CPUs: {item.text.split(': ', 1)[-1]}", item.source, item.name, item.value, item.unit
                )
            )
    return out


def _plateau(points: list[Point], like: Quoted) -> float | None:
    """The fewest CPUs from which more change nothing (5 %)."""
    last = figure(points[-1].arm, like.quantity, stats=(like.stat,))
    for point in points[:-1]:
        value = figure(point.arm, like.quantity, stats=(like.stat,))
        if value is not None and last is not None and abs(value.value / last.value - 1.0) < 0.05:
            return point.x
    return None


def _counters(observed: Observed) -> tuple[float, float, Evidence] | None:
    """(throttled periods, periods, both as evidence) from counters or statements."""
    stopped, periods = _counted(observed, "nr_throttled"), _counted(observed, "nr_periods")
    if stopped is None:
        return None
    value, source = stopped
    total = periods[0] if periods is not None else 0.0
    return value, total, Evidence(_of_throttle(value, total), source, "nr_throttled", value)


def _counted(observed: Observed, name: str) -> tuple[float, str] | None:
    for counter in observed.counters:
        # One reading counts since the group's start.
        count = counter.last if counter.lifetime else counter.delta
        if counter.name.removesuffix("_total").endswith(name) and count is not None:
            return count, str(counter.place)
    for series in observed.series:
        # One reading counts since the group's start; of several the last minus the first.
        if series.name.removesuffix("_total").endswith(name) and len(series):
            first = float(series.values[0]) if len(series) > 1 else 0.0
            return float(series.values[-1]) - first, str(series.place)
    found = next((item for item in told(observed) if item.name.endswith(name) and item.number is not None), None)
    return None if found is None or found.number is None else (found.number, str(found.place) or "form")


def _of_throttle(stopped: float, periods: float) -> str:
    if periods <= 0:
        return f"nr_throttled {stopped:.0f} of {periods:.0f} periods: no quota is set, which does not clear the CPU"
    words = f"nr_throttled / nr_periods = {stopped:.0f} / {periods:.0f} = {stopped / periods:.0%}"
    return words if stopped / periods > THROTTLED else f"{words}: hardly throttled, which does not clear the CPU"


def _throttled(cause: Cause, observed: Observed) -> Finding | None:
    if observed.of_counter("nr_throttled"):
        return None  # a `cpu.stat`: whether it is of the window, `throttled` asks
    counters = _counters(observed)
    if counters is None or counters[1] <= 0 or counters[0] / counters[1] <= THROTTLED:
        return None
    stopped, periods, evidence = counters
    return cause.finding(
        statement=f"The CPU quota stopped the engine's processes in {stopped / periods:.0%} of the periods "
        f"({stopped:.0f} of {periods:.0f}).",
        evidence=[evidence],
        explains_ms=None,
        relation=f"nr_throttled / nr_periods = {stopped:.0f} / {periods:.0f} = {stopped / periods:.0%} > "
        f"{THROTTLED:.0%}",
        n=int(periods),
        advice="Raise the CPU limit, or remove it and keep the request; run no more threads than the quota has cores.",
        price="Cores that other work cannot use.",
        verify=CPU_STAT_TWICE,
        missing=[],
        disproof_checked=[_of_throttle(stopped, periods)],
    )


def _pinned(cause: Cause, observed: Observed) -> Finding | None:
    """One or two cores at their limit while others idle: a single thread, or the interpreter's lock, is the limit."""
    used = _stated(
        observed, r"(?:cores?|cpus?).*(?:used|busy|pinned|active|full)|(?:used|busy|pinned).*(?:cores?|cpus?)"
    )
    total = _stated(observed, r"^(?:host |node |machine |total )?(?:cores|cpus|cpu count|cores total|cpu cores)$")
    share = _stated(observed, r"(?:cpu|core|process|thread).*(?:pct|percent|util)")
    if used is None or used.number is None:
        return None
    many = total is not None and total.number is not None and total.number >= 2 * used.number
    full = share is not None and share.number is not None and share.number >= PINNED
    if not many and not full:
        return None
    missing = ["whether ITL or throughput changes with more API server processes"]
    if not full:
        missing.append("CPU use of each process (top -H): a core pinned at 100 %")
    of = f" of {total.number:g}" if total is not None and total.number is not None else ""
    return cause.finding(
        statement=f"The server keeps {used.number:g}{of} cores busy and no more: one thread a process is the limit "
        "(mechanism not proven).",
        evidence=[evidence_of_setting(item) for item in (used, total, share) if item is not None],
        explains_ms=None,
        relation=f"{used.number:g}{of} cores busy",
        n=1,
        advice="Run more API server processes (vLLM: --api-server-count), not more cores: one Python process uses one.",
        price="Memory for each process.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 5 --duration 60 --out after.run && tailrace "
            "compare before.run after.run  # and top -H -p PID under load, before and after"
        ),
        missing=missing,
    )


def _stated(observed: Observed, words: str) -> Setting | None:
    return next(
        (
            item
            for item in told(observed)
            if item.number is not None and re.search(words, item.name.replace("_", " "), re.IGNORECASE)
        ),
        None,
    )
