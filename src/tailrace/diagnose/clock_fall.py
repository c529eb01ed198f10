"""Whether a device's clock fell under load, and what it says lowered it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tailrace.model.gpu_state import POWER_REASONS, THERMAL_REASONS, GpuState

__all__ = [
    "AT_CAP",
    "FALL",
    "SERIES_FALL",
    "STATED_FALL",
    "ClockFall",
    "clock_fall",
    "limited_by_heat",
    "limited_by_power",
]

FALL: Final = 0.10
"""Of one reading against another: a clock that falls by less is the usual play of a device's boost."""
SERIES_FALL: Final = 0.05
"""Of usual readings under a limit against usual ones without it: the play of a boost is mostly averaged out."""
STATED_FALL: Final = 0.03
"""Of rows of a table, which are means of whole runs (`COMPUTE_THERMAL`'s own case falls by 15 % over minutes)."""
AT_CAP: Final = 0.97
"""Of its power limit: a device that is held there draws a few per cent under it in one reading and over in the next."""
LEAST: Final = 2
"""Readings on either side."""
BUSY: Final = 0.05


class ClockFall(NamedTuple):
    """The SM clock without a limit and under it (MHz)."""

    device: str
    high: float
    low: float
    loaded: list[GpuState]
    limited: list[GpuState]
    always: bool
    """It is limited in every reading, and `high` is the device's own maximum."""

    @property
    def share(self) -> float:
        """By how much it fell, of what it was."""
        return 1.0 - self.low / self.high


def limited_by_power(state: GpuState) -> bool:
    """The device says so; where it gives no reasons, its draw is at its limit."""
    if state.reasons is not None:
        return bool(POWER_REASONS & set(state.reasons)) and not limited_by_heat(state)
    return (
        state.power_w is not None and bool(state.power_limit_w) and state.power_w >= AT_CAP * (state.power_limit_w or 0)
    )


def limited_by_heat(state: GpuState) -> bool:
    """The device says so."""
    return bool(THERMAL_REASONS & set(state.reasons or ()))


def clock_fall(device: str, states: Sequence[GpuState], *, heat: bool) -> ClockFall | None:
    """The fall under the limit in question; `None` where there is none, or nothing to compare with.

    Only readings under load count: an idle device lowers its clock because it may.
    """
    loaded = [state for state in states if _loaded(state)]
    limited = [state for state in loaded if (limited_by_heat if heat else limited_by_power)(state)]
    free = [state for state in loaded if not limited_by_power(state) and not limited_by_heat(state)]
    if len(limited) < LEAST:
        return None
    if len(free) >= LEAST:
        high = float(np.quantile([state.sm_clock_mhz or 0.0 for state in free], 0.95))
    elif all(state.max_sm_clock_mhz for state in limited):
        # Limited in every reading: what the device could do is all there is to compare with.
        high = float(np.median([state.max_sm_clock_mhz or 0.0 for state in limited]))
    else:
        return None
    low = float(np.quantile([state.sm_clock_mhz or 0.0 for state in limited], 0.05))
    if high <= 0 or low > (1.0 - FALL) * high:
        return None
    return ClockFall(device, high, low, loaded, limited, len(free) < LEAST)


def _loaded(state: GpuState) -> bool:
    if not state.sm_clock_mhz:
        return False
    if "idle" in (state.reasons or ()):
        return False
    return state.utilisation is None or state.utilisation >= BUSY
