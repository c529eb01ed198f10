"""What every process that serves the data port consists of: the gateway, its records, its metrics."""

from __future__ import annotations

import gc
import sys
from functools import partial
from time import monotonic_ns
from typing import Final

from tailrace.app.backend_gauges import show_backends
from tailrace.app.cache_gauges import show_cache
from tailrace.app.engine_metrics import SENT, sent_so_far, show_engines
from tailrace.app.fleet_cancels import count_slot
from tailrace.app.lane_gauges import show_attainment, show_lanes
from tailrace.app.prediction_gauges import show_predictions
from tailrace.app.route_metrics import show_routes
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.backend import Backend
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.gateway import Gateway
from tailrace.govern.shared_state import SharedState
from tailrace.store.writer import RecordWriter, WriterOptions

FLUSH_S: Final = 0.4
"""How long the last records may take to reach the disk: with the drain budget it stays under two seconds."""
_STATES: Final = (
    ("tailrace_engine_requests_running", "running"),
    ("tailrace_engine_requests_waiting", "waiting"),
    ("tailrace_engine_kv_usage_ratio", "kv_usage"),
)
_COLLECT_AFTER: Final = (20_000, 20, 20)
"""Objects that make a young collection, and collections that make an older one. Python's 700 have it run for every
thirty requests, a tenth of their cost, to find nothing: what a request leaves is not circular."""
_SWITCH_S: Final = 0.001
"""How long a thread may hold the interpreter while the event loop waits. Python's 5 ms let views of the page delay the
relay by up to 95 ms; with 1 ms it was 16 ms in the same run."""


def record_writer(config: Config) -> RecordWriter:
    """A writer of its own for this process. InputError for a data directory that cannot be used."""
    records = config.records
    return RecordWriter(
        records.dir,
        WriterOptions(
            capacity=records.queue,
            amendment_capacity=records.queue,
            seal_rows=records.seal_rows,
            seal_after_s=int(records.seal_after) / 1e9,
            keep_days=int(records.retention) / 86400e9,
        ),
    )


class GatewayProcess:
    """The parts, wired; `gateway.start` begins. InputError for a data directory that cannot be used."""

    def __init__(self, config: Config, *, shared: SharedState | None = None) -> None:
        self.writer = record_writer(config)
        self.metrics = GatewayMetrics(parse_objectives(config.objectives))
        self.metrics.on_render(self._set_gauges)
        self.gateway = Gateway(config, self.writer, observer=self.metrics, shared=shared)
        self.gateway.amendments.add(self.writer.amendments)
        for backend in self.gateway.backends:
            self._equip(backend)
        self.gateway.backends.on_added = self._equip

    def _equip(self, backend: Backend) -> None:
        backend.cancels.on_slot = lambda cancel: count_slot(self.metrics, cancel)
        backend.engine.judge.tally = partial(self._tally, backend.name)

    def _tally(self, backend: str) -> dict[str, int]:
        self.gateway.flush_records()
        return sent_so_far([self.metrics.series(SENT)], backend)

    def _set_gauges(self, metrics: GatewayMetrics) -> None:
        """The live numbers, pulled by each scrape."""
        gateway = self.gateway
        gateway.flush_records()
        now = monotonic_ns()
        for name in ("tailrace_requests_in_flight", "tailrace_requests_queued", "tailrace_lane_limit"):
            metrics.clear(name)
        lanes = gateway.lanes.snapshot(now)
        show_lanes(metrics, lanes)
        show_attainment(metrics, gateway.lanes.attainment)
        show_predictions(metrics, lanes)
        for lane, state in lanes.items():
            metrics.gauge("tailrace_requests_in_flight", state["running"], lane=lane)
            metrics.gauge("tailrace_requests_queued", state["queued"], lane=lane)
            for limit in ("running", "queued"):
                metrics.gauge("tailrace_lane_limit", state[f"{limit}_limit"], lane=lane, limit=limit)
        if gateway.cache is not None:
            show_cache(metrics, gateway.cache.view())
        metrics.clear("tailrace_in_flight_over_objective")
        for lane, count in gateway.over_objective(now).items():
            metrics.gauge("tailrace_in_flight_over_objective", count, lane=lane)
        metrics.gauge("tailrace_event_loop_lag_seconds", gateway.loop_lag_max_ns / 1e9)
        _set_hop_gauges(metrics, gateway)
        _set_ladder_gauges(metrics, gateway)
        metrics.gauge("tailrace_workers", int(not gateway.retiring))
        metrics.counter("tailrace_worker_restarts_total", 0)
        _set_backend_gauges(metrics, gateway, now)
        show_backends(metrics, gateway, now)
        _set_token_gauges(metrics, gateway)
        for why, budget in gateway.traces.budgets.items():
            metrics.counter("tailrace_traces_asked_total", budget.granted, why=why, answer="granted")
            metrics.counter("tailrace_traces_asked_total", budget.withheld, why=why, answer="withheld")
        asking = [backend for backend in gateway.backends if backend.engine.watch.asks]
        if asking:
            show_engines(metrics, {backend.name: backend.engine for backend in asking})
        show_routes(gateway, metrics)
        metrics.records(self.writer.counters(), disk_ok=not self.writer.error)


