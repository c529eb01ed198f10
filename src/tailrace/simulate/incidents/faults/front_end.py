"""Faults of the engine's API server and of the processor under it."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, chance, pick
from tailrace.simulate.incidents.site import Wear

_replace = msgspec.structs.replace


def _collections(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Pauses of the collector: at even intervals, in one of the two processes."""
    wear = Wear(
        pause_every_s=float(rng.uniform(1.2, 8.0)),
        pause_ms=between(150, 2500, strength),
        pause_in="front" if chance(rng, 0.6) else "core",
        pause_growth=0.01 if chance(rng, 0.3) else 0.0,
    )
    return setting.with_site(wear=wear)


def _starved(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    every = pick(rng, 0.0, 10.0, 20.0)
    wear = Wear(host=between(5, 60, strength), every_s=every, for_s=0.3 * every, cause=pick(rng, "quota", "contention"))
    return setting.with_site(wear=wear)


FRONT_END: Final[tuple[Fault, ...]] = (
    Fault("gc_pause", "FE_GC_PAUSE", _collections),
    Fault(
        "cpu_starved",
        "FE_CPU_STARVED",
        _starved,
        without_signals=("DECODE_SLOWDOWN", "COMPUTE_STALL", "COMPUTE_KERNEL_REGRESSION"),
        signals="host",
    ),
)
