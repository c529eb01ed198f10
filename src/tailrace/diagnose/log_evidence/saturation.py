"""SCHED_QUEUE_SATURATION from an engine's load lines: waiting grows while running stays at its most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.engine_settings import RUNNING_LIMIT
from tailrace.diagnose.kv_cache import KV_FULL, KV_ROOM, thrown_out
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import Load, loads
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.stats.rank_correlation import spearman

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["saturation_in_load"]

AT_CAP: Final = 0.9
"""Of the most that ran: as good as full."""
LEAST: Final = 4
"""Lines, for a growth to be one."""
GROWS: Final = 0.6
"""Rank correlation of waiting with time."""
STEADY: Final = 0.5
"""Share of the lines in which requests wait, for a queue that does not grow but never ends."""


def saturation_in_load(cause: Cause, observed: Observed) -> Finding | None:
    """A queue that grows, or never empties, on an engine that runs as many as it ever does."""
    found = [(load, rows) for load in loads(observed) if (rows := _queued(load)) is not None]
    if not found or thrown_out(observed):
        return None
    load, rows = max(found, key=lambda one: float(np.nansum(one[0].get("waiting")[one[1]])))
    waiting, running = load.get("waiting"), load.get("running")
    kv = float(np.nanmax(load.get("kv_usage")[rows])) if load.has("kv_usage") else None
    if kv is not None and kv >= KV_FULL:
        return None
    first, last, most = float(waiting[rows[0]]), float(waiting[rows[-1]]), float(np.nanmax(waiting))
    cap = float(np.nanmax(running))
    limit = observed.number(*RUNNING_LIMIT)
    grows = last > first
    served = float(np.nanmedian(load.get("output_tok_s")[rows])) if load.has("output_tok_s") else None
    facts = [
        Evidence(
            text=f"waiting goes from {first:g} to {last:g} (most {most:g}) over {rows.size} lines",
            source=f"{load.where(int(rows[0]))} to {load.where(int(rows[-1]))}",
            name="waiting",
            value=most,
        ),
        Evidence(text=f"running stays at {cap:g}", source=load.place.source, name="running", value=cap),
    ]
    if served is not None:
        facts.append(
            Evidence(f"{served:g} tok/s come out meanwhile", load.place.source, "output_tok_s", served, "tok/s")
        )
    checked = ["no line of preemption"]
    missing = ["requests one by one (send, first token), or arrivals and completions: how long they waited"]
    at_limit = limit is not None and cap >= 0.97 * limit
    room = kv is not None and kv < KV_ROOM and at_limit
    if kv is not None:
        facts.append(Evidence(f"KV usage at most {kv:.0%} in these lines", load.place.source, "kv_usage", round(kv, 4)))
        checked.append(f"KV usage at most {kv:.0%}")
    if limit is not None:
        facts.append(Evidence(f"max_num_seqs is {limit:g}", observed.source_of(*RUNNING_LIMIT), "max_num_seqs", limit))
    per = float(np.nanmedian(load.rate[rows])) if not np.isnan(load.rate[rows]).all() else None
    if per:
        facts.append(
            Evidence(f"{per:.1f} tok/s per stream", load.place.source, "rate_per_stream", round(per, 2), "tok/s")
        )
    return cause.finding(
        statement=f"Requests wait for the scheduler: {most:g} wait while {cap:g} run"
        + (f", and the queue grew from {first:g} to {last:g}." if grows else ", and the queue does not end."),
        evidence=facts,
        explains_ms=None,
        relation=f"waiting {first:g} -> {last:g} while running = {cap:g}"
        + (f" (limit {limit:g})" if limit is not None else ""),
        n=int(rows.size),
        advice=f"Raise max_num_seqs (now {limit:g}): KV usage is {kv:.0%}, so more fit; watch TPOT while you do."
        if room and kv is not None
        else "First the limits: a sweep of max_num_seqs with TPOT beside it (is it flat, raise the limit). Where TPOT "
        "rises with the batch, shed load at the gateway (queued limit and 429) or shorten outputs, and only then add "
        "a replica, which takes minutes to load. A longer timeout only hides the queue.",
        price="TPOT rises a little with the batch."
        if room
        else "Refused requests must be tried again by their clients.",
        verify="tailrace bench http://localhost:8000 --sweep rate=1,2,4,8 --duration 30",
        missing=missing,
        disproof_checked=checked,
        action=Action.TUNE if room else Action.SHED,
    )


def _queued(load: Load) -> np.ndarray | None:
    """The readings of a queue that grows or does not end; `None` where there is none."""
    waiting, running = load.get("waiting"), load.get("running")
    if len(load) < LEAST or not load.has("waiting") or not load.has("running"):
        return None
    cap = float(np.nanmax(running))
    if cap < 1:
        return None
    with np.errstate(invalid="ignore"):
        held = np.flatnonzero((waiting > 0) & (running >= AT_CAP * cap) & (load.get("output_tok_s") > 0))
    if held.size < LEAST or float(np.nanmax(waiting)) < max(3.0, 0.1 * cap):
        return None
    rows = np.arange(held[0], held[-1] + 1)
    grew = waiting[held[-1]] - waiting[held[0]] >= max(3.0, 0.25 * cap)
    trend = spearman(np.arange(held.size, dtype=np.float64), waiting[held])
    steady = held.size >= STEADY * len(load) and float(np.median(waiting[held])) >= 0.5 * cap
    return rows if (grew and trend >= GROWS) or steady else None
