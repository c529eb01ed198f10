"""Two readings of a machine's counters become the state of the interval between them."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.measure.host_files import CpuTicks
from tailrace.model.host_state import CgroupState, HostState, ProcessState, Role

__all__ = ["CgroupReading", "HostReading", "ProcessReading", "host_state"]

_PRESSURE_UNIT_NS: Final = 1000
_NS: Final = 1_000_000_000


class CgroupReading(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one group."""

    path: str
    version: int
    quota_cores: float | None
    periods: int
    throttled_periods: int
    throttled_ns: int


class ProcessReading(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the processes of one role."""

    role: Role
    ticks: dict[int, int]
    """Process -> user and system ticks."""
    threads: dict[int, tuple[int, int]]
    """Thread -> (ns on a CPU, ns in a run queue); empty where the kernel does not say."""
    thread_count: int
    rss_bytes: int
    cgroups: list[CgroupReading] = []
    """The group it is in, and those above it that have a limit."""


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """All counters at one moment."""

    at_ns: int
    at_unix_ns: int
    cpu: CpuTicks | None = None
    load_1m: float | None = None
    runnable: int | None = None
    queue_wait_ns: int | None = None
    pressure_us: dict[str, int] = {}
    memory: dict[str, int] = {}
    """Of `/proc/meminfo`, bytes."""
    paging: dict[str, int] = {}
    """Of `/proc/vmstat`."""
    processes: list[ProcessReading] = []


def host_state(before: HostReading, now: HostReading, *, ticks_per_s: int) -> HostState | None:
    """The interval between two readings; nothing where no time has passed."""
    interval = now.at_ns - before.at_ns
    if interval <= 0:
        return None
    cpu = _cpu(before.cpu, now.cpu)
    memory = now.memory
    swap = memory["SwapTotal"] - memory.get("SwapFree", 0) if "SwapTotal" in memory else None
    earlier = {process.role: process for process in before.processes}
    return HostState(
        at_ns=now.at_ns,
        at_unix_ns=now.at_unix_ns,
        interval_ns=interval,
        cpus=now.cpu.cpus or None if now.cpu else None,
        busy=cpu.get("busy"),
        iowait=cpu.get("iowait"),
        steal=cpu.get("steal"),
        load_1m=now.load_1m,
        waiting_cores=None
        if before.queue_wait_ns is None or now.queue_wait_ns is None
        else round(max(0, now.queue_wait_ns - before.queue_wait_ns) / interval, 4),
        runnable=now.runnable,
        pressure={
            name: round(min(1.0, max(0, total - before.pressure_us[name]) * _PRESSURE_UNIT_NS / interval), 4)
            for name, total in now.pressure_us.items()
            if name in before.pressure_us
        },
        memory_total_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        swap_used_bytes=swap,
        swap_in_pages=_rise(before.paging, now.paging, "pswpin"),
        swap_out_pages=_rise(before.paging, now.paging, "pswpout"),
        processes=[_process(earlier.get(process.role), process, interval, ticks_per_s) for process in now.processes],
    )


def _rise(before: dict[str, int], now: dict[str, int], name: str) -> int | None:
    if name not in before or name not in now:
        return None
    return max(0, now[name] - before[name])


def _cpu(before: CpuTicks | None, now: CpuTicks | None) -> dict[str, float]:
    if before is None or now is None or now.total <= before.total:
        return {}
    spent = now.total - before.total

    def share(rise: int) -> float:
        # A counter of a virtual machine may fall when it is moved to another host.
        return round(min(1.0, max(0, rise) / spent), 4)

    idle, iowait = share(now.idle - before.idle), share(now.iowait - before.iowait)
    return {
        "busy": round(max(0.0, 1.0 - idle - iowait), 4),
        "iowait": iowait,
        "steal": share(now.steal - before.steal),
    }


def _process(before: ProcessReading | None, now: ProcessReading, interval: int, ticks_per_s: int) -> ProcessState:
    state = ProcessState(role=now.role, pids=sorted(now.ticks), threads=now.thread_count, rss_bytes=now.rss_bytes)
    if before is None:
        return state
    # Only what was there at both ends has a difference: one that is new brings its life before the interval with it.
    ticks = sum(max(0, value - before.ticks[pid]) for pid, value in now.ticks.items() if pid in before.ticks)
    known = bool(now.ticks.keys() & before.ticks.keys())
    deltas = [
        (max(0, run - before.threads[thread][0]), max(0, wait - before.threads[thread][1]))
        for thread, (run, wait) in now.threads.items()
        if thread in before.threads
    ]
    ran, waited = sum(run for run, _ in deltas), sum(wait for _, wait in deltas)
    return msgspec.structs.replace(
        state,
        cpu_cores=round(ticks / ticks_per_s * _NS / interval, 3) if known else None,
        busiest_thread=round(min(1.0, max(run for run, _ in deltas) / interval), 4) if deltas else None,
        waiting_cores=round(waited / interval, 4) if deltas else None,
        worst_thread_wait=round(min(1.0, max(wait for _, wait in deltas) / interval), 4) if deltas else None,
        # Below a millisecond of either, the share would be noise.
        wait_share=round(waited / (ran + waited), 4) if ran + waited >= 1_000_000 else None,
        cgroup=_cgroup(before.cgroups, now.cgroups),
    )


def _cgroup(before: list[CgroupReading], now: list[CgroupReading]) -> CgroupState | None:
    """The group that was stopped longest; where none was, the nearest one."""
    earlier = {(group.version, group.path): group for group in before}
    states = [
        CgroupState(
            path=group.path,
            version=group.version,
            quota_cores=group.quota_cores,
            periods=max(0, group.periods - old.periods),
            throttled_periods=max(0, group.throttled_periods - old.throttled_periods),
            throttled_ns=max(0, group.throttled_ns - old.throttled_ns),
        )
        for group in now
        if (old := earlier.get((group.version, group.path))) is not None
    ]
    return max(states, key=lambda state: state.throttled_ns or 0, default=None)
