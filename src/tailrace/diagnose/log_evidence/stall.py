"""ENGINE_STALL from an engine's load lines: requests run, no prompt is computed, and hardly a token comes out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.kv_cache import KV_CLEAR
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import Load, Stretch, loads
from tailrace.diagnose.speech_evidence.encoder_cache import ENCODER_FULL, encoder_cache
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["stall_in_load"]

SLOW: Final = 0.1
"""Of the usual rate of one stream."""
CRAWL: Final = 0.5
"""Tokens a second and stream below which it is slow where the log shows no usual rate."""
TWICE: Final = 2
"""Lines in a row: the first line after idle time may only look slow."""
KV_GROWS: Final = 0.02


class _Stall(NamedTuple):
    load: Load
    stretch: Stretch
    usual: float | None
    prefill: str
    """Why a prefill may have been in progress; empty when that was excluded."""

    @property
    def seconds(self) -> float:
        return self.load.seconds(self.stretch)


def stall_in_load(cause: Cause, observed: Observed) -> Finding | None:
    """Running > 0, prompt throughput 0, KV not full, tokens of a stream far below the usual, in two lines or more."""
    found = [stall for load in loads(observed) if (stall := _stall(load)) is not None]
    if not found:
        return None
    worst = max(found, key=lambda one: (one.stretch.n, one.seconds))
    load, stretch = worst.load, worst.stretch
    worst_at = stretch.first + int(np.nanargmin(load.rate[stretch.rows]))
    # Of equally slow lines the one with the most streams says it best.
    slowest = load.rate[worst_at]
    alike = [i for i in range(stretch.first, stretch.last + 1) if load.rate[i] == slowest]
    at = max(alike, key=lambda i: float(load.get("running")[i]))
    running, made = float(load.get("running")[at]), float(load.get("output_tok_s")[at])
    rate = float(load.rate[at])
    kv = float(np.nanmax(load.get("kv_usage")[stretch.rows])) if load.has("kv_usage") else None
    rivals, checked, missing = _weigh(observed, worst)
    if kv is None:
        missing.append("KV usage in the same lines")
    span = f"{stretch.n} lines in a row" + (f" ({worst.seconds:.0f} s)" if not math.isnan(worst.seconds) else "")
    relation = f"{made:g}/{running:g} = {rate:.2f} tok/s per stream"
    relation += f", usual {worst.usual:.1f}" if worst.usual is not None else ""
    facts = [
        Evidence(
            text=f"{made:g} tok/s for {running:g} running requests = {rate:.2f} tok/s per stream, prompt throughput 0",
            source=load.where(at),
            name="rate_per_stream",
            value=round(rate, 3),
            unit="tok/s",
        ),
        Evidence(text=f"so in {span}", source=f"{load.where(stretch.first)} to {load.where(stretch.last)}"),
    ]
    if kv is not None:
        facts.append(
            Evidence(
                text=f"KV usage at most {kv:.0%} meanwhile", source=load.where(at), name="kv_usage", value=round(kv, 4)
            )
        )
    if worst.usual is not None:
        facts.append(
            Evidence(
                text=f"other lines of this log show {worst.usual:.1f} tok/s per stream",
                source=load.place.source,
                name="usual_rate",
                value=round(worst.usual, 2),
                unit="tok/s",
            )
        )
    waiting = load.get("waiting")[stretch.rows]
    if load.has("waiting") and float(np.nanmax(waiting)) > 0:
        facts.append(Evidence(text=f"up to {np.nanmax(waiting):g} requests wait behind it", source=load.where(at)))
    facts += _health(observed)
    full = "" if kv is None else f" at KV {kv:.0%}"
    return cause.finding(
        statement=f"The engine stands still in a step: {running:g} requests run{full} and {rate:.2f} tok/s per stream "
        f"come out, in {span}, while no prompt is computed. That is no lack of capacity.",
        evidence=facts,
        explains_ms=worst.seconds * 1e3 if not math.isnan(worst.seconds) else None,
        relation=relation,
        n=stretch.n,
        advice="Take a stack dump of the engine process and of every worker while it lasts (py-spy dump --pid PID, "
        "twice, some seconds apart) and see which frame does not move: a kernel being compiled, a collective that "
        "waits for one rank, a grammar, a lock. Replicas, limits and a larger cache do not help. Take the progress of "
        "the token counter as liveness: /health answers 200 meanwhile.",
        price="A dump stops the process for some milliseconds.",
        verify=(
            "tailrace diagnose vllm.log dump.txt  # py-spy dump --pid $(pgrep -f EngineCore | head "
            "-1) > dump.txt, while it lasts"
        ),
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
        action=Action.COLLECT,
    )


def _stall(load: Load) -> _Stall | None:
    running, prompt, kv = load.get("running"), load.get("prompt_tok_s"), load.get("kv_usage")
    rate = load.rate
    with np.errstate(invalid="ignore"):
        working = (running > 0) & ~np.isnan(rate)
        # A computed prompt shows in the prompt throughput; a full cache is another cause.
        open_ = working & (prompt == 0) & ~(kv >= KV_CLEAR)
        still = open_ & (rate < CRAWL)
        others = rate[working & ~still & (rate > 0)]
        usual = float(np.percentile(others, 75)) if others.size else None
        if usual is not None:
            still = open_ & (rate < SLOW * usual)
    stretches = [one for one in load.stretches(still) if one.n >= TWICE]
    if not stretches:
        return None
    longest = max(stretches, key=lambda one: one.n)
    if usual is not None and usual < CRAWL:
        usual = None
    return _Stall(load, longest, usual, _prefill(load, longest))


def _prefill(load: Load, stretch: Stretch) -> str:
    """Some versions count a prompt's tokens only when all of it is computed: a long prefill then looks like a stall,
    with a high number in the line after it.
    """
    prompt, interval = load.get("prompt_tok_s"), load.interval
    after = stretch.last + 1
    kv = load.get("kv_usage")[stretch.rows]
    grew = float(kv[-1] - kv[0]) if load.has("kv_usage") else 0.0
    same = np.ptp(load.get("running")[stretch.rows]) == 0
    if grew >= KV_GROWS and same:
        return f"KV usage rose by {grew:.1%} meanwhile, as a long prefill makes it"
    if after >= len(load) or not load.timed or not prompt[after] > 0:
        return ""
    tokens, seconds = float(prompt[after]) * interval, load.seconds(stretch)
    elsewhere = np.delete(prompt, np.arange(max(stretch.first, 0), after + 1))
    best = float(np.nanmax(elsewhere)) if elsewhere.size and not np.isnan(elsewhere).all() else 0.0
    if best <= 0:
        return f"{tokens:,.0f} prompt tokens are counted right after it, and no other line tells the prefill rate"
    if tokens / best >= 0.5 * seconds:
        return f"the {tokens:,.0f} prompt tokens counted right after it take {tokens / best:.0f} s at {best:,.0f} tok/s"
    return ""


def _weigh(observed: Observed, stall: _Stall) -> tuple[list[str], list[str], list[str]]:
    """(rivals, what was checked, what is missing)."""
    load, stretch = stall.load, stall.stretch
    rivals: list[str] = []
    checked = [f"prompt throughput 0 in all {stretch.n} lines", f"not one line only ({stretch.n} in a row)"]
    missing: list[str] = []
    if stall.prefill:
        rivals.append("SCHED_PREFILL_STEALS_DECODE")
        missing.append("the prompt lengths of that time")
        checked.append(f"a prefill is not excluded: {stall.prefill}")
    else:
        checked.append("no prefill is counted right after it that would fill the time")
    encoder = encoder_cache(observed)
    if encoder is not None and encoder[0] >= ENCODER_FULL:
        rivals.append("ASR_SILENT_HANG")
        checked.append("the encoder cache is full as well")
    begin, end = float(load.at[stretch.first]) - (load.interval if load.timed else 0.0), float(load.at[stretch.last])
    for kind, code in (
        ("jit", "COMPUTE_JIT"),
        ("retracted", "SCHED_KV_PREEMPTION"),
        ("preempted", "SCHED_KV_PREEMPTION"),
    ):
        inside = [
            event
            for event in observed.of_kind(kind)
            if event.at is not None and event.clock is load.clock and begin <= event.at <= end and load.timed
        ]
        if inside:
            rivals.append(code)
            checked.append(f"{len(inside)} {kind} lines lie inside it")
    words = " ".join(str(item.value) for item in observed.settings if item.name in ("structured_output", "grammar"))
    if words and words.lower() not in ("false", "none", "0", "no"):
        rivals.append("MIX_STRUCTURED_OUTPUT")
    if float(np.nanmax(load.get("running")[stretch.rows])) <= 1:
        missing.append("a second stream that stands still as well: one alone may wait for its own input")
    if stall.usual is None:
        missing.append("a line with the usual rate of a stream")
    return list(dict.fromkeys(rivals)), checked, missing


def _health(observed: Observed) -> list[Evidence]:
    out = []
    for rows in observed.table("access"):
        status = rows.numbers("status")
        for index, path in enumerate(rows.texts("path")):
            if status[index] == 200 and path.rstrip("/").endswith(("health", "ping", "healthz", "livez")):
                text = f"{path} was answered with 200: that is no proof of progress"
                out.append(Evidence(text=text, source=str(rows.line_of(index))))
                break
    return out
