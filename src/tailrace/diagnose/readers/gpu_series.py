"""Readings of accelerators as series: one a device and quantity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tailrace.diagnose.observed import Clock, Place, Series
from tailrace.model.gpu_state import GpuState

__all__ = ["series_of_gpus"]

_FIELDS: Final = (
    ("gpu_util", "utilisation", "share"),
    ("sm_clock", "sm_clock_mhz", "MHz"),
    ("max_sm_clock", "max_sm_clock_mhz", "MHz"),
    ("memory_clock", "memory_clock_mhz", "MHz"),
    ("power", "power_w", "W"),
    ("power_limit", "power_limit_w", "W"),
    ("temperature", "temperature_c", "C"),
    ("memory_temperature", "memory_temperature_c", "C"),
    ("dram_active", "dram_active", "share"),
    ("sm_active", "sm_active", "share"),
    ("memory_used", "memory_used_bytes", "bytes"),
)
_REASONS: Final = ("sw_power_cap", "hw_power_brake", "sw_thermal", "hw_thermal", "hw_slowdown")


def series_of_gpus(states: Sequence[GpuState], source: str, lines: Sequence[int] | None = None) -> list[Series]:
    """Each quantity that was read, over time (seconds from the first reading), by device; the clock-event reasons as
    `clock_event` with the label `reason`, 1 where it is active and 0 where it is not. `lines`: of each state.
    """
    devices: dict[str, list[int]] = {}
    for place, state in enumerate(states):
        devices.setdefault(state.index, []).append(place)
    origin = min((state.at_ns for state in states), default=0)
    out: list[Series] = []
    for device, members in devices.items():
        ordered = sorted(members, key=lambda place: states[place].at_ns)
        mine = [states[place] for place in ordered]
        at = np.array([(state.at_ns - origin) / 1e9 for state in mine], dtype=np.float64)
        rows = None if lines is None else np.array([lines[place] for place in ordered], dtype=np.int64)

        def add(name: str, values: list[float], unit: str, labels: dict[str, str]) -> None:
            out.append(
                Series(
                    name=name,
                    labels=labels,
                    at=at,  # noqa: B023  (called in this turn of the loop only)
                    values=np.array(values, dtype=np.float64),
                    unit=unit,
                    clock=Clock.RELATIVE,
                    lines=rows,  # noqa: B023
                    place=Place(source, int(rows[-1]) if rows is not None and rows.size else 0),  # noqa: B023
                )
            )

        for name, field, unit in _FIELDS:
            values = [getattr(state, field) for state in mine]
            if any(value is not None for value in values):
                add(name, [np.nan if value is None else float(value) for value in values], unit, {"gpu": device})
        if any(state.reasons is not None for state in mine):
            for reason in _REASONS:
                told = [np.nan if state.reasons is None else float(reason in state.reasons) for state in mine]
                add("clock_event", told, "", {"gpu": device, "reason": reason})
    return out
