"""What one accelerator did at one moment, whoever said so: DCGM's exporter, NVML, `nvidia-smi`, or a log of it.

What could not be read is absent, never 0. Utilisation says that some kernel ran, not that the device was well used.
"""

from __future__ import annotations

from typing import Final

import msgspec

POWER_REASONS: Final = frozenset({"sw_power_cap", "hw_power_brake"})
THERMAL_REASONS: Final = frozenset({"sw_thermal", "hw_thermal"})
"""Clock-event reasons that lower the clock of a loaded device. `hw_slowdown` may be either, and says so nowhere."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that computes on the device."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one device."""

    index: str
    """The device's number as its source counts, or its id."""
    at_ns: int
    """Our monotonic clock; for a log, nanoseconds from its first line."""
    at_unix_ns: int | None = None
    """Wall clock; absent for a log whose stamps have no time zone."""
    source: str = ""
    """`dcgm`, `nvml`, `nvidia-smi`."""
    names: dict[str, str] = {}
    """Signal -> the name under which the source said it."""
    uuid: str = ""
    name: str = ""
    utilisation: float | None = None
    """Share of time in which at least one kernel ran, 0 to 1."""
    sm_active: float | None = None
    """Share of cycles in which an SM had at least one warp, averaged over SMs."""
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    """Share of cycles in which the memory interface moved data."""
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    reasons: list[str] | None = None
    """Clock-event ("throttle") reasons that are active; empty: none is; absent: not told."""
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    last_xid: int | None = None
    """Code of the last XID error that the driver saw since it was loaded; 0: none."""
    processes: list[GpuProcess] | None = None
    """Processes that compute on it; absent where the source does not tell."""
