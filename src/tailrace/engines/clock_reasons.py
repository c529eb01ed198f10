"""Why a device's clock is lower than it could be: NVML's bits, which DCGM and nvidia-smi pass on.

Driver 535 and DCGM 3.3 renamed "throttle reasons" to "clock event reasons"; the bits are the same (`nvml.h`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["REASONS", "decode", "reason_of_column"]

REASONS: Final[dict[int, str]] = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
_COLUMNS: Final = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
}
"""How nvidia-smi names one reason, in old columns and new."""


def decode(mask: int) -> list[str]:
    """The reasons in a bit mask; a bit without a name is given as its number."""
    out = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return [*out, f"{rest:#x}"] if rest else out


def reason_of_column(column: str) -> str | None:
    """`clocks_event_reasons.sw_power_cap` (old: `clocks_throttle_reasons.…`) -> the reason; `None` for others."""
    group, _, name = column.partition(".")
    return _COLUMNS.get(name) if group in ("clocks_event_reasons", "clocks_throttle_reasons") else None