def _set_backend_gauges(metrics: GatewayMetrics, gateway: Gateway, now: int) -> None:
    for name in (*(name for name, _ in _STATES), "tailrace_backend_up"):
        metrics.clear(name)
    for backend in gateway.backends:
        metrics.gauge("tailrace_backend_up", int(backend.engine.reachable is True), backend=backend.name)
        seen = backend.engine.watch.state(now)
        for name, signal in _STATES:
            # A scrape that is too old is absent here too, not frozen at its last value.
            value = None if seen is None else getattr(seen, signal)
            if value is not None:
                metrics.gauge(name, value, backend=backend.name)


def _set_ladder_gauges(metrics: GatewayMetrics, gateway: Gateway) -> None:
    metrics.clear("tailrace_degradation_step")
    if gateway.degradation is not None:
        ladder = gateway.degradation.ladder
        metrics.gauge("tailrace_degradation_step", ladder.step)
        metrics.counter("tailrace_degradation_steps_total", ladder.steps_up, direction="up")
        metrics.counter("tailrace_degradation_steps_total", ladder.steps_down, direction="down")
    for lane, count in gateway.standstill.counts.items():
        metrics.counter("tailrace_stalls_in_flight_total", count, lane=lane)
    for (lane, action), count in gateway.gaps.counts.items():
        metrics.counter("tailrace_gap_events_total", count, lane=lane, action=action)


def _set_token_gauges(metrics: GatewayMetrics, gateway: Gateway) -> None:
    for model, source, error in gateway.shaping.estimates.errors():
        metrics.counter("tailrace_token_counts_compared_total", error.n, model=model, source=source)
        for quantile, value in (("0.5", error.p50), ("0.95", error.p95)):
            if value is not None:
                metrics.gauge("tailrace_token_count_error_ratio", value, model=model, source=source, quantile=quantile)


def _set_hop_gauges(metrics: GatewayMetrics, gateway: Gateway) -> None:
    pools, seen = [backend.pool for backend in gateway.backends], gateway.hindsight
    if seen.cpu is not None:
        metrics.gauge("tailrace_gateway_cpu_ratio", seen.cpu)
    idle = sum(len(pool.idle) for pool in pools)
    in_use = sum(len(pool.open) for pool in pools) - idle
    waiting = sum(len(pool.line) for pool in pools)
    for state, count in (("in_use", in_use), ("idle", idle), ("waiting", waiting)):
        metrics.gauge("tailrace_upstream_connections", count, state=state)
    opened, reused = sum(pool.opened_total for pool in pools), sum(pool.reused_total for pool in pools)
    for how, count in (("new", opened), ("reused", reused)):
        metrics.counter("tailrace_upstream_connections_taken_total", count, connection=how)
    for hop, rtt_ns in seen.rtt_ns.items():
        metrics.gauge("tailrace_tcp_rtt_seconds", rtt_ns / 1e9, hop=hop)


def tune_interpreter() -> None:
    """Let a thread give way to the event loop soon."""
    sys.setswitchinterval(_SWITCH_S)


def freeze_loaded() -> None:
    """What is loaded by now lives as long as the process: full collections need not walk it, and pause less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
