"""The machine's signals as metrics, set at each scrape."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tailrace.export.host_metrics import HOST_METRICS
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.host.signals import HostSignals
from tailrace.model.gpu_state import POWER_REASONS, THERMAL_REASONS, GpuState
from tailrace.model.host_state import HostState

_LOWERING: Final = POWER_REASONS | THERMAL_REASONS | {"hw_slowdown"}


def show_signals(signals: HostSignals, metrics: GatewayMetrics) -> None:
    """Set what is known now; what is not, or is too old, has no series."""
    for metric in HOST_METRICS:
        metrics.clear(metric.name)
    metrics.counter("tailrace_signals_cpu_seconds_total", signals.cpu_ns / 1e9)
    host = signals.latest_host()
    if host is not None:
        _show_host(metrics, host)
    engine = set(signals.reader.engine_pids)
    for state in signals.latest_gpus():
        _show_gpu(metrics, state, engine)


def busiest_gpu(signals: HostSignals, gpus: Collection[str]) -> float | None:
    """How busy the busiest of these GPUs is (of all, where none is named): share of 1; `None` where nobody tells."""
    states = [state for state in signals.latest_gpus() if not gpus or state.index in gpus]
    return max((state.utilisation for state in states if state.utilisation is not None), default=None)


def _set(metrics: GatewayMetrics, name: str, value: float | None, **labels: str) -> None:
    if value is not None:
        metrics.gauge(name, value, **labels)


def _show_host(metrics: GatewayMetrics, host: HostState) -> None:
    _set(metrics, "tailrace_host_cpu_ratio", host.busy)
    _set(metrics, "tailrace_host_cpu_steal_ratio", host.steal)
    _set(metrics, "tailrace_host_memory_available_bytes", host.memory_available_bytes)
    _set(metrics, "tailrace_host_swap_used_bytes", host.swap_used_bytes)
    for name, share in host.pressure.items():
        resource, _, tasks = name.partition(".")
        metrics.gauge("tailrace_host_pressure_ratio", share, resource=resource, tasks=tasks)
    for process in host.processes:
        role = str(process.role)
        _set(metrics, "tailrace_process_cpu_cores", process.cpu_cores, role=role)
        _set(metrics, "tailrace_process_busiest_thread_ratio", process.busiest_thread, role=role)
        _set(metrics, "tailrace_process_run_queue_wait_ratio", process.worst_thread_wait, role=role)
        share_stopped = process.cgroup.throttled_share if process.cgroup else None
        _set(metrics, "tailrace_process_throttled_ratio", share_stopped, role=role)


def _show_gpu(metrics: GatewayMetrics, state: GpuState, engine: set[int]) -> None:
    gpu = state.index
    _set(metrics, "tailrace_gpu_busy_ratio", state.utilisation, gpu=gpu)
    _set(metrics, "tailrace_gpu_sm_active_ratio", state.sm_active, gpu=gpu)
    _set(metrics, "tailrace_gpu_dram_active_ratio", state.dram_active, gpu=gpu)
    _set(metrics, "tailrace_gpu_memory_used_bytes", state.memory_used_bytes, gpu=gpu)
    _set(
        metrics,
        "tailrace_gpu_sm_clock_hertz",
        None if state.sm_clock_mhz is None else state.sm_clock_mhz * 1e6,
        gpu=gpu,
    )
    _set(metrics, "tailrace_gpu_power_watts", state.power_w, gpu=gpu)
    _set(metrics, "tailrace_gpu_temperature_celsius", state.temperature_c, gpu=gpu)
    for reason in _LOWERING if state.reasons is not None else ():
        metrics.gauge("tailrace_gpu_clock_limited", int(reason in (state.reasons or ())), gpu=gpu, reason=reason)
    here = {process.pid for process in state.processes or ()}
    if here & engine:
        metrics.gauge("tailrace_gpu_foreign_processes", len(here - engine), gpu=gpu)
