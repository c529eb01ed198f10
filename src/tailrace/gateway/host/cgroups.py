"""The control groups that limit a process, and their counters."""

from __future__ import annotations

from typing import Final

from tailrace.gateway.host.files import KernelFiles
from tailrace.measure.host_files import CgroupMount, cgroup_paths, cpu_stat, mounts_of_cgroups, quota_v1, quota_v2
from tailrace.measure.host_rates import CgroupReading

_DEEPEST: Final = 12
"""Levels above a group that are looked at: a pod's limit stands two or three above its container's group."""


def read_cgroups(files: KernelFiles, pid: int) -> list[CgroupReading]:
    """The process's own group first, then those above it that have a limit.

    A group's own `cpu.stat` counts what its own limit did; a limit further up stops it just the same, and counts there.
    """
    mounts = mounts_of_cgroups(files.text("self/mountinfo"))
    out: list[CgroupReading] = []
    for version, path in sorted(cgroup_paths(files.text(f"{pid}/cgroup")).items()):
        mount = next((mount for mount in mounts if mount.version == version), None)
        if mount is None:
            continue
        for place in _upwards(mount, path):
            group = _read(files, mount, place)
            if group is not None and (group.quota_cores is not None or not out):
                out.append(group)
    return out


def _upwards(mount: CgroupMount, path: str) -> list[str]:
    """Paths below the mount, from the group up to the root that is seen here.

    In a container the mount often shows the container's own group as its root, while the path still counts from the
    machine's: the common beginning is cut.
    """
    if mount.root != "/" and (path == mount.root or path.startswith(mount.root + "/")):
        path = path[len(mount.root) :] or "/"
    if "/.." in path:
        return []  # a group outside of what is mounted here
    words = [word for word in path.split("/") if word]
    levels = ["/" + "/".join(words[:depth]) for depth in range(len(words), -1, -1)]
    return levels[:_DEEPEST]


def _read(files: KernelFiles, mount: CgroupMount, path: str) -> CgroupReading | None:
    base = f"{mount.at.rstrip('/')}{path}".rstrip("/")
    counted = cpu_stat(files.at(f"{base}/cpu.stat"))
    if counted is None:
        return None
    if mount.version == 2:
        quota = quota_v2(files.at(f"{base}/cpu.max"))
    else:
        quota = quota_v1(files.at(f"{base}/cpu.cfs_quota_us"), files.at(f"{base}/cpu.cfs_period_us"))
    periods, throttled, throttled_ns = counted
    return CgroupReading(
        path=path,
        version=mount.version,
        quota_cores=quota,
        periods=periods,
        throttled_periods=throttled,
        throttled_ns=throttled_ns,
    )
