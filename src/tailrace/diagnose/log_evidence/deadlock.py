"""SCHED_ADMISSION_DEADLOCK from an engine's load lines: nothing runs, somebody waits, nothing is computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.asked import number_stated
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.engine_settings import KV_CAPACITY
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.load import loads
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["deadlock_in_load", "deadlock_stated", "never_fits", "stated_load"]

TWICE: Final = 2
ADVICE: Final = (
    "Refuse (reject) prompts that can never fit the KV cache: max_model_len (--max-model-len) below its capacity, or a "
    "lane's prompt limit at the gateway; then restart the engine, because the request at the head will not leave "
    "by itself. Find its prompt length: it is the one that does not fit."
)
_LOAD: Final = {
    "running": r"^(?:engine )?(?:num )?(?:requests )?running(?: reqs| requests)?$",
    "waiting": r"^(?:engine )?(?:num )?(?:requests )?(?:waiting|pending|queued)(?: reqs| requests)?$|"
    r"^queue (?:depth|reqs)$",
    "prompt": r"^(?:avg )?(?:prompt|prefill|input) (?:throughput|tok s|tokens s)(?: tok s)?$",
    "made": r"^(?:avg )?(?:gen|generation|output|decode) (?:throughput|tok s|tokens s)(?: tok s)?$|^tok s$",
}


def deadlock_in_load(cause: Cause, observed: Observed) -> Finding | None:
    """Running 0, waiting > 0, both throughputs 0 in two lines in a row or more."""
    best = None
    made_in_all = observed.delta("output_tokens")
    for load in loads(observed):
        with np.errstate(invalid="ignore"):
            idle = (load.get("running") == 0) & (load.get("waiting") > 0)
            made, read = load.get("output_tok_s"), load.get("prompt_tok_s")
            stuck = idle & ~(made > 0) & ~(read > 0)
        known = load.has("output_tok_s") and load.has("prompt_tok_s")
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
    facts += (never := never_fits(observed))
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
        + (f"; {never[0].text}" if never else "")
        + (f"; {swapped:g} swapped-out requests cannot come back." if swapped else "."),
        evidence=facts,
        explains_ms=seconds * 1e3 if not math.isnan(seconds) else None,
        relation=f"running = 0, waiting = {waiting:g}, throughput = 0 over {stretch.n} >= {TWICE} lines",
        n=stretch.n,
        advice=ADVICE,
        price="Such prompts get an error at once.",
        verify="tailrace diagnose vllm.log",
        missing=missing,
        rivals=["SCHED_KV_PREEMPTION"] if swapped else [],
        disproof_checked=[
            "no token was produced in these lines" if known else "whether tokens were produced is not told",
            "it lasts to the end of the log" if still_there else "it ended later in the log",
        ],
    )


def never_fits(observed: Observed) -> list[Evidence]:
    """The longest prompt that is known, where it is larger than the whole KV cache; else what the cache holds."""
    capacity = observed.number(*KV_CAPACITY)
    if not capacity:
        return []
    longest, place = 0.0, ""
    for rows in observed.table("requests"):
        tokens = rows.numbers("prompt_tokens")
        if rows.has("prompt_tokens") and float(np.nanmax(tokens)) > longest:
            longest, place = float(np.nanmax(tokens)), str(rows.line_of(int(np.nanargmax(tokens))))
    stated = number_stated(observed, r"(?:longest |head )?prompt tokens|prompt len|input tokens|request tokens")
    if stated is not None and stated.number and stated.number > longest:
        longest, place = stated.number, str(stated.place) or "form"
    if longest > capacity:
        return [
            Evidence(
                f"a prompt of {longest:.0f} tokens is larger than the whole KV cache ({capacity:.0f} tokens) and never "
                "fits",
                place, "prompt_tokens", longest, "tokens",
            )
        ]  # fmt: skip
    return []


def stated_load(observed: Observed) -> dict[str, Setting]:
    """Running, waiting, prompt and generation rate as a form states them, by these words."""
    found = {name: number_stated(observed, words) for name, words in _LOAD.items()}
    return {name: item for name, item in found.items() if item is not None}


def deadlock_stated(cause: Cause, observed: Observed) -> Finding | None:
    """The same from a form: running 0, some wait, both rates 0, and for how long."""
    told = stated_load(observed)
    running, waiting = told.get("running"), told.get("waiting")
    if running is None or waiting is None or running.number != 0 or not waiting.number or observed.series:
        return None
    rates = [told[name] for name in ("prompt", "made") if name in told]
    if any(item.number for item in rates):
        return None
    lasted = number_stated(observed, r"duration|for s$|^lasted|window s|^stuck|minutes|^for\b|interval|lines")
    never = never_fits(observed)
    missing = []
    if len(rates) < TWICE:
        missing.append("prompt and generation throughput of the same time")
    if lasted is None:
        missing.append("for how long it stands so: two readings in a row at least")
    if not never:
        missing.append("the prompt length at the head of the queue, and how many tokens the KV cache holds")
    return cause.finding(
        statement=f"The engine's queue is stuck: nothing runs, {waiting.number:g} requests wait and no token is "
        "computed" + (f"; {never[0].text}." if never else "."),
        evidence=[
            *(evidence_of_setting(item) for item in (running, waiting, *rates)),
            *([evidence_of_setting(lasted)] if lasted is not None else []),
            *never,
        ],
        explains_ms=None,
        relation=f"running = 0, waiting = {waiting.number:g}" + (", throughput = 0" if rates else ""),
        n=1,
        advice=ADVICE,
        price="Such prompts get an error at once.",
        verify="tailrace diagnose vllm.log",
        missing=missing,
        rivals=[],
        disproof_checked=["no token was produced meanwhile"] if len(rates) == TWICE else [],
    )
