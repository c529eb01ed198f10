"""The signals of this machine as the gateway keeps them: the newest ones, and the last ten minutes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final

from tailrace.gateway.address import read_address
from tailrace.gateway.config_sections import BackendConfig, SignalsConfig
from tailrace.gateway.host.gpu_sources import Dcgm, GpuSource, choose_gpu_source
from tailrace.gateway.host.host_reader import HostReader
from tailrace.gateway.host.sampler import NothingToReadError, Sampler
from tailrace.model.gpu_state import GpuState
from tailrace.model.host_state import HostState, ProcessState, Role

KEEP_NS: Final = 600_000_000_000
_MOST_KEPT: Final = 3600
_STALE_PERIODS: Final = 5


class HostSignals:
    """Two samplers: one of the host, one of the accelerators where there is a source for them."""

    def __init__(
        self,
        config: SignalsConfig,
        backend: BackendConfig,
        *,
        gateway_pids: Callable[[], list[int]] = lambda: [os.getpid()],
    ) -> None:
        self._config = config
        self._period_ns = int(config.period)
        self.reader = HostReader(
            engine=read_address(backend.url), engine_pid=config.engine_pid, gateway_pids=gateway_pids
        )
        self.host: Sampler[HostState] = Sampler(
            "host-signals", self.reader.read, period_s=self._period_ns / 1e9, keep=_keep(self._period_ns)
        )
        # Loading a driver may take seconds, and asking it may hang: everything about it is done in its own thread.
        self.gpu: Sampler[list[GpuState]] = Sampler(
            "gpu-signals",
            self._read_gpus,
            period_s=self._period_ns / 1e9,
            keep=_keep(self._period_ns),
            at_end=self._close_gpus,
        )
        self._gpu_source: GpuSource | None = None

    def start(self) -> None:
        """Begin to sample, where it is not switched off."""
        if not self._config.enabled:
            return
        self.host.start()
        self.gpu.start()

    def close(self) -> None:
        """End both; blocks for a second where both hang, so call it off the loop."""
        self.host.ask_to_end()
        self.gpu.ask_to_end()
        if self._gpu_source is not None:
            self._gpu_source.interrupt()
        self.host.close()
        self.gpu.close()

    def _read_gpus(self) -> list[GpuState] | None:
        if self._gpu_source is None:
            self._gpu_source, why = choose_gpu_source(self._config.gpu_source)
            if self._gpu_source is None:
                raise NothingToReadError(why)
            self.gpu.period_s = max(self.gpu.period_s, self._gpu_source.period_s)
        return self._gpu_source.read()

    def _close_gpus(self) -> None:
        with contextlib.suppress(Exception):  # a driver that will not be let go ends with the process
            if self._gpu_source is not None:
                self._gpu_source.close()

    # -- views

    @property
    def cpu_ns(self) -> int:
        """CPU time that reading has cost so far."""
        return self.host.cpu_ns + self.gpu.cpu_ns

    def latest_host(self) -> HostState | None:
        """The last interval; nothing where it is too old to say anything about now."""
        return self.host.latest(_STALE_PERIODS * self._period_ns)

    def latest_gpus(self) -> list[GpuState]:
        """The last reading of every device; none where it is too old."""
        return self.gpu.latest(round(_STALE_PERIODS * self.gpu.period_s * 1e9)) or []

    def view(self, since_unix_ns: int | None = None) -> dict[str, Any]:
        """What `GET /signals` answers, for msgspec to encode: the present, and what is kept since then."""
        since = since_unix_ns or 0
        host = [state for state in self.host.kept() if state.at_unix_ns > since]
        gpus = [state for states in self.gpu.kept() for state in states]
        latest = self.latest_host()
        absent = dict(self.reader.absent)
        if not self._config.enabled:
            absent["host"] = absent["gpu"] = "switched off (signals.enabled)"
        elif self.gpu.error:
            absent["gpu"] = self.gpu.error
        if latest is None and self._config.enabled:
            absent["host"] = self.host.error or "no sample yet, or the last one is too old"
        out: dict[str, Any] = {
            "tailrace_signals": 1,
            "enabled": self._config.enabled,
            "now_ns": monotonic_ns(),
            "latest": {
                "host": latest,
                "gpus": self.latest_gpus(),
            },
            "absent": absent,
            "engine_pids": self.reader.engine_pids,
            "sampler": {"host": _cost(self.host), "gpu": _cost(self.gpu)},
            "host": host,
            "gpus": [state for state in gpus if (state.at_unix_ns or 0) > since],
        }
        if isinstance(self._gpu_source, Dcgm) and self._gpu_source.unread:
            out["dcgm_unread"] = self._gpu_source.unread
        return out

    def words(self) -> str:
        """One line for a person: what is worth a look right now; empty where nothing is known."""
        host, parts = self.latest_host(), list[str]()
        if host is not None:
            parts += _host_words(host)
        parts += [_gpu_words(state) for state in self.latest_gpus()[:4]]
        return " · ".join(part for part in parts if part)


def _keep(period_ns: int) -> int:
    return max(2, min(_MOST_KEPT, KEEP_NS // max(1, period_ns)))


def _cost(sampler: Sampler[Any]) -> dict[str, Any]:
    return {
        "samples": sampler.samples,
        "failures": sampler.failures,
        "error": sampler.error,
        "cpu_ms_per_sample": round(sampler.cpu_ns / max(1, sampler.samples) / 1e6, 3),
    }


def _host_words(host: HostState) -> list[str]:
    parts = []
    if host.busy is not None and host.cpus:
        parts.append(f"host CPU {host.busy:.0%} of {host.cpus}")
    if host.steal is not None and host.steal >= 0.01:
        parts.append(f"stolen {host.steal:.0%}")
    for role in (Role.ENGINE, Role.GATEWAY):
        process = host.of(role)
        if process is not None:
            parts.append(_process_words(role, process))
    return parts


def _process_words(role: Role, process: ProcessState) -> str:
    out = f"{role} {process.cpu_cores:.2f} cores" if process.cpu_cores is not None else str(role)
    if process.worst_thread_wait is not None:
        out += f", waits for a CPU {process.worst_thread_wait:.0%}"
    share = process.cgroup.throttled_share if process.cgroup else None
    if share:
        out += f", throttled in {share:.0%} of periods"
    return out


def _gpu_words(state: GpuState) -> str:
    parts = [f"GPU {state.index}"]
    if state.utilisation is not None:
        parts.append(f"busy {state.utilisation:.0%}")
    if state.sm_clock_mhz is not None:
        parts.append(f"{state.sm_clock_mhz:.0f} MHz")
    if state.power_w is not None:
        parts.append(f"{state.power_w:.0f} W")
    if state.temperature_c is not None:
        parts.append(f"{state.temperature_c:.0f} °C")
    lowering = [reason for reason in state.reasons or [] if reason != "idle"]
    if lowering:
        parts.append("+".join(lowering))
    return " ".join(parts)
