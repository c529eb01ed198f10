"""A queue that does not empty, in gauges: requests wait all the time, and as many run as ever."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.engine_settings import RUNNING_LIMIT
from tailrace.diagnose.kv_cache import KV_FULL, KV_ROOM, thrown_out
from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.series_evidence.shared_gaps import at_times
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["over_engines", "saturation_in_series"]

LEAST: Final = 3
"""Readings with a queue."""
MOST_OF: Final = 0.6
"""Of the readings must have a queue."""
FLAT: Final = 0.15
STANDS: Final = 0.1
"""Of the most that came out: less than this while requests wait, and nothing is served."""


def saturation_in_series(cause: Cause, observed: Observed) -> Finding | None:  # noqa: PLR0911  (one disproof each)
    """Waiting above 0 through the window, running at its plateau, the KV cache with room, no preemption."""
    waiting = over_engines(observed, "waiting")
    running = over_engines(observed, "running")
    if waiting is None or running is None:
        return None
    queued = np.flatnonzero(np.nan_to_num(waiting.values, nan=0.0) > 0)
    several = waiting.axis == "time" and len(waiting) >= LEAST
    if queued.size < (LEAST if several else 1) or queued.size < MOST_OF * len(waiting):
        return None
    if (observed.delta("restarts") or 0) > 0:
        return None
    ran = at_times(running, waiting)[queued]
    plateau = float(np.nanmax(ran))
    if plateau < 1 or float(np.nanmin(ran)) < (1 - FLAT) * plateau:
        return None
    kv = max((float(np.nanmax(item.values)) for item in observed.of_series("kv_usage") if len(item)), default=None)
    preempted = observed.delta("preemptions")
    made = over_engines(observed, "output_tok_s")
    if made is not None:
        usual, then = float(np.nanmax(made.values)), np.nan_to_num(at_times(made, waiting)[queued])
        if float(np.median(then)) <= STANDS * usual:
            return None  # nothing is served meanwhile: it stands still
    if _stands_at_last(observed):
        return None  # the counter of tokens stood still in the last window: it is no rate that lacks
    if preempted or thrown_out(observed) or (kv is not None and kv >= KV_FULL):
        return None  # memory limits it, not the rate
    depth = float(np.nanmedian(waiting.values[queued]))
    if depth < 0.1 * plateau and depth < 2:
        return None
    return _found(cause, observed, waiting, running, plateau, depth, kv, several=several)


def _stands_at_last(observed: Observed) -> bool:
    """Whether no engine counted a token in the last window between scrapes."""
    made = [item for item in observed.of_counter("output_tokens") if not item.lifetime]
    last = max((item.order for item in made), default=-1)
    return bool(made) and all(item.delta == 0 for item in made if item.order == last)


def over_engines(observed: Observed, name: str) -> Series | None:
    """A gauge over all its engines, where they were read at the same moments."""
    found = [item for item in observed.of_series(name) if item.axis in ("time", "scrape") and len(item)]
    if not found:
        return None
    # SGLang tells the same gauge in two kinds of line: that is one engine, not two, and tensor ranks tell it again.
    engines: dict[tuple[str, str], Series] = {}
    for item in found:
        key = (item.labels.get("engine", ""), item.labels.get("replica") or item.labels.get("instance") or "")
        known = engines.get(key) if "line" in item.labels else None
        if "line" not in item.labels:
            engines[f"{len(engines)}", ""] = item
        elif known is None or len(item) > len(known):
            engines[key] = item
    found = list(engines.values())
    first = found[0]
    total = np.nansum([at_times(item, first) for item in found], axis=0)
    return Series(
        name=name, axis=first.axis, at=first.at, values=total, clock=first.clock, lines=first.lines, place=first.place
    )


def _found(
    cause: Cause,
    observed: Observed,
    waiting: Series,
    running: Series,
    plateau: float,
    depth: float,
    kv: float | None,
    *,
    several: bool,
) -> Finding:
    limit = observed.number(*RUNNING_LIMIT)
    growth = float(waiting.values[-1] - waiting.values[0]) if several else 0.0
    rising = _tpot_rises(observed)
    missing = []
    if not several:
        missing.append("waiting and running over time: a queue at one or two moments may be a burst")
    if not _rates_known(observed):
        missing.append("how many requests came and how many were served (send stamps, or two scrapes with their times)")
    if kv is None:
        missing.append("KV usage at the same time (a full cache would make it SCHED_KV_PREEMPTION)")
    at_limit = limit is not None and plateau >= 0.98 * limit
    queue = f"{depth:.0f}"
    evidence = [
        Evidence(
            text=f"waiting {queue} (median of {len(waiting)} readings, {waiting.values[0]:.0f} at first, "
            f"{waiting.values[-1]:.0f} at last)",
            source=str(waiting.line_of(len(waiting) - 1)),
            name="waiting",
            value=depth,
        ),
        Evidence(
            text=f"running stays at {plateau:.0f}",
            source=str(running.line_of(len(running) - 1)),
            name="running",
            value=plateau,
        ),
    ]
    if kv is not None:
        evidence.append(
            Evidence(
                text=f"KV usage at most {kv * 100:.0f} %",
                source=str(observed.of_series("kv_usage")[0].place),
                name="kv_usage",
                value=kv,
            )
        )
    if limit is not None:
        evidence.append(
            Evidence(
                text=f"at most {limit:.0f} may run at once (max_num_seqs)",
                source=observed.source_of(*RUNNING_LIMIT),
                name="max_num_seqs",
                value=limit,
            )
        )
    tune = at_limit and kv is not None and kv < KV_ROOM and rising is not True
    advice = (
        f"The limit of {limit:.0f} is reached while the KV cache has room: raise max_num_seqs and watch TPOT before "
        "anything "
        "is bought. If TPOT rises with it, shed (429 with Retry-After at the gateway) or scale."
        if tune
        else "Shed what cannot be served in time (429 with Retry-After at the gateway, a bounded queue) or add a "
        "replica; a "
        "longer timeout only hides it. Shorten prompts and outputs first: retrieve fewer chunks, cap max_tokens."
    )
    return cause.finding(
        statement=f"More comes than is served: {queue} requests wait all the time while running stays at {plateau:.0f}"
        + (f", and the queue grew by {growth:.0f}." if growth > 0 else "."),
        evidence=[
            *evidence,
            *([Evidence(text=f"the queue grew by {growth:.0f}", source=str(waiting.place))] if growth > 0 else []),
        ],
        explains_ms=None,
        relation=f"waiting {queue} > 0 at running {plateau:.0f}"
        + (f" of {limit:.0f}" if limit is not None else "")
        + (f", KV {kv * 100:.0f} % < {KV_FULL * 100:.0f} %" if kv is not None else ""),
        n=len(waiting),
        advice=advice,
        price="A higher cap raises ITL a little; shedding refuses requests; a replica costs money and takes minutes "
        "to start.",
        verify=("tailrace bench http://localhost:8000 --find-rate --objective ttft_p99=2s --out highest.run"),
        missing=missing,
        disproof_checked=[
            "the queue is not 0",
            "no preemption and room in the KV cache" if kv is not None else "KV not known",
        ],
        action=Action.TUNE if tune else Action.SCALE if rising else Action.SHED,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _rates_known(observed: Observed) -> bool:
    """Whether somebody says what was offered, and what was served."""
    if observed.table("requests"):
        return True
    offered = observed.number("offered_rps", "request_rate")
    served = observed.number("completed_rps", "req_s")
    counted = any(item.window_s and item.delta is not None for item in observed.of_counter("finished"))
    return offered is not None and (served is not None or counted)


def _tpot_rises(observed: Observed) -> bool | None:
    """Whether the time per token rose over the windows; `None` where nobody measured it."""
    for name in ("tpot", "itl"):
        windows = observed.windows(name)
        if len(windows) >= 2 and windows[0].mean and windows[-1].mean:
            return windows[-1].mean > 1.2 * windows[0].mean
    return None
