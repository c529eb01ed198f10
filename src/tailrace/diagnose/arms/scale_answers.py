"""The other two questions before a scale-out, and its preconditions, as far as tables and forms answer them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from tailrace.diagnose.arms.asked import TAIL_FIRST, as_share, condition, figure, number_stated, per_request, told
from tailrace.diagnose.arms.caps import CapSweep, cap_sweep
from tailrace.diagnose.arms.checks import Answer, Check
from tailrace.diagnose.arms.pairs import stated_same
from tailrace.diagnose.arms.replicas import spreads
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.limits import TPOT_MS
from tailrace.diagnose.observed import Observed

__all__ = ["answers", "preconditions"]

SKEWED: Final = 2.0
HIT: Final = 0.1
CLOCK: Final = 0.03


def answers(observed: Observed) -> tuple[Check, Check]:
    """Queue or execution; prefill or decode."""
    return _queue(observed), _phase(observed)


def _queue(observed: Observed) -> Check:
    name = "queue or execution"
    for arm in observed.arms:
        queue, ttft = figure(arm, "queue", stats=TAIL_FIRST), figure(arm, "ttft", stats=TAIL_FIRST)
        if queue is not None and ttft is not None and queue.stat == ttft.stat and ttft.value:
            share = queue.value / ttft.value
            return Check(name, Answer.HOLDS, f"{share:.0%} of TTFT is queue, the rest execution ({arm.name})")
    for arm in observed.arms:
        load, rate, ttft = (
            condition(arm, r"\bconcurrency\b"),
            figure(arm, "req_s"),
            figure(arm, "ttft", stats=("mean", "p50", "")),
        )
        if load is not None and rate is not None and rate.value and ttft is not None:
            share = ttft.value / 1000.0 / (load / rate.value)
            words = (
                f"TTFT is {share:.0%} of the {load / rate.value:.2f} s in the system (Little's law); queue and "
                "prefill in it are not split"
            )
            return Check(name, Answer.HOLDS, words)
    offered = number_stated(observed, r"request rate|offered rps|offered rate")
    for arm in observed.arms:
        wanted, done = figure(arm, "offered_rps"), figure(arm, "completed_rps", "req_s")
        asked = wanted.value if wanted is not None else offered.number if offered is not None else None
        if asked and done is not None and done.value and asked != float("inf"):
            full = "queue: more is offered" if asked > 1.1 * done.value else "execution: what is offered is served"
            return Check(name, Answer.HOLDS, f"{full} ({asked:g}/s offered, {done.value:g}/s completed)")
    waiting = [
        float(np.nanmax(item.values))
        for item in observed.of_series("waiting")
        if len(item) and np.isfinite(item.values).any()
    ]
    if waiting:
        return Check(name, Answer.HOLDS, f"up to {max(waiting):g} requests wait in the engine")
    return Check(name, Answer.UNKNOWN, "queue time beside TTFT, or offered and completed rate (queue or execution?)")


def _phase(observed: Observed) -> Check:
    name = "prefill or decode"
    for arm in observed.arms:
        prefill, decode = (figure(arm, what, stats=TAIL_FIRST) for what in ("prefill", "decode"))
        if prefill is not None and decode is not None and prefill.stat == decode.stat:
            more = "prefill" if prefill.value > decode.value else "decode"
            return Check(
                name,
                Answer.HOLDS,
                f"{more} (prefill {number(prefill.value, 'ms')}, decode {number(decode.value, 'ms')})",
            )
        queue, ttft, tpot = (
            figure(arm, "queue", stats=TAIL_FIRST),
            figure(arm, "ttft", stats=TAIL_FIRST),
            figure(arm, "tpot", "itl", stats=TAIL_FIRST),
        )
        out = per_request(arm, "output_tokens")
        if queue is None or ttft is None or tpot is None or out is None or queue.stat != ttft.stat:
            continue
        before, after = ttft.value - queue.value, tpot.value * max(out[0] - 1, 0)
        more = "prefill" if before > after else "decode"
        return Check(
            name, Answer.HOLDS, f"{more} (TTFT - queue {number(before, 'ms')}, TPOT x (out - 1) {number(after, 'ms')})"
        )
    stated = number_stated(observed, r"prefill share|decode share")
    if stated is not None and stated.number is not None:
        return Check(name, Answer.HOLDS, f"{stated.name.replace('_', ' ')} {stated.number:g}")
    return Check(name, Answer.UNKNOWN, "queue, prefill and decode time apart (prefill or decode?)")


def preconditions(observed: Observed) -> tuple[Check, ...]:
    """What must hold beside the three questions."""
    return (
        _cap(observed),
        _skew(observed),
        _preemptions(observed),
        _hits(observed),
        _grammar(observed),
        _clock(observed),
    )


def _cap(observed: Observed) -> Check:
    name = "cap"
    swept = cap_sweep(observed)
    if swept is not None and swept.gain is not None:
        return _of_sweep(name, swept)
    target = number_stated(observed, r"(?:tpot|itl) (?:target|slo|objective)|target tpot")
    tpots = [
        value for arm in observed.arms if (value := figure(arm, "tpot", "itl", stats=("p50", "mean", ""))) is not None
    ]
    bound = target.number if target is not None and target.number else TPOT_MS
    if tpots and max(item.value for item in tpots) > bound:
        return Check(
            name,
            Answer.HOLDS,
            f"TPOT {number(max(item.value for item in tpots), 'ms')} is over {bound:g} ms already: a larger batch "
            "makes it worse",
        )
    return Check(
        name, Answer.UNKNOWN, "a sweep of the cap (max_num_seqs) under the same load: throughput and TPOT at each"
    )


def _of_sweep(name: str, swept: CapSweep) -> Check:
    if swept.underbatched:
        return Check(name, Answer.FAILS, f"throughput still rises with the cap ({swept.relation}): raise it first")
    return Check(name, Answer.HOLDS, f"raising the cap gains nothing ({swept.relation})")


def _skew(observed: Observed) -> Check:
    name = "skew"
    known = spreads(observed)
    if known:
        worst = max(item.skew for item in known)
        if worst >= SKEWED:
            return Check(name, Answer.FAILS, f"the replicas are unevenly loaded (skew {worst:.3g})")
        return Check(name, Answer.HOLDS, f"skew {worst:.3g} over {len(known[0].names)} replicas")
    stated = number_stated(observed, r"^skew|skew (?:index|ratio)?$")
    if stated is not None and stated.number is not None:
        bad = stated.number >= SKEWED
        return Check(name, Answer.FAILS if bad else Answer.HOLDS, f"skew {stated.number:g}")
    count = number_stated(observed, r"^(?:replicas|data parallel|instances|nodes)$")
    if count is not None and count.number == 1:
        return Check(name, Answer.HOLDS, "there is one replica")
    return Check(name, Answer.UNKNOWN, "requests in flight per replica (skew)")


def _preemptions(observed: Observed) -> Check:
    name = "preemptions"
    counts = [value.value for arm in observed.arms if (value := figure(arm, "preemptions")) is not None]
    delta = observed.delta("preemptions")
    counts += [] if delta is None else [delta]
    stated = number_stated(observed, r"preemptions")
    counts += [stated.number] if stated is not None and stated.number is not None else []
    if not counts:
        return Check(name, Answer.UNKNOWN, "the preemption counter of the window (two scrapes of /metrics)")
    if max(counts) > 0:
        return Check(
            name, Answer.FAILS, f"{max(counts):g} preemptions: the KV cache is too small for what runs at once"
        )
    return Check(name, Answer.HOLDS, "0 preemptions")


def _hits(observed: Observed) -> Check:
    name = "prefix hits"
    offered = number_stated(observed, r"repeat ratio|reuse|offered hit")
    seen = [value.value for arm in observed.arms if (value := figure(arm, "prefix_hit")) is not None]
    stated = number_stated(observed, r"^(?:prefix )?hit(?: rate)?(?: pct)?$|prefix hit")
    if stated is not None and stated.number is not None:
        seen.append(as_share(stated.number, stated.unit))
    if offered is not None and offered.number is not None:
        share = as_share(offered.number, offered.unit)
        if share <= 0:
            return Check(name, Answer.HOLDS, "no prompt repeats another")
        if seen and min(seen) < share - HIT:
            return Check(name, Answer.FAILS, f"{min(seen):.0%} of the prompt tokens hit, {share:.0%} could")
        if seen:
            return Check(name, Answer.HOLDS, f"{min(seen):.0%} hit, {share:.0%} offered")
    if "random" in observed.text("dataset_name", "dataset", "bench_dataset_name").lower():
        return Check(name, Answer.HOLDS, "random prompts: nothing to hit")
    return Check(name, Answer.UNKNOWN, "prefix hits against what repeats in the offered prompts")


def _grammar(observed: Observed) -> Check:
    name = "grammar share"
    if _same(observed, r"grammar|schema|structured|\bmix\b|workload|trace"):
        return Check(name, Answer.HOLDS, "the request mix is stated to be equal")
    item = next(
        (item for item in told(observed) if re.search(r"structured|grammar|json schema", item.name.replace("_", " "))),
        None,
    )
    if item is not None:
        if item.value in (False, 0, "no", "none", "off"):
            return Check(name, Answer.HOLDS, "no request has a grammar")
        if "share" in item.name and "chang" in item.name:
            return Check(
                name, Answer.FAILS if item.value else Answer.HOLDS, f"{item.name.replace('_', ' ')}: {item.value}"
            )
    return Check(name, Answer.UNKNOWN, "the share of requests with a grammar (JSON schema) before and now")


def _clock(observed: Observed) -> Check:
    name = "clock"
    if _same(observed, r"clock|frequency"):
        return Check(name, Answer.HOLDS, "GPU clocks are stated to be equal")
    for series in observed.of_series("sm_clock"):
        values = series.values[np.isfinite(series.values)]
        if values.size > 1:
            fall = 1.0 - float(values[-1]) / float(values.max())
            words = f"SM clock {values.max():.0f} -> {values[-1]:.0f} MHz"
            return Check(name, Answer.FAILS if fall > CLOCK else Answer.HOLDS, words)
    stated = number_stated(observed, r"clock (?:drop|fall)")
    if stated is not None and stated.number is not None:
        return Check(name, Answer.FAILS if stated.number > 0 else Answer.HOLDS, f"clock drop {stated.number:g}")
    return Check(name, Answer.UNKNOWN, "SM clock and power under the load (nvidia-smi)")


def _same(observed: Observed, words: str) -> bool:
    same: Sequence[str] = stated_same(observed)
    return any(re.search(words, item, re.IGNORECASE) for item in same)
