"""How full an engine's cache of encoded audio (or images) is."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.arms.asked import as_share
from tailrace.diagnose.observed import Observed

__all__ = ["ENCODER_FULL", "encoder_cache"]

ENCODER_FULL: Final = 0.99
"""From here on no further session gets room; engines print whole percents."""
_NAMES: Final = ("encoder_cache_usage", "encoder_cache_usage_pct")


def encoder_cache(observed: Observed) -> tuple[float, str] | None:
    """(its use at most, 0..1; where that stands): as stated, over time, or in a table; `None` where nobody says it."""
    for name in _NAMES:
        setting = observed.setting(name)
        if setting is not None and setting.number is not None:
            unit = setting.unit or ("%" if name.endswith("_pct") else "")
            return as_share(setting.number, unit), str(setting.place)
        for series in observed.of_series(name):
            if len(series) and np.isfinite(series.values).any():
                return as_share(float(np.nanmax(series.values)), series.unit), str(series.place)
    for arm in observed.arms:
        used = arm.quoted("encoder_cache_usage")
        if used is not None and not used.relative:
            return as_share(used.value, used.unit), str(arm.place)
    return None
