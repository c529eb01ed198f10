"""Metrics of this machine: what the gateway's samplers read of the host and its accelerators.

All of them are gauges of the last interval, and absent where the signal is not readable or too old.
"""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

__all__ = ["HOST_METRICS"]


def _gauge(name: str, labels: tuple[str, ...], unit: str, definition: str) -> Metric:
    return Metric(name=name, kind="gauge", labels=labels, unit=unit, merge="max", definition=definition)


HOST_METRICS: Final = (
    _gauge(
        "tailrace_host_cpu_ratio",
        (),
        "ratio",
        "Share of this machine's CPU time that was used in the last interval, 0 to 1.",
    ),
    _gauge(
        "tailrace_host_cpu_steal_ratio",
        (),
        "ratio",
        "Share of this machine's CPU time that its hypervisor gave to others.",
    ),
    _gauge(
        "tailrace_host_pressure_ratio",
        ("resource", "tasks"),
        "ratio",
        "Share of the last interval in which `some` or all (`full`) tasks stood still for want of the "
        "resource: cpu, memory, io (Linux' pressure stall information).",
    ),
    _gauge("tailrace_host_memory_available_bytes", (), "bytes", "Memory that could be had without swapping."),
    _gauge("tailrace_host_swap_used_bytes", (), "bytes", "Swap in use."),
    _gauge(
        "tailrace_process_cpu_cores",
        ("role",),
        "cores",
        "Cores that the processes of a role (gateway, engine) used in the last interval.",
    ),
    _gauge("tailrace_process_busiest_thread_ratio", ("role",), "ratio", "Cores of their busiest thread: full at 1."),
    _gauge(
        "tailrace_process_run_queue_wait_ratio",
        ("role",),
        "ratio",
        "Share of the last interval in which their worst thread was ready to run and had no CPU.",
    ),
    _gauge(
        "tailrace_process_throttled_ratio",
        ("role",),
        "ratio",
        "Share of the enforcement periods in which their control group's CPU limit stopped them; absent "
        "without a limit.",
    ),
    _gauge(
        "tailrace_gpu_busy_ratio",
        ("gpu",),
        "ratio",
        "Share of time in which some kernel ran; says nothing of how well.",
    ),
    _gauge(
        "tailrace_gpu_sm_active_ratio",
        ("gpu",),
        "ratio",
        "Share of cycles in which an SM had work, averaged over SMs (DCGM's profiling fields).",
    ),
    _gauge(
        "tailrace_gpu_dram_active_ratio",
        ("gpu",),
        "ratio",
        "Share of cycles in which the memory interface moved data (DCGM's profiling fields).",
    ),
    _gauge("tailrace_gpu_memory_used_bytes", ("gpu",), "bytes", "Device memory in use."),
    _gauge("tailrace_gpu_sm_clock_hertz", ("gpu",), "hertz", "Clock of the SMs."),
    _gauge("tailrace_gpu_power_watts", ("gpu",), "watts", "Power draw."),
    _gauge("tailrace_gpu_temperature_celsius", ("gpu",), "celsius", "Temperature of the device."),
    _gauge(
        "tailrace_gpu_clock_limited",
        ("gpu", "reason"),
        "bool",
        "1 for each reason that lowers the clock at the moment: sw_power_cap, hw_slowdown, sw_thermal, "
        "hw_thermal, hw_power_brake.",
    ),
    _gauge(
        "tailrace_gpu_foreign_processes",
        ("gpu",),
        "processes",
        "Processes that compute on a device of the engine's and are none of the engine's; absent where they "
        "cannot be told apart.",
    ),
    Metric(
        name="tailrace_signals_cpu_seconds_total",
        kind="counter",
        unit="seconds",
        merge="max",
        definition="CPU time that reading these signals has cost.",
    ),
)
