"""What the machine did in one interval: CPU time given and withheld, pressure, memory, and the processes we care for.

Everything is the difference of two readings, divided by the interval. What could not be read is absent, never 0.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Whose processes are watched."""

    GATEWAY = "gateway"
    ENGINE = "engine"


class CgroupState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The CPU limit of a control group in one interval."""

    path: str
    version: int
    """1 or 2."""
    quota_cores: float | None = None
    """Cores that the group may use; absent where no limit is set, and then the counts below say nothing."""
    periods: int | None = None
    """Enforcement periods that passed while the group wanted to run."""
    throttled_periods: int | None = None
    """Those in which it was stopped because its quota was spent."""
    throttled_ns: int | None = None
    """How long it was stopped, summed over CPUs: it may exceed the interval."""

    @property
    def throttled_share(self) -> float | None:
        """Throttled periods / periods; absent where no period passed (no limit, or no work)."""
        if not self.periods or self.throttled_periods is None:
            return None
        return self.throttled_periods / self.periods


class ProcessState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The processes of one role (a process and its descendants) in one interval."""

    role: Role
    pids: list[int] = []
    threads: int | None = None
    cpu_cores: float | None = None
    """Cores used, user and system time of all threads."""
    busiest_thread: float | None = None
    """Cores of its busiest thread: at 1 that thread is full, whatever the others do."""
    waiting_cores: float | None = None
    """Time that its threads stood ready in a run queue, summed, per second."""
    worst_thread_wait: float | None = None
    """Share of the interval in which its worst thread was ready to run and had no CPU."""
    wait_share: float | None = None
    """Of the time in which its threads could have run, the share in which they had to wait: wait / (run + wait)."""
    rss_bytes: int | None = None
    cgroup: CgroupState | None = None
    """The group whose limit bound most, of those the process is in."""


class HostState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One interval of this machine."""

    at_ns: int
    """Our monotonic clock at its end."""
    at_unix_ns: int
    interval_ns: int
    cpus: int | None = None
    busy: float | None = None
    """Share of all CPU time that was used, 0 to 1."""
    iowait: float | None = None
    steal: float | None = None
    """Share of CPU time that the hypervisor gave to others."""
    load_1m: float | None = None
    waiting_cores: float | None = None
    """Tasks that stood ready in a run queue, mean over the interval, of all CPUs (`/proc/schedstat`)."""
    runnable: int | None = None
    """Threads running or ready to run at the end of the interval."""
    pressure: dict[str, float] = {}
    """`cpu.some`, `memory.full`, `io.some`, …: share of the interval in which some (or all) tasks stood still for
    want of it."""
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_in_pages: int | None = None
    swap_out_pages: int | None = None
    """Pages read from and written to swap in the interval."""
    processes: list[ProcessState] = []

    def of(self, role: Role) -> ProcessState | None:
        """The processes of one role, where they are seen."""
        return next((process for process in self.processes if process.role is role), None)
