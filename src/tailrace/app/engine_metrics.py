"""What the engine's own metrics add up to, as metrics of the gateway: over restarts, and with honest bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from time import monotonic_ns
from typing import Final

from tailrace.engines.odometer import Reading
from tailrace.engines.window import QUANTILES, EngineWindow, means_of
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.engine_link import EngineLink

Series = Iterable[tuple[tuple[str, ...], float]]
SENT: Final = "tailrace_engine_sent_total"
_REQUESTS: Final = ("finished", "aborted", "rejected", "failed")
_TOKENS: Final = {"prompt": "prompt_tokens", "generation": "generation_tokens", "cached": "prefix_found"}
_LIVE: Final = (
    "tailrace_engine_latency_seconds",
    "tailrace_engine_latency_observations",
    "tailrace_engine_prefix_hit_ratio",
    "tailrace_engine_state_age_seconds",
)


def sent_so_far(processes: Iterable[Series], backend: str) -> dict[str, int]:
    """Requests that were sent to the engine: `outcome` or `outcome/reason` -> how many, over the series of `SENT`."""
    out: dict[str, int] = {}
    for series in processes:
        for (to, outcome, reason), count in series:
            if to != backend:
                continue
            key = f"{outcome}/{reason}" if reason else outcome
            out[key] = out.get(key, 0) + round(count)
    return out


def show_engines(metrics: GatewayMetrics, engines: Mapping[str, EngineLink]) -> None:
    """Set everything that is known of the engines by the process that asks them; they go by their backends' names."""
    for name in _LIVE:
        metrics.clear(name)
    for backend, engine in engines.items():
        _show_engine(metrics, engine, backend)


def _show_engine(metrics: GatewayMetrics, engine: EngineLink, backend: str) -> None:
    watch, judge = engine.watch, engine.judge
    metrics.counter("tailrace_scrapes_total", watch.scrapes - watch.failures, backend=backend, result="answered")
    metrics.counter("tailrace_scrapes_total", watch.failures, backend=backend, result="failed")
    metrics.gauge("tailrace_engine_frozen", int(judge.frozen is not None), backend=backend)
    metrics.gauge("tailrace_engine_draining", int(engine.draining), backend=backend)
    metrics.gauge("tailrace_engine_preemption_suspected", int(judge.preemption.suspected), backend=backend)
    age = watch.age_ns(monotonic_ns())
    if age is not None:
        metrics.gauge("tailrace_engine_state_age_seconds", age / 1e9, backend=backend)
    if judge.newest is not None:
        _show_totals(metrics, judge.newest, backend)
    window = judge.window()
    if window is not None:
        _show_window(metrics, window, backend)


def _show_totals(metrics: GatewayMetrics, totals: Reading, backend: str) -> None:
    metrics.counter("tailrace_engine_restarts_total", totals.restarts, backend=backend)
    for kind, noun in _TOKENS.items():
        if noun in totals.counters:
            total = sum(totals.counters[noun].values())
            metrics.counter("tailrace_engine_tokens_total", total, backend=backend, kind=kind)
    if "preemptions" in totals.counters:
        total = sum(totals.counters["preemptions"].values())
        metrics.counter("tailrace_engine_preemptions_total", total, backend=backend)
    for noun in _REQUESTS:
        for reason, total in totals.counters.get(noun, {}).items():
            if (noun, reason) == ("finished", "abort"):
                continue  # it is among the aborted
            metrics.counter("tailrace_engine_requests_total", total, backend=backend, result=noun, reason=reason)


def _show_window(metrics: GatewayMetrics, window: EngineWindow, backend: str) -> None:
    def show(signal: str, stat: str, value: float) -> None:
        metrics.gauge("tailrace_engine_latency_seconds", value, backend=backend, signal=signal, stat=stat)

    for signal, (mean, n) in means_of(window).items():
        show(signal, "mean", mean)
        metrics.gauge("tailrace_engine_latency_observations", n, backend=backend, signal=signal)
    for signal, delta in window.timings.items():
        for q in QUANTILES:
            span = delta.quantile(q)
            if span is not None and math.isfinite(span.low):
                show(signal, f"p{q * 100:g}_low", span.low)
                # +Inf where no bucket ends above it: an alarm on it fires, as it should.
                show(signal, f"p{q * 100:g}_high", span.high)
    if window.prefix_hit is not None:
        metrics.gauge("tailrace_engine_prefix_hit_ratio", window.prefix_hit, backend=backend)
