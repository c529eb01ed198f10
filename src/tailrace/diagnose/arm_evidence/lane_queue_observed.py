"""GW_LANE_QUEUE: requests wait before the engine, in a lane of the gateway, while the engine has room."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import as_share, figure, number_stated
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.arms.whole_tables import with_whole_tables
from tailrace.diagnose.kv_cache import KV_ROOM
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["is_before_engine", "lane_queue_observed"]

SHARE: Final = 0.5
_BEFORE: Final = re.compile(
    r"gateway|\bgw\b|\blane\b|router|proxy|ingress|admission|before the engine|in front", re.IGNORECASE
)
_STATS: Final = ("p99", "p95", "p90", "p50", "mean", "max", "")


class _Known(NamedTuple):
    value: float
    evidence: Evidence


def is_before_engine(queue: Quoted) -> bool:
    """Whether the heading of a queue time says that it is a gateway's and not the engine's."""
    return _BEFORE.search(f"{queue.label} {queue.qualifier}".replace("_", " ")) is not None


def lane_queue_observed(cause: Cause, observed: Observed) -> Finding | None:
    """The gateway's queue makes most of TTFT, and nothing waits in the engine."""
    found = next((one for arm in with_whole_tables(observed) if (one := _held(arm)) is not None), None)
    if found is None:
        return None
    arm, queue, ttft = found
    waiting = _of(observed, arm, "waiting", r"^(?:engine )?(?:waiting|pending|queued)(?: requests)?$")
    kv = _of(observed, arm, "kv_usage", r"kv (?:cache )?usage")
    if (waiting is not None and waiting.value >= 1) or (kv is not None and kv.value >= KV_ROOM):
        return None
    running = _of(observed, arm, "running", r"^(?:engine )?(?:running|in.?flight)(?: requests)?$")
    missing = []
    if waiting is None:
        missing.append("waiting requests of the engine (its /metrics): 0 says that it has room")
    if kv is None:
        missing.append("KV usage of the engine (its /metrics)")
    limit = number_stated(
        observed, r"lane.*(?:limit|running|size)|(?:running|concurrency) limit|max in flight|admission limit"
    )
    share = queue.value / ttft.value
    n = figure(arm, "n")
    return cause.finding(
        statement=f"Requests wait in the gateway's lane: {quantity(queue)} {number(queue.value, 'ms')} of "
        f"{number(ttft.value, 'ms')} to the first token ({share:.0%}), while the engine "
        + ("has room." if not missing else "may have room."),
        evidence=[
            evidence_of(arm, queue),
            evidence_of(arm, ttft),
            Evidence(f"queue share {share:.0%}", str(queue.place) or "form", "queue_share", round(share, 4)),
            *(item.evidence for item in (running, waiting, kv) if item is not None),
            *([evidence_of_setting(limit)] if limit is not None else []),
        ],
        explains_ms=queue.value,
        relation=f"gateway queue / TTFT = {number(queue.value)} / {number(ttft.value)} = {share:.0%} > {SHARE:.0%}",
        n=int(n.value) if n is not None else 1,
        advice="Raise the lane's running limit step by step until the engine's own waiting or its KV usage begins to "
        "rise; if the engine is full too, it is saturated: shed or scale.",
        price="More requests share the engine's steps: TPOT rises a little for everybody.",
        verify=again(arm),
        missing=missing,
        rivals=["SCHED_QUEUE_SATURATION"] if missing else [],
        disproof_checked=[item.evidence.text for item in (waiting, kv) if item is not None],
    )


def _held(arm: Arm) -> tuple[Arm, Quoted, Quoted] | None:
    for queue in arm.values.values():
        if queue.quantity != "queue" or queue.relative or not is_before_engine(queue):
            continue
        ttft = figure(arm, "ttft", stats=(queue.stat, *_STATS))
        if ttft is not None and ttft.value > 0 and SHARE < queue.value / ttft.value <= 1.0:
            return arm, queue, ttft
    return None


def _of(observed: Observed, arm: Arm, name: str, words: str) -> _Known | None:
    own = figure(arm, name, stats=("", "p50", "mean", "max"))
    if own is not None and not is_before_engine(own):
        return _Known(own.value, evidence_of(arm, own))
    stated = number_stated(observed, words)
    if stated is not None and stated.number is not None:
        value = as_share(stated.number, stated.unit) if name == "kv_usage" else stated.number
        return _Known(value, evidence_of_setting(stated))
    for series in observed.of_series(name):
        values = series.values[np.isfinite(series.values)]
        if values.size:
            most = float(values.max())
            text = f"the engine's {name.replace('_', ' ')} is at most {most:.3g}"
            return _Known(most, Evidence(text, str(series.place), name, most))
    return None
