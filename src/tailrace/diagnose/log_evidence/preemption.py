"""SCHED_KV_PREEMPTION from an engine's log: requests preempted, swapped or retracted, a full cache, what stays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.engine_settings import RUNNING_LIMIT
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.observed import Event, Observed
from tailrace.diagnose.observed.load import Load, loads
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["preemption_in_log"]

ONE_STREAM: Final = 300.0
"""Tokens a second that one sequence hardly makes: more says that a request is several sequences."""
LOST: Final = 0.5
"""After the event each running request makes less than this share of before, although the cache has room again."""

NEARLY_FULL: Final = 0.95


class _State(NamedTuple):
    """What stayed bad after the first event, though the cache had room again."""

    before: float
    after: tuple[float, float]
    """Lowest and highest throughput after it (tok/s)."""
    usage: float
    graph_lost: bool
    first: int
    last: int
    running: tuple[float, float]


def preemption_in_log(cause: Cause, observed: Observed) -> Finding | None:
    """Lines of preemption; swapped requests; a counter in the load line; or a cache at 98 % with requests waiting."""
    events = [event for kind in ("preempted", "retracted", "kv_full") for event in observed.of_kind(kind)]
    every = loads(observed)
    load = next((one for one in every if one.has("kv_usage")), every[0] if every else None)
    swapped = _top(every, "swapped")
    counted = sum(float(np.nansum(one.get("preemptions"))) for one in every)
    full = [one for one in every if _stuck_full(one)]
    if not events and not swapped and not counted and not full:
        return None
    facts: list[Evidence] = []
    checked: list[str] = []
    cumulative = _cumulative(events)
    if events:
        facts += _of_events(events, cumulative)
    if swapped:
        one, index = swapped
        facts.append(
            Evidence(
                text=f"{one.get('swapped')[index]:g} requests were swapped out",
                source=one.where(index),
                name="swapped",
                value=float(one.get("swapped")[index]),
            )
        )
    if counted:
        facts.append(
            Evidence(f"the load lines count {counted:g} preemptions", every[0].place.source, "preemptions", counted)
        )
    relation = [f"{len(events)} lines of preemption"] if events else []
    sequences = state = None
    if load is not None:
        kv = float(np.nanmax(load.get("kv_usage"))) if load.has("kv_usage") else None
        if kv is not None:
            top = int(np.nanargmax(load.get("kv_usage")))
            facts.append(Evidence(f"KV usage reached {kv:.1%}", load.where(top), "kv_usage", round(kv, 4)))
            relation.append(f"KV {kv:.1%}")
            checked.append(f"KV usage at most {kv:.1%}")
        rise = _rise(load, facts)
        if rise:
            relation.append(rise)
        sequences = _sequences(load, facts, relation)
        state = _state(load, events, facts, relation)
    # The cache was seen to be short; that users felt it is not in a log.
    limit = observed.number(*RUNNING_LIMIT)
    if full and limit is not None:
        relation.append(_of_limit(full[0], limit, facts))
    missing = _missing(cumulative, state, seen=bool(events or swapped or counted or limit is not None))
    if cumulative is not None and cumulative > 0:
        checked.append(f"the log's own counter rose by {cumulative:g}")
    kinds = sorted({event.kind for event in events})
    return cause.finding(
        statement=_statement(kinds, events, swapped, sequences, state, full),
        evidence=facts,
        explains_ms=None,
        relation="; ".join(relation),
        n=len(events) or (int(full[0].get("waiting").size) if full else 1),
        advice=_advice(observed, kinds, sequences, state),
        price="Requests wait in the queue instead of being thrown out: TTFT rises, while ITL and throughput gain.",
        verify="tailrace diagnose before.prom after.prom  # two scrapes of /metrics around the next slow minute",
        missing=missing,
        disproof_checked=checked,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _of_limit(load: Load, limit: float, facts: list[Evidence]) -> str:
    """How many run of those that the configuration allows, while the cache is full."""
    ran = float(np.nanmax(load.get("running")))
    facts.append(
        Evidence(f"running is stuck at {ran:g} of {limit:g} (max_num_seqs)", load.place.source, "running", ran)
    )
    return f"running {ran:g} of {limit:g}"


def _missing(cumulative: float | None, state: _State | None, *, seen: bool) -> list[str]:
    """Lines alone are a suspicion; a counter that the log itself tells twice is none."""
    missing = [] if cumulative else ["the preemption counter over the slow window (two scrapes of /metrics)"]
    if state is not None:
        missing.append("whether a restart brings the rate back (then it is state)")
    if not seen:
        missing.append("the running limit (max_num_seqs), to see that the cache and not the limit stops admission")
    return missing


def _top(every: list[Load], name: str) -> tuple[Load, int] | None:
    """Where a gauge was highest, if it ever was above 0."""
    best = None
    for load in every:
        if load.has(name):
            index = int(np.nanargmax(load.get(name)))
            value = float(load.get(name)[index])
            if value > 0 and (best is None or value > best[0]):
                best = (value, load, index)
    return None if best is None else (best[1], best[2])


def _stuck_full(load: Load) -> bool:
    """A full cache with requests waiting in two readings or more, while something runs."""
    with np.errstate(invalid="ignore"):
        full = (load.get("kv_usage") >= KV_FULL) & (load.get("waiting") > 0) & (load.get("running") > 0)
    return any(stretch.n >= 2 for stretch in load.stretches(full))


def _cumulative(events: list[Event]) -> float | None:
    """By how much the count since the start rose between the first and the last line; `None` with fewer than two."""
    counts = [float(event.attributes["cumulative"]) for event in events if "cumulative" in event.attributes]
    return counts[-1] - counts[0] if len(counts) >= 2 and counts[-1] >= counts[0] else None


def _of_events(events: list[Event], cumulative: float | None) -> list[Evidence]:
    first, last = events[0], events[-1]
    words = {"preempted": "preempted", "retracted": "retracted", "kv_full": "without a free place in the KV cache"}
    how = sorted({str(event.attributes.get("mode")) for event in events if "mode" in event.attributes})
    mode = f" ({', '.join(how)})" if how else ""
    out = [
        Evidence(
            text=f"{len(events)} lines say that requests were {words[first.kind]}{mode}: “{first.text[:110]}”",
            source=str(first.place) + (f" to {last.place.line}" if len(events) > 1 else ""),
            name="events",
            value=float(len(events)),
        )
    ]
    total = next(
        (event.attributes["cumulative"] for event in reversed(events) if "cumulative" in event.attributes), None
    )
    if total is not None:
        rose = (
            f", {cumulative:g} more than in the first line" if cumulative is not None else " since the engine's start"
        )
        out.append(Evidence(f"preemptions counted: {total:g}{rose}", str(last.place), "preemptions", float(total)))
    return out


def _rise(load: Load, facts: list[Evidence]) -> str:
    """How fast the cache filled before it was full, and when it is or was full: (1 - usage) / slope."""
    kv, at = load.get("kv_usage"), load.at
    good = ~np.isnan(kv)
    if not load.timed or good.sum() < 3:
        return ""
    top = int(np.nanargmax(kv))
    begin = top
    while begin > 0 and kv[begin - 1] < kv[begin] - 1e-9:
        begin -= 1
    if top - begin < 2 or kv[top] - kv[begin] < 0.05 or at[top] <= at[begin]:
        return ""
    slope = float(np.polyfit(at[begin : top + 1] - at[begin], kv[begin : top + 1], 1)[0])
    if slope <= 0:
        return ""
    left = (1.0 - float(kv[begin])) / slope
    facts.append(
        Evidence(
            text=f"KV usage rose from {kv[begin]:.1%} to {kv[top]:.1%} in {at[top] - at[begin]:.0f} s: full "
            f"{left:.0f} s after the first of these lines",
            source=f"{load.where(begin)} to {load.where(top)}",
            name="time_to_full",
            value=round(left, 1),
            unit="s",
        )
    )
    return f"(1 - {kv[begin]:.3f}) / {slope:.4f} per s = {left:.0f} s to a full cache"


def _sequences(load: Load, facts: list[Evidence], relation: list[str]) -> float | None:
    """Tokens a second of one running request that no single sequence makes."""
    rate = load.rate
    if np.isnan(rate).all():
        return None
    many = np.flatnonzero(np.nan_to_num(rate) >= ONE_STREAM)
    if not many.size:
        return None
    # The line with the most requests says it best.
    top = int(many[np.argmax(load.get("running")[many])])
    value = float(rate[top])
    made, running = float(load.get("output_tok_s")[top]), float(load.get("running")[top])
    facts.append(
        Evidence(
            text=f"{made:g} tok/s from {running:g} running requests is {value:,.0f} tok/s per request: each is many "
            "sequences (n > 1)",
            source=load.where(top),
            name="tok_s_per_request",
            value=round(value, 1),
            unit="tok/s",
        )
    )
    relation.append(f"{made:g}/{running:g} = {value:,.0f} tok/s per request")
    return value


def _state(load: Load, events: list[Event], facts: list[Evidence], relation: list[str]) -> _State | None:
    """Whether throughput stayed low after the first event although the cache had room again."""
    times = [event.at for event in events if event.at is not None and event.clock is load.clock]
    if not times or not load.timed or not load.has("output_tok_s"):
        return None
    before, after = np.flatnonzero(load.at < times[0]), np.flatnonzero(load.at > times[0])
    idle = load.get("after_idle") == 1
    before = np.array([i for i in before if not idle[i]][-20:], dtype=int)
    after = np.array([i for i in after if not idle[i]], dtype=int)
    if before.size < 2 or after.size < 2:
        return None
    made, rate, kv = load.get("output_tok_s"), load.rate, load.get("kv_usage")
    usual, now = float(np.nanmedian(rate[before])), rate[after]
    if not usual or np.isnan(now).all() or float(np.nanmax(now)) >= LOST * usual:
        return None
    usage = float(np.nanmax(kv[after])) if load.has("kv_usage") else float("nan")
    graph = load.get("cuda_graph")
    lost = bool(np.nanmax(graph[before]) == 1 and np.nanmax(graph[after]) == 0) if load.has("cuda_graph") else False
    running = load.get("running")
    found = _State(
        before=float(made[before[-1]]),
        after=(float(np.nanmin(made[after])), float(np.nanmax(made[after]))),
        usage=usage,
        graph_lost=lost,
        first=int(after[0]),
        last=int(after[-1]),
        running=(float(running[before[-1]]), float(running[after[-1]])),
    )
    facts.append(
        Evidence(
            text=f"{found.before:g} tok/s with {found.running[0]:g} running before it, {found.after[0]:g} to "
            f"{found.after[1]:g} tok/s with {found.running[1]:g} running in all {after.size} lines after it",
            source=f"{load.where(int(before[-1]))} to {load.where(found.last)}",
            name="tok_s_after",
            value=found.after[1],
            unit="tok/s",
        )
    )
    if not math.isnan(usage):
        facts.append(
            Evidence(
                f"KV usage is at most {usage:.0%} after it: there is room", load.where(found.first), "kv_after", usage
            )
        )
    if lost:
        facts.append(Evidence("cuda graph: True before it, False in every line after it", load.where(found.first)))
    relation.append(
        f"{found.before:g} -> {found.after[0]:g}-{found.after[1]:g} tok/s and no recovery at KV {usage:.0%}"
    )
    return found


def _statement(
    kinds: list[str],
    events: list[Event],
    swapped: tuple[Load, int] | None,
    sequences: float | None,
    state: _State | None,
    full: list[Load],
) -> str:
    if state is not None:
        graph = " and decoding goes on without its CUDA graph" if state.graph_lost else ""
        what = "retract" if "retracted" in kinds else "preemption"
        return (
            f"After the {what} at a full KV cache the throughput fell from {state.before:g} to {state.after[0]:g}-"
            f"{state.after[1]:g} tok/s and did not come back although KV usage is at most {state.usage:.0%} "
            f"since{graph}: "
            "that is a state of the engine, not its load."
        )
    head = "The KV cache is too small for what runs: "
    if events or swapped:
        lines = f"{len(events)} lines of preemption" if events else "requests are swapped out"
        also = (
            f"; a running request makes {sequences:,.0f} tok/s, so it is many sequences, and the limit counts requests"
            if sequences is not None
            else ""
        )
        return f"{head}{lines}{also}; what is thrown out is computed or loaded again."
    share = max(float(np.nanmax(one.get("kv_usage"))) for one in full) if full else 0.0
    line = _line_of(full[0]) if full else ""
    return f"{head}it is {share:.1%} full while requests wait{line}." if share else f"{head}requests are preempted."


def _line_of(load: Load) -> str:
    """How many run and wait while it is full."""
    kv, running, waiting = load.get("kv_usage"), load.get("running"), load.get("waiting")
    with np.errstate(invalid="ignore"):
        rows = (kv >= NEARLY_FULL) & np.isfinite(running) & (waiting > 0)
    if not rows.any():
        return ""
    runs, waits = ([float(f(column[rows])) for f in (np.min, np.max)] for column in (running, waiting))
    run = f"{runs[0]:g}" if runs[0] == runs[1] else f"{runs[0]:g} to {runs[1]:g}"
    wait = f"{waits[0]:g}" if waits[0] == waits[1] else f"{waits[0]:g} to {waits[1]:g}"
    return f" ({run} run, {wait} wait)"


def _advice(observed: Observed, kinds: list[str], sequences: float | None, state: _State | None) -> str:
    sglang = "retracted" in kinds or observed.text("engine") == "sglang"
    swap = any(event.attributes.get("mode") == "swap" for event in observed.of_kind("preempted")) or any(
        len(series) and float(np.nanmax(series.values)) > 0 for series in observed.of_series("swapped")
    )
    parts = []
    if state is not None:
        graph = (
            "Look why decoding lost its CUDA graph after the retract (batch size or sequence length beyond "
            "what was captured: "
            "--cuda-graph-max-bs; a flag that stayed set) and report it with these lines; "
            if state.graph_lost
            else "Look for what stayed changed after the event, and report it with these lines; "
        )
        parts.append(graph + "a restart brings the rate back if it is state.")
    if sglang:
        parts.append(
            "Keep the cache from filling: --max-running-requests lower, --schedule-conservativeness 1.3, "
            "--mem-fraction-static higher where memory is free, shorter outputs."
        )
    else:
        parts.append(
            "Admit fewer at once so that their KV fits: max_num_seqs (--max-num-seqs) or the lane's running "
            "limit lower, "
            "--watermark where the version has it, shorter outputs (max_tokens), or more memory for the cache "
            "(--gpu-memory-utilization)."
        )
    if sequences is not None:
        parts.append("Count sequences, not requests: a request with n > 1 (or best_of, beams) takes n times the cache.")
    if swap:
        parts.append(
            "Swapping to the CPU is slow and may stop everything: prefer recomputing (--preemption-mode recompute)."
        )
    return " ".join(parts)
