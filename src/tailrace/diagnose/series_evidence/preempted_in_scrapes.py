"""Preemptions in scrapes: the counter rose, or the cache is full while fewer run than may."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.engine_settings import KV_CAPACITY, RUNNING_LIMIT
from tailrace.diagnose.kv_cache import KV_CLEAR, KV_FULL
from tailrace.diagnose.observed import Observed, Series
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["preempted_in_scrapes"]


class _Gauge(NamedTuple):
    """One gauge over its engines: added up for counts, the fullest for shares."""

    value: float
    place: str


def gauge(observed: Observed, name: str, *, share: bool = False) -> _Gauge | None:
    """What it says at most over its readings; `None` where nobody read it."""
    found = [series for series in observed.of_series(name) if len(series) and bool(np.isfinite(series.values).any())]
    found = [series for series in found if not np.isinf(series.values).any()]
    found = [series for series in found if series.axis in ("time", "scrape")]
    if not found:
        return None
    values = [float(np.nanmax(series.values)) for series in found]
    return _Gauge(max(values) if share else sum(values), _place(found[int(np.argmax(values))]))


def _place(series: Series) -> str:
    return str(series.line_of(int(np.nanargmax(series.values))))


def preempted_in_scrapes(cause: Cause, observed: Observed) -> Finding | None:
    """The counter's delta above 0; without a counter, a full cache with requests that wait for it."""
    counters = observed.of_counter("preemptions")
    delta = sum(item.delta for item in counters if item.delta is not None) if counters else None
    known = bool(counters) and any(item.delta is not None for item in counters)
    lifetime = sum(item.last for item in counters if item.lifetime and np.isfinite(item.last))
    kv, running, waiting = (
        gauge(observed, "kv_usage", share=True),
        gauge(observed, "running"),
        gauge(observed, "waiting"),
    )
    if known and not delta:
        return None
    full = kv is not None and kv.value >= KV_FULL
    stuck = full and waiting is not None and waiting.value > 0
    if not known and not stuck and not (lifetime and kv is not None and kv.value >= KV_CLEAR):
        return None
    return _found(cause, observed, float(delta or 0.0) if known else None, lifetime, (kv, running, waiting))


def _found(
    cause: Cause,
    observed: Observed,
    delta: float | None,
    lifetime: float,
    gauges: tuple[_Gauge | None, _Gauge | None, _Gauge | None],
) -> Finding:
    kv, running, waiting = gauges
    counters = observed.of_counter("preemptions")
    missing: list[str] = []
    evidence: list[Evidence] = []
    if delta is not None:
        source = str(counters[-1].place)
        evidence.append(
            Evidence(
                text=f"{delta:.0f} preemptions between the scrapes{_per_request(observed, delta)}",
                source=source,
                name="preemptions",
                value=delta,
            )
        )
    else:
        missing.append("the preemption counter at two moments: two scrapes of /metrics")
        if lifetime:
            evidence.append(
                Evidence(
                    text=f"{lifetime:.0f} preemptions since the engine's start; when they were is not known",
                    source=str(counters[-1].place),
                    name="preemptions_lifetime",
                    value=lifetime,
                )
            )
    usage = f"{kv.value * 100:.1f} %" if kv is not None else ""
    if kv is not None:
        evidence.append(
            Evidence(text=f"KV usage {usage}", source=kv.place, name="kv_usage", value=round(kv.value, 4), unit="share")
        )
    for name, found in (("running", running), ("waiting", waiting)):
        if found is not None:
            evidence.append(
                Evidence(text=f"{name} {found.value:.0f}", source=found.place, name=name, value=found.value)
            )
    fits, relation = _fits(observed, kv, running, evidence, missing)
    limit = observed.number(*RUNNING_LIMIT, "max_concurrency", "concurrency")
    head = f"{delta:.0f} preemptions" if delta is not None else f"the KV cache at {usage}"
    stuck = (
        f" Running stays at {running.value:.0f}"
        if running is not None and kv is not None and kv.value >= KV_CLEAR
        else ""
    )
    if stuck and limit and limit > (running.value if running else 0):
        stuck += f" of the {limit:.0f} that may run"
        evidence.append(
            Evidence(
                text=f"{limit:.0f} may run or are sent at once",
                source=observed.source_of(*RUNNING_LIMIT, "max_concurrency", "concurrency"),
                name="limit",
                value=limit,
            )
        )
    if stuck and waiting is not None and waiting.value > 0:
        stuck += f", {waiting.value:.0f} wait"
    cap = f" Cap admission at about {fits:.0f} requests" if fits else " Cap admission below what the KV cache holds"
    return cause.finding(
        statement=f"The KV cache is too small for what runs: {head}.{stuck + '.' if stuck else ''} Requests lose "
        "their blocks "
        "and are computed again.",
        evidence=evidence,
        explains_ms=None,
        relation="; ".join(
            [
                *([relation] if relation else []),
                f"preemptions {delta:.0f} > 0" if delta is not None else f"KV {usage} >= {KV_FULL * 100:.0f} %",
            ]
        ),
        n=int(observed.delta("finished") or 0),
        advice=f"{cap.strip()} (the gateway's lane limit `running`, the client's concurrency, `--max-num-seqs`), "
        "keep an "
        "admission watermark free, shorten outputs (`max_tokens`), or give the cache more memory "
        "(`--gpu-memory-utilization`, `--kv-cache-dtype fp8`). More concurrency only makes the queue longer.",
        price="Requests wait in front instead of being preempted: TTFT rises, ITL, E2E and throughput gain.",
        verify=(
            f"tailrace bench http://localhost:8000 --concurrency {fits or 64:.0f} --duration 120 --out "
            "after.run  # two scrapes of /metrics around it: the counter stands still"
        ),
        missing=missing,
        disproof_checked=[
            f"counter delta {delta:.0f}, not 0" if delta is not None else "the counter's delta is not known",
            f"KV usage {usage}" if usage else "KV usage not known",
        ],
        action=Action.TUNE,
        level=Level.SUSPECTED if delta is None else Level.CONSISTENT,
    )


def _per_request(observed: Observed, delta: float) -> str:
    finished = observed.delta("finished")
    return f" ({delta / finished * 100:.3g} by 100 finished requests)" if finished else ""


def _fits(
    observed: Observed, kv: _Gauge | None, running: _Gauge | None, evidence: list[Evidence], missing: list[str]
) -> tuple[float | None, str]:
    """How many requests the cache holds, from its size and what those that run hold; and the arithmetic."""
    capacity = observed.number(*KV_CAPACITY, "num_gpu_blocks_tokens")
    if capacity is None:
        blocks, size = observed.number("num_gpu_blocks"), observed.number("kv_block_tokens", "block_size")
        capacity = blocks * size if blocks and size else None
    if capacity is None:
        missing.append("the KV cache's size in tokens (kv_capacity_tokens), to say how many requests fit")
        return None, ""
    evidence.append(
        Evidence(
            text=f"the KV cache holds {capacity:.0f} tokens",
            source=observed.source_of(*KV_CAPACITY, "num_gpu_blocks"),
            name="kv_capacity_tokens",
            value=capacity,
        )
    )
    if running is None or not running.value or kv is None or kv.value < KV_CLEAR:
        return None, ""
    each = f"{capacity * kv.value / running.value:.0f}"
    words = f"{capacity:.0f} tokens x {kv.value:.3g} / {running.value:.0f} = {each} tokens a request; "
    return running.value, words + f"{capacity:.0f}/{capacity / running.value:.0f} = {running.value:.0f} running"
