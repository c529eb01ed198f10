"""COMPUTE_POWER_CAP and COMPUTE_THERMAL from one reading (`nvidia-smi -q`): a suspicion, because one moment is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.observed import Observed, Series
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["clock_at_once"]

FEW: Final = 3
AT_CAP: Final = 0.98
BUSY: Final = 0.3
_POWER: Final = ("sw_power_cap", "hw_power_brake")
_HEAT: Final = ("sw_thermal", "hw_thermal")


def clock_at_once(cause: Cause, observed: Observed, *, heat: bool, advice: str, price: str) -> Finding | None:
    """A limit that is active in the only readings that there are."""
    for clock in observed.of_series("sm_clock"):
        if len(clock) >= FEW or not len(clock):
            continue
        gpu = clock.labels.get("gpu", "")
        hot, capped = (_active(observed, gpu, names) for names in (_HEAT, _POWER))
        power, limit, used, warm = (
            _last(observed, name, gpu) for name in ("power", "power_limit", "gpu_util", "temperature")
        )
        at_cap = bool(power and limit and power >= AT_CAP * limit)
        if (hot if heat else ((capped or at_cap) and not hot)) and (used is None or used >= BUSY):
            return _found(cause, clock, gpu, heat, power, limit, warm, advice, price)
    return None


def _found(
    cause: Cause,
    clock: Series,
    gpu: str,
    heat: bool,  # noqa: FBT001
    power: float | None,
    limit: float | None,
    warm: float | None,
    advice: str,
    price: str,
) -> Finding:
    low = float(clock.values[-1])
    place = str(clock.line_of(len(clock) - 1))
    parts = [f"SM clock {low:.0f} MHz"]
    if power is not None:
        parts.append(f"{power:.0f}{f' of {limit:.0f}' if limit else ''} W")
    if warm is not None:
        parts.append(f"{warm:.0f} C")
    why = "heat limits its clock" if heat else "it is at its power cap, which limits its clock"
    return cause.finding(
        action=Action.FIX,
        statement=f"GPU {gpu or '0'}: {why} ({', '.join(parts)}), at the one moment that was read.",
        evidence=[Evidence(", ".join(parts), place, "sm_clock", low, "MHz")],
        explains_ms=None,
        relation=", ".join(parts),
        n=len(clock),
        advice=advice,
        price=price,
        verify="nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,power.limit,temperature.gpu,"
        "clocks_event_reasons.active --format=csv -l 1, during the same load",
        missing=["the clock over time under load, with requests of the same time: one moment is no course"],
        level=Level.SUSPECTED,
    )


def _active(observed: Observed, gpu: str, reasons: tuple[str, ...]) -> bool:
    told = [
        item
        for item in observed.of_series("clock_event")
        if item.labels.get("gpu", "") == gpu and item.labels.get("reason") in reasons and len(item)
    ]
    if any(bool((item.values > 0).any()) for item in told):
        return True
    return any(
        event.attributes.get("reason") in reasons and str(event.attributes.get("gpu", "")) == gpu
        for event in observed.of_kind("clock_event")
    )


def _last(observed: Observed, name: str, gpu: str) -> float | None:
    for item in observed.of_series(name):
        known = item.values[np.isfinite(item.values)]
        if item.labels.get("gpu", "") == gpu and known.size:
            return float(known[-1])
    return None
