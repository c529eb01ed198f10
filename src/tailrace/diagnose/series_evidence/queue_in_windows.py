"""SCHED_QUEUE_SATURATION between two scrapes: most of the time to the first token was queue, and more came than left.

What came in a window is what left it and what is there more at its end than at its beginning: the gauges say it without
a stamp of any request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Histogram, Observed, Series
from tailrace.diagnose.series_evidence.saturation_in_series import over_engines
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["queue_in_windows"]

SHARE: Final = 0.5
LEAST_MS: Final = 100.0
LEAST: Final = 20
"""Requests that the histogram counted in the window."""
KV_FULL: Final = 0.95
MORE: Final = 1.05
"""What came by what left: from here on the queue grows by more than a moment's chance."""


class _Came(NamedTuple):
    """Requests of a window: how many left it, and how many came."""

    left: float
    came: float
    place: str


def queue_in_windows(cause: Cause, observed: Observed) -> Finding | None:
    """The last window's mean queue against its mean time to the first token (or end to end)."""
    queue = _last(observed, "queue")
    if queue is None or queue.n < LEAST or queue.mean is None or queue.mean < LEAST_MS:
        return None
    whole = _whole(observed, queue)
    if whole is None or whole[1] <= 0:
        return None
    name, mean, _ = whole
    share = queue.mean / mean
    kv = max((float(item.values[-1]) for item in observed.of_series("kv_usage") if len(item)), default=None)
    if not SHARE < share <= 1.1 or observed.delta("preemptions") or (kv is not None and kv >= KV_FULL):
        return None
    waiting, running = over_engines(observed, "waiting"), over_engines(observed, "running")
    flow = _flow(observed, queue, waiting, running)
    stands = waiting is not None and float(waiting.values[-1]) > 0
    grows = flow is not None and flow.came > MORE * flow.left and stands
    spent, of = f"{queue.mean:,.0f}", f"{mean:,.0f}"
    evidence, relation = _shown(observed, queue, whole, waiting, running, flow, kv)
    missing = []
    if flow is None:
        missing.append("how many requests came and how many were served (running and waiting at both ends)")
    elif not grows:
        missing.append("running and waiting within the window: at its end the queue is no longer than at its beginning")
    # TGI admits what fits and never preempts.
    if kv is None and observed.delta("preemptions") is None and not queue.raw.startswith("tgi_"):
        missing.append("KV usage or the preemption counter (a full cache would make it SCHED_KV_PREEMPTION)")
    return cause.finding(
        statement=f"Requests wait for the scheduler: {share:.0%} of the mean {_words(name)} is queue ({spent} of {of} "
        "ms)"
        + (f", and more came than was served ({flow.came:,.0f} against {flow.left:,.0f})." if grows and flow else "."),
        evidence=evidence,
        explains_ms=queue.mean,
        relation=relation,
        n=int(queue.n),
        advice="First the limits: where the KV cache has room, raise the cap on running requests (vLLM --max-num-seqs, "
        "SGLang --max-running-requests, TGI --max-batch-total-tokens) step by step with TPOT beside it. If TPOT rises "
        "with it, shed what cannot be served in time (a queued limit and 429 at the gateway), shorten outputs, and "
        "only then add a replica, which takes minutes to load. A longer timeout only hides the queue.",
        price="TPOT rises with the batch; refused requests must be tried again by their clients.",
        verify="tailrace bench http://localhost:8000 --sweep rate=1,2,4,8 --duration 30",
        missing=missing,
        rivals=[] if grows else ["MIX_BURSTY_ARRIVALS: a burst that drained looks alike"],
        disproof_checked=[
            f"the queue is not 0: {share:.0%} of the {_words(name)}",
            *(["no preemption was counted"] if observed.delta("preemptions") == 0 else []),
            *([f"KV usage {kv:.0%}"] if kv is not None else []),
        ],
        action=Action.SHED,
        level=Level.SUSPECTED if missing or not grows else Level.CONSISTENT,
    )


def _shown(
    observed: Observed,
    queue: Histogram,
    whole: tuple[str, float, str],
    waiting: Series | None,
    running: Series | None,
    flow: _Came | None,
    kv: float | None,
) -> tuple[list[Evidence], str]:
    """The numbers with their places, and the arithmetic."""
    name, mean, place = whole
    spent = queue.mean or 0.0
    out = [
        Evidence(
            text=f"{spent:,.0f} ms in the queue (mean of {queue.n:,.0f} requests in the window)",
            source=str(queue.place), name="queue_mean", value=round(spent, 2), unit="ms",
        ),
        Evidence(f"{name} {mean:,.0f} ms (mean)", place, f"{name}_mean", round(mean, 2), "ms"),
    ]  # fmt: skip
    for series, words in ((waiting, "waiting"), (running, "running")):
        if series is not None:
            out.append(
                Evidence(
                    text=f"{words} {series.values[0]:.0f} at first, {series.values[-1]:.0f} at last",
                    source=str(series.line_of(len(series) - 1)), name=words, value=float(series.values[-1]),
                )
            )  # fmt: skip
    if kv is not None:
        out.append(Evidence(f"KV usage {kv:.0%}", str(observed.of_series("kv_usage")[0].place), "kv_usage", kv))
    relation = f"queue {spent:,.0f} / {name} {mean:,.0f} ms = {spent / mean:.0%} > {SHARE:.0%}"
    if flow is not None:
        out.append(
            Evidence(
                text=f"{flow.left:,.0f} requests left in the window, {flow.came:,.0f} came (what left, and what waits "
                "and runs more at its end)",
                source=flow.place, name="came", value=flow.came,
            )
        )  # fmt: skip
        relation += f"; {flow.came:,.0f} came, {flow.left:,.0f} left"
    return out, relation


def _last(observed: Observed, name: str) -> Histogram | None:
    """The last window's histogram; none that counts since the engine's start."""
    windows = observed.windows(name)
    return windows[-1] if windows and not windows[-1].lifetime else None


def _whole(observed: Observed, queue: Histogram) -> tuple[str, float, str] | None:
    """(name, mean in ms, where) of what the queue is a part of, in the same window."""
    for name in ("ttft", "e2e"):
        found = _last(observed, name)
        if found is not None and found.mean and found.order == queue.order:
            return name, found.mean, str(found.place)
    work = _last(observed, "inference")
    if work is not None and work.mean and work.order == queue.order and queue.mean is not None:
        return "e2e", queue.mean + work.mean, str(work.place)
    return None


def _words(name: str) -> str:
    return "time to first token" if name == "ttft" else "time of a request"


def _flow(observed: Observed, queue: Histogram, waiting: Series | None, running: Series | None) -> _Came | None:
    """Of the last window; `None` where the gauges at its ends are not known."""
    if waiting is None or running is None or min(len(waiting), len(running)) < 2:
        return None
    finished = [item for item in observed.of_counter("finished") if item.order == queue.order]
    counted = [item.delta for item in finished]
    left = sum(value for value in counted if value is not None) if counted and None not in counted else queue.n
    more = float(waiting.values[-1] - waiting.values[-2]) + float(running.values[-1] - running.values[-2])
    place = str(finished[-1].place) if counted and None not in counted else str(queue.place)
    return _Came(left, left + more, place)
