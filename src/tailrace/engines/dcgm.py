"""The DCGM exporter's metrics: one state a device.

Names are those of DCGM's fields; exporter 1.x spelled some of them in lower case. Traps: a field that the device does
not have may be exported with DCGM's blank value (`9223372036854775794` for a memory temperature); the profiling fields
(`DCGM_FI_PROF_…`) are shares and rates of the last second whatever the configured type says, and are absent unless the
operator's counter list has them; `GPU_UTIL` is in percent, the profiling shares are not; a card that is partitioned has
a series for each instance; NVLink has a series for each link beside the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace.engines.clock_reasons import decode
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.signals import Alias, names
from tailrace.model.gpu_state import GpuState

__all__ = ["SIGNALS", "read_dcgm"]

_MIB: Final = float(1 << 20)
_PREFIXES: Final = ("DCGM_", "dcgm_")
SIGNALS: Final[Mapping[str, tuple[Alias, ...]]] = {
    "utilisation": names("DCGM_FI_DEV_GPU_UTIL", "dcgm_gpu_utilization", scale=0.01),
    "sm_active": names("DCGM_FI_PROF_SM_ACTIVE"),
    "sm_occupancy": names("DCGM_FI_PROF_SM_OCCUPANCY"),
    "tensor_active": names("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    "dram_active": names("DCGM_FI_PROF_DRAM_ACTIVE"),
    "nvlink_tx_bytes_per_s": names("DCGM_FI_PROF_NVLINK_TX_BYTES"),
    "nvlink_rx_bytes_per_s": names("DCGM_FI_PROF_NVLINK_RX_BYTES"),
    "pcie_tx_bytes_per_s": names("DCGM_FI_PROF_PCIE_TX_BYTES"),
    "pcie_rx_bytes_per_s": names("DCGM_FI_PROF_PCIE_RX_BYTES"),
    "memory_used_bytes": names("DCGM_FI_DEV_FB_USED", "dcgm_fb_used", scale=_MIB),
    "memory_free_bytes": names("DCGM_FI_DEV_FB_FREE", "dcgm_fb_free", scale=_MIB),
    "memory_total_bytes": names("DCGM_FI_DEV_FB_TOTAL", scale=_MIB),
    "sm_clock_mhz": names("DCGM_FI_DEV_SM_CLOCK", "dcgm_sm_clock"),
    "max_sm_clock_mhz": names("DCGM_FI_DEV_MAX_SM_CLOCK"),
    "memory_clock_mhz": names("DCGM_FI_DEV_MEM_CLOCK", "dcgm_memory_clock"),
    "reasons": names("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
    "power_w": names("DCGM_FI_DEV_POWER_USAGE", "dcgm_power_usage"),
    "power_limit_w": names("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT"),
    "temperature_c": names("DCGM_FI_DEV_GPU_TEMP", "dcgm_gpu_temp"),
    "memory_temperature_c": names("DCGM_FI_DEV_MEMORY_TEMP", "dcgm_memory_temp"),
    "last_xid": names("DCGM_FI_DEV_XID_ERRORS", "dcgm_xid_errors"),
}
"""Field of `GpuState` -> its names, the newest first."""
_RATES: Final = frozenset(
    {"nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}
)
_SHARES: Final = frozenset({"utilisation", "sm_active", "sm_occupancy", "tensor_active", "dram_active"})
_WHOLE: Final = frozenset({"memory_used_bytes", "memory_free_bytes", "memory_total_bytes", "last_xid"})
_BLANK_32: Final = (0x7FFFFFF0, 0x7FFFFFFF)
_BLANK_FP: Final = float(1 << 47)
"""DCGM's blanks: the last sixteen 32-bit and 64-bit integers, and 2 to the 47th upwards for floating point."""


def read_dcgm(text: str, at_ns: int, at_unix_ns: int | None = None) -> tuple[list[GpuState], list[str]]:
    """(one state a device or instance, names of DCGM's that are not read)."""
    scrape = parse_scrape(text, prefixes=_PREFIXES)
    found: dict[str, dict[str, Any]] = {}
    used: dict[str, dict[str, str]] = {}
    known: set[str] = set()
    for signal, aliases in SIGNALS.items():
        for alias in aliases:
            known.add(alias.name)
            if signal in _RATES and scrape.type_of(alias.name) == "counter":
                continue  # exporters of 2020 called it so; a total and a rate cannot be told apart
            for sample in scrape.samples.get(alias.name, ()):
                labels = sample.labels
                if "nvlink" in labels or _blank(sample.value):
                    continue
                device = _device(labels)
                values = found.setdefault(device, _identity(labels))
                value = _value(signal, sample.value * alias.scale)
                if value is not None and signal not in values:
                    values[signal] = value
                    used.setdefault(device, {})[signal] = alias.name
    states = [
        GpuState(index=device, at_ns=at_ns, at_unix_ns=at_unix_ns, source="dcgm", names=used.get(device, {}), **values)
        for device, values in sorted(found.items())
    ]
    unread = {name for name in scrape.samples if name.startswith(_PREFIXES)} - known
    return states, sorted(unread)


def _blank(value: float) -> bool:
    return value >= _BLANK_FP or _BLANK_32[0] <= value <= _BLANK_32[1] or value < 0


def _device(labels: Mapping[str, str]) -> str:
    card = labels.get("gpu") or labels.get("device") or labels.get("UUID") or labels.get("uuid") or "0"
    instance = labels.get("GPU_I_ID", "")
    return f"{card}/{instance}" if instance else card


def _identity(labels: Mapping[str, str]) -> dict[str, Any]:
    return {"uuid": labels.get("UUID") or labels.get("uuid") or "", "name": labels.get("modelName", "")}


def _value(signal: str, value: float) -> Any:
    if signal == "reasons":
        return decode(int(value))
    if signal in _SHARES:
        return value if value <= 1.0 else None  # 1.x gave percent in some lists: a unit that is not known is no value
    return int(value) if signal in _WHOLE else value
