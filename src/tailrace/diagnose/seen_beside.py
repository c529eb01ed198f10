"""What the machine and a profile showed beside the requests: sentences with numbers, and no verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tailrace.diagnose.hardware import Hardware
from tailrace.model.finding import Evidence
from tailrace.model.gpu_profile import GpuProfile, ProfileRow
from tailrace.model.gpu_state import GpuState
from tailrace.model.host_state import HostState, ProcessState, Role

__all__ = ["seen_beside"]

TOP: Final = 5
NAME: Final = 80
_LAUNCHES: Final = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch")


def seen_beside(hardware: Hardware) -> list[Evidence]:
    """Everything worth a sentence, the machine first."""
    return [*_host(hardware), *_gpus(hardware), *_profiles(hardware.profiles)]


def _host(hardware: Hardware) -> Iterator[Evidence]:
    states = hardware.host
    if not states:
        return
    busy = _known(state.busy for state in states)
    if busy:
        cpus = next((state.cpus for state in reversed(states) if state.cpus), None)
        of = f" of {cpus} CPUs" if cpus else ""
        yield _said(
            f"host CPU busy {np.median(busy):.0%}{of} (median of {len(busy)} intervals)", "host:cpu", np.median(busy)
        )
    steal = _known(state.steal for state in states)
    if steal and max(steal) >= 0.01:
        yield _said(f"the hypervisor took up to {max(steal):.0%} of the CPU time", "host:steal", max(steal))
    for name in ("cpu.some", "memory.full", "io.full"):
        found = [state.pressure[name] for state in states if name in state.pressure]
        if found and max(found) >= 0.1:
            yield _said(
                f"pressure {name}: {np.mean(found):.0%} of the time, up to {max(found):.0%}",
                "host:pressure",
                np.mean(found),
            )
    swapped = sum((state.swap_in_pages or 0) + (state.swap_out_pages or 0) for state in states)
    if swapped:
        yield _said(f"{swapped} pages went to or from swap", "host:memory", swapped)
    for role in (Role.ENGINE, Role.GATEWAY):
        yield from _process(role, states)


def _process(role: Role, states: list[HostState]) -> Iterator[Evidence]:
    seen: list[ProcessState] = [process for state in states if (process := state.of(role)) is not None]
    waits, cores = _known(p.worst_thread_wait for p in seen), _known(p.cpu_cores for p in seen)
    full = _known(p.busiest_thread for p in seen)
    if cores:
        busiest = f", its busiest thread {np.median(full):.0%}" if full else ""
        yield _said(f"the {role} used {np.median(cores):.2f} cores{busiest} (median)", "host:process", np.median(cores))
    if waits:
        yield _said(
            f"its worst thread waited for a CPU {np.mean(waits):.0%} of the time, up to {max(waits):.0%}",
            "host:run_queue",
            np.mean(waits),
        )
    groups = [p.cgroup for p in seen if p.cgroup is not None]
    periods = sum(group.periods or 0 for group in groups)
    if periods:
        stopped = sum(group.throttled_periods or 0 for group in groups)
        yield _said(
            f"its CPU limit stopped the {role} in {stopped} of {periods} periods", "host:cgroup", stopped / periods
        )


def _gpus(hardware: Hardware) -> Iterator[Evidence]:
    for device, states in hardware.devices().items():
        source = f"gpu:{states[0].source or 'readings'}"
        parts = []
        for word, field in (
            ("busy", "utilisation"),
            ("SM active", "sm_active"),
            ("tensor pipe", "tensor_active"),
            ("DRAM active", "dram_active"),
        ):
            values = _known(getattr(state, field) for state in states)
            if values:
                parts.append(f"{word} {np.median(values):.0%}")
        clocks, power = _known(s.sm_clock_mhz for s in states), _known(s.power_w for s in states)
        if clocks:
            parts.append(f"SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz")
        if power:
            parts.append(f"power {min(power):.0f} to {max(power):.0f} W")
        if parts:
            yield _said(f"GPU {device}: {', '.join(parts)} (n = {len(states)})", source)
        yield from _events(device, states, source)


def _events(device: str, states: list[GpuState], source: str) -> Iterator[Evidence]:
    told = [state.reasons for state in states if state.reasons is not None]
    for reason in sorted({reason for reasons in told for reason in reasons} - {"idle"}):
        count = sum(1 for reasons in told if reason in reasons)
        yield _said(f"GPU {device}: clock limited by {reason} in {count} of {len(told)} readings", source, count)
    for code in sorted({state.last_xid for state in states if state.last_xid}):
        yield _said(f"GPU {device}: the driver reported XID {code}", source, code)


def _profiles(profiles: list[GpuProfile]) -> Iterator[Evidence]:
    for profile in profiles:
        source = f"profile:{profile.report}"
        if not profile.rows or profile.total_ns <= 0:
            continue
        yield _said(
            f"{profile.report}: {len(profile.rows)} names, {profile.total_ns / 1e6:.1f} ms in {profile.count} calls",
            source,
            profile.total_ns / 1e6,
        )
        for row in profile.rows[:TOP]:
            yield _said(_row(row, profile.total_ns), source, row.total_ns / profile.total_ns)
    yield from _launches(profiles)
    yield from _copies(profiles)


def _row(row: ProfileRow, total_ns: float) -> str:
    name = row.name if len(row.name) <= NAME else row.name[: NAME - 1] + "…"
    calls = "" if row.count is None or row.average_ns is None else f", {row.count} x {row.average_ns / 1e3:.1f} us"
    longest = "" if row.max_ns is None else f", longest {row.max_ns / 1e6:.2f} ms"
    return f"{row.total_ns / total_ns:.1%} {name}{calls}{longest}"


def _launches(profiles: list[GpuProfile]) -> Iterator[Evidence]:
    """The host against the device: where launching takes longer than what is launched, the device waits in between."""
    kernels, calls = _report(profiles, "cuda_gpu_kern_sum"), _report(profiles, "cuda_api_sum")
    if kernels is None or calls is None or not kernels.count:
        return
    launches = [row for row in calls.rows if row.name.startswith(_LAUNCHES)]
    count = sum(row.count or 0 for row in launches)
    if not count:
        return
    launch = sum(row.total_ns for row in launches) / count
    kernel = kernels.total_ns / kernels.count
    word = "the device waits for the host" if launch > kernel else "the host keeps ahead of the device"
    yield _said(
        f"a launch takes {launch / 1e3:.1f} us ({count}), a kernel {kernel / 1e3:.1f} us ({kernels.count}): {word}, "
        "as far as sums can tell",
        "profile:cuda_api_sum, profile:cuda_gpu_kern_sum",
        launch / kernel,
    )


def _copies(profiles: list[GpuProfile]) -> Iterator[Evidence]:
    kernels, copies = _report(profiles, "cuda_gpu_kern_sum"), _report(profiles, "cuda_gpu_mem_time_sum")
    if kernels is None or copies is None or kernels.total_ns + copies.total_ns <= 0:
        return
    share = copies.total_ns / (kernels.total_ns + copies.total_ns)
    yield _said(f"copies are {share:.1%} of the device's time", "profile:cuda_gpu_mem_time_sum", share)


def _report(profiles: list[GpuProfile], name: str) -> GpuProfile | None:
    return next((profile for profile in profiles if profile.report == name), None)


def _known(values: Iterator[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _said(text: str, source: str, value: float | np.floating[Any] | None = None) -> Evidence:
    return Evidence(text=text, source=source, value=None if value is None else round(float(value), 4))
