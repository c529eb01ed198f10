"""One sample of the machine, and the state of the interval since the last one."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Final

from tailrace.gateway.address import EngineAddress
from tailrace.gateway.host.files import KernelFiles
from tailrace.gateway.host.processes import alive, find_listener, read_processes, with_descendants
from tailrace.measure.host_files import cpu_ticks, load_and_runnable, numbered_lines, pressure_totals, queue_waits
from tailrace.measure.host_rates import HostReading, host_state
from tailrace.model.host_state import HostState, Role

_LOOK_AGAIN_NS: Final = 10_000_000_000
"""Between two looks for an engine's processes: walking all of a machine's costs more than the sample."""
_LOOK_SELDOM_NS: Final = 60_000_000_000
"""The same where one listens whose process is not ours to see: every descriptor of the machine was looked at."""
_MEMORY: Final = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
_PAGING: Final = ("pswpin", "pswpout")


class HostReader:
    """Reads when told to; remembers the last reading. Not for two threads at once."""

    def __init__(
        self,
        *,
        engine: EngineAddress | None,
        engine_pid: int | None = None,
        gateway_pids: Callable[[], list[int]] = lambda: [os.getpid()],
        files: KernelFiles | None = None,
    ) -> None:
        """`engine_pid` is believed; without it the listener at the address of `engine` is looked for."""
        self._files = files or KernelFiles()
        self._engine = engine
        self._engine_pid = engine_pid
        self._gateway_pids = gateway_pids
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._before: HostReading | None = None
        self._engine_pids: list[int] = []
        self._roots: list[int] = []
        self._look_at_ns = 0
        self._why_no_engine = ""
        self.absent: dict[str, str] = {}
        """Signal -> why it is not there."""

    @property
    def engine_pids(self) -> list[int]:
        """The engine's processes, where they are on this machine and known."""
        return self._engine_pids

    def read(self) -> HostState | None:
        """Sample; the state of the interval since the last sample, nothing the first time."""
        before, now = self._before, self._reading()
        self._before = now
        return None if before is None else host_state(before, now, ticks_per_s=self._ticks_per_s)

    def _reading(self) -> HostReading:
        files, absent = self._files, dict[str, str]()
        now = monotonic_ns()
        cpu = cpu_ticks(files.text("stat"))
        load, runnable = load_and_runnable(files.text("loadavg"))
        pressure: dict[str, int] = {}
        for kind in ("cpu", "memory", "io"):
            text = files.text(f"pressure/{kind}")
            found = pressure_totals(text)
            if not found:
                why = files.problems.get(f"{files.proc}/pressure/{kind}", "not understood")
                absent[f"pressure.{kind}"] = why
            pressure |= {f"{kind}.{which}": total for which, total in found.items()}
        memory = numbered_lines(files.text("meminfo"), _MEMORY)
        paging = numbered_lines(files.text("vmstat"), _PAGING)
        if cpu is None:
            absent["cpu"] = files.problems.get(f"{files.proc}/stat", "not understood")
        if not memory:
            absent["memory"] = files.problems.get(f"{files.proc}/meminfo", "not understood")
        self._find_engine(now, absent)
        processes = []
        for role, pids in ((Role.GATEWAY, self._gateway_pids()), (Role.ENGINE, self._engine_pids)):
            found_processes = read_processes(files, role, pids, self._page_bytes) if pids else None
            if found_processes is None:
                absent.setdefault(str(role), "its process is gone" if pids else "its process is not known")
                continue
            processes.append(found_processes)
            if not found_processes.threads:
                absent[f"{role}.run_queue"] = "this kernel does not count run-queue time (schedstat)"
            if not found_processes.cgroups:
                absent[f"{role}.cgroup"] = "its control group's cpu.stat is not readable here"
        self.absent = absent
        return HostReading(
            at_ns=monotonic_ns(),
            at_unix_ns=time_ns(),
            cpu=cpu,
            load_1m=load,
            runnable=runnable,
            queue_wait_ns=queue_waits(files.text("schedstat")),
            pressure_us=pressure,
            memory={name: memory[name] for name in _MEMORY if name in memory},
            paging={name: paging[name] for name in _PAGING if name in paging},
            processes=processes,
        )

    def _find_engine(self, now: int, absent: dict[str, str]) -> None:
        gone = bool(self._roots) and not any(alive(self._files, pid) for pid in self._roots)
        if now >= self._look_at_ns or gone:
            self._look_at_ns = now + _LOOK_AGAIN_NS
            if gone or not self._roots:
                self._roots, self._why_no_engine = self._who_is_engine()
                if self._why_no_engine.startswith("who listens"):
                    self._look_at_ns = now + _LOOK_SELDOM_NS
            self._engine_pids = with_descendants(self._files, self._roots) if self._roots else []
        if not self._engine_pids:
            absent[str(Role.ENGINE)] = self._why_no_engine

    def _who_is_engine(self) -> tuple[list[int], str]:
        if self._engine_pid is not None:
            if alive(self._files, self._engine_pid):
                return [self._engine_pid], ""
            return [], f"there is no process {self._engine_pid} (signals.engine_pid)"
        if self._engine is None:
            return [], "no engine's address is known"
        roots, why = find_listener(self._files, self._engine)
        # An engine that this very process serves (a test, a demo) is not told apart from it.
        others = [pid for pid in roots if pid not in self._gateway_pids()]
        return others, why or ("" if others else "it listens in the gateway's own process")
