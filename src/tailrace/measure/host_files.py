"""Linux' files about CPU time, pressure, memory and control groups, as numbers.

Facts from the kernel's documentation: `/proc/stat` counts ticks since the start; `/proc/PID/schedstat` is of the one
thread it names (run ns, wait ns, slices), so a process is the sum over `/proc/PID/task`; `cpu.stat` counts throttling
in `throttled_usec` (version 2) or `throttled_time` ns (version 1), and counts nothing where no quota is set. A text
that is not understood gives nothing, never zeros.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "CgroupMount",
    "CpuTicks",
    "cgroup_paths",
    "cpu_stat",
    "cpu_ticks",
    "listening_inodes",
    "load_and_runnable",
    "mounts_of_cgroups",
    "numbered_lines",
    "parent_of",
    "pressure_totals",
    "process_ticks",
    "queue_waits",
    "quota_v1",
    "quota_v2",
    "run_and_wait",
    "unix_socket_inodes",
]

_LISTEN: Final = "0A"


class CpuTicks(msgspec.Struct, frozen=True):
    """The first line of `/proc/stat`: ticks since the start, over all CPUs."""

    total: int
    """Guest time is part of user time, and not counted twice."""
    idle: int
    iowait: int
    steal: int
    cpus: int


def cpu_ticks(stat: str) -> CpuTicks | None:
    """`/proc/stat`; nothing where it has no `cpu` line with at least eight columns."""
    lines = stat.splitlines()
    words = lines[0].split() if lines else []
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:]):
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) for word in words[1:9])
    cpus = sum(1 for line in lines[1:] if line.startswith("cpu") and line[3:4].isdigit())
    return CpuTicks(user + nice + system + idle + iowait + irq + softirq + steal, idle, iowait, steal, cpus)


def run_and_wait(schedstat: str) -> tuple[int, int] | None:
    """`/proc/PID/task/TID/schedstat` -> (ns on a CPU, ns ready in a run queue)."""
    words = schedstat.split()
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return int(words[0]), int(words[1])


def queue_waits(schedstat: str) -> int | None:
    """`/proc/schedstat` -> ns that tasks stood ready in run queues, over all CPUs; nothing where none is counted.

    Eighth of the nine numbers of a `cpuN` line since version 15; a kernel without these statistics has no such file.
    """
    waits = []
    for line in schedstat.splitlines():
        words = line.split()
        if len(words) >= 10 and words[0][:3] == "cpu" and words[0][3:].isdigit() and words[8].isdigit():
            waits.append(int(words[8]))
    return sum(waits) if any(waits) else None


def process_ticks(stat: str) -> tuple[int, int, int] | None:
    """`/proc/PID/stat` -> (user + system ticks, threads, resident pages). The name in brackets may hold anything."""
    _, bracket, rest = stat.rpartition(")")
    words = rest.split()
    # Counted from 1 with the name as 2: utime 14, stime 15, num_threads 20, rss 24; `rest` begins with 3.
    if not bracket or len(words) < 22:
        return None
    try:
        return int(words[11]) + int(words[12]), int(words[17]), int(words[21])
    except ValueError:
        return None


def parent_of(stat: str) -> int | None:
    """`/proc/PID/stat` -> the parent's process id."""
    words = stat.rpartition(")")[2].split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


def pressure_totals(text: str) -> dict[str, int]:
    """`/proc/pressure/*` -> `some` and `full`, microseconds since the start."""
    out: dict[str, int] = {}
    for line in text.splitlines():
        kind, *pairs = line.split() or [""]
        total = next((pair[6:] for pair in pairs if pair.startswith("total=")), "")
        if kind in ("some", "full") and total.isdigit():
            out[kind] = int(total)
    return out


def numbered_lines(text: str, begins: tuple[str, ...] = ("",)) -> dict[str, int]:
    """Lines `name number …` or `name: number kB` (`/proc/meminfo`, `/proc/vmstat`, `cpu.stat`); kB become bytes.

    Only lines that begin with one of `begins` are read: `/proc/vmstat` has two hundred.
    """
    out: dict[str, int] = {}
    for line in text.splitlines():
        if not line.startswith(begins):
            continue
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            out[words[0].rstrip(":")] = int(words[1]) * (1024 if words[-1] == "kB" else 1)
    return out


def load_and_runnable(loadavg: str) -> tuple[float | None, int | None]:
    """`/proc/loadavg` -> (load of the last minute, threads running or ready)."""
    words = loadavg.split()
    try:
        return float(words[0]), int(words[3].partition("/")[0])
    except (IndexError, ValueError):
        return None, None


# -- control groups


class CgroupMount(msgspec.Struct, frozen=True):
    """Where a hierarchy is mounted."""

    version: int
    at: str
    root: str
    """The group that is seen there as the root."""


def mounts_of_cgroups(mountinfo: str) -> list[CgroupMount]:
    """`/proc/self/mountinfo` -> the unified hierarchy, and version 1's with the CPU controller."""
    out = []
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not dash or len(left) < 5 or len(right) < 3:
            continue
        if right[0] == "cgroup2":
            out.append(CgroupMount(2, left[4], left[3]))
        elif right[0] == "cgroup" and "cpu" in right[-1].split(","):
            out.append(CgroupMount(1, left[4], left[3]))
    return out


def cgroup_paths(membership: str) -> dict[int, str]:
    """`/proc/PID/cgroup` -> version -> path, of the hierarchies that account CPU time."""
    out: dict[int, str] = {}
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            out[2] = path
        elif "cpu" in controllers.split(","):
            out[1] = path
    return out


def cpu_stat(text: str) -> tuple[int, int, int] | None:
    """`cpu.stat` -> (periods, throttled periods, throttled ns); nothing where the group has no CPU controller."""
    numbers = numbered_lines(text)
    if "nr_periods" not in numbers or "nr_throttled" not in numbers:
        return None
    throttled_us = numbers.get("throttled_usec")
    throttled = numbers.get("throttled_time", 0) if throttled_us is None else throttled_us * 1000
    return numbers["nr_periods"], numbers["nr_throttled"], throttled


def quota_v2(cpu_max: str) -> float | None:
    """`cpu.max` -> cores; nothing for `max`."""
    words = cpu_max.split()
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def quota_v1(quota_us: str, period_us: str) -> float | None:
    """`cpu.cfs_quota_us` and `cpu.cfs_period_us` -> cores; nothing for -1."""
    quota, period = quota_us.strip(), period_us.strip()
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


# -- whose socket it is


def listening_inodes(table: str, port: int) -> set[int]:
    """`/proc/net/tcp` or `tcp6` -> inodes of the sockets that listen on `port`, whatever their address."""
    out: set[int] = set()
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != _LISTEN:
            continue
        if words[1].endswith(f":{port:04X}") and words[9].isdigit():
            out.add(int(words[9]))
    return out


def unix_socket_inodes(table: str, path: str) -> set[int]:
    """`/proc/net/unix` -> inodes of the sockets bound to `path`."""
    out: set[int] = set()
    for line in table.splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) == 8 and words[7] == path and words[6].isdigit():
            out.add(int(words[6]))
    return out
