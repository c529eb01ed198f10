"""SCHED_ADMISSION_DEADLOCK from an engine's load lines: nothing runs, somebody waits, nothing is computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.engine_settings import KV_CAPACITY
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import loads
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["deadlock_in_load"]

TWICE: Final = 2


def deadlock_in_load(cause: Cause, observed: Observed) -> Finding | None:
    """Running 0, waiting > 0, both throughputs 0 in two lines in a row or more."""
    best = None
    for load in loads(observed):
        with np.errstate(invalid="ignore"):
            idle = (load.get("running") == 0) & (load.get("waiting") > 0)
            made, read = load.get("output_tok_s"), load.get("prompt_tok_s")
            stuck = idle & ~(made > 0) & ~(read > 0)
        known = load.has("output_tok_s") and load.has("prompt_tok_s")
        made_in_all = observed.delta("output_tokens")
        if not known and made_in_all is not None:
            if made_in_all > 0:
                continue
            known = True  # scrapes: the counter of tokens stands still over all of them
        for stretch in load.stretches(stuck):
            if stretch.n >= TWICE and (best is None or stretch.n > best[1].n):
                best = (load, stretch, known)
    if best is None:
        return None
    load, stretch, known = best
    waiting, seconds = float(np.nanmax(load.get("waiting")[stretch.rows])), load.seconds(stretch)
    swapped = float(np.nanmax(load.get("swapped")[stretch.rows])) if load.has("swapped") else 0.0
    kv = float(np.nanmax(load.get("kv_usage")[stretch.rows])) if load.has("kv_usage") else None
    longest = observed.number("max_model_len")
    capacity = observed.number(*KV_CAPACITY)
    lasted = f" for {seconds:.0f} s" if not math.isnan(seconds) else ""
    facts = [
        Evidence(
            text=f"running 0, waiting {waiting:g}, both throughputs 0 in {stretch.n} lines in a row{lasted}",
            source=f"{load.where(stretch.first)} to {load.where(stretch.last)}",
            name="stuck_lines",
            value=float(stretch.n),
        )
    ]
    if kv is not None:
        facts.append(
            Evidence(text=f"KV usage {kv:.0%} with nothing running", source=load.where(stretch.last), value=kv)
        )
    missing = [] if known else ["prompt and generation throughput of the same lines"]
    if longest and capacity:
        facts.append(
            Evidence(
                text=f"max_model_len {longest:,.0f} tokens, the KV cache holds {capacity:,.0f}",
                source=observed.source_of("max_model_len"),
                name="max_model_len",
                value=longest,
                unit="tokens",
            )
        )
    still_there = stretch.last == len(load) - 1
    return cause.finding(
        statement=f"The engine's queue is stuck: nothing runs, {waiting:g} requests wait and no token of any kind is "
        f"computed{lasted} ({stretch.n} lines in a row)"
        + (f"; {swapped:g} swapped-out requests cannot come back." if swapped else "."),
        evidence=facts,
        explains_ms=seconds * 1e3 if not math.isnan(seconds) else None,
        relation=f"running = 0, waiting = {waiting:g}, throughput = 0 over {stretch.n} >= {TWICE} lines",
        n=stretch.n,
        advice="Refuse prompts that can never fit the KV cache: max_model_len (--max-model-len) below its "
        "capacity, or a "
        "lane's prompt limit at the gateway; then restart the engine, because the request at the head will not leave "
        "by itself. Find its prompt length: it is the one that does not fit.",
        price="Such prompts get an error at once.",
        verify="tailrace diagnose vllm.log",
        missing=missing,
        rivals=["SCHED_KV_PREEMPTION"] if swapped else [],
        disproof_checked=[
            "no token was produced in these lines" if known else "whether tokens were produced is not told",
            "it lasts to the end of the log" if still_there else "it ended later in the log",
        ],
    )
