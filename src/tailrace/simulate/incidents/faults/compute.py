"""Faults of the accelerator."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, pick
from tailrace.simulate.incidents.site import Wear

_SLOWER: Final = (
    "DECODE_SLOWDOWN",
    "COMPUTE_KERNEL_REGRESSION",
    "COMPUTE_THERMAL",
    "COMPUTE_POWER_CAP",
    "COMPUTE_GPU_SHARED",
)


def _clock(setting: Setting, strength: float, rng: np.random.Generator, cause: Literal["thermal", "power"]) -> Setting:
    """The SM clock falls; memory keeps its pace."""
    every = pick(rng, 0.0, 30.0)
    compute, memory = between(0.85, 0.3, strength), between(0.97, 0.8, strength)
    wear = Wear(compute=compute, memory=memory, every_s=every, for_s=0.4 * every, cause=cause)
    return setting.with_site(wear=wear)


def _hot(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    return _clock(setting, strength, rng, "thermal")


def _capped(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    return _clock(setting, strength, rng, "power")


def _neighbour(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Another process computes on the device: it takes compute and bandwidth alike, now and then."""
    every = pick(rng, 0.0, 15.0, 30.0)
    part = between(0.75, 0.25, strength)
    return setting.with_site(wear=Wear(compute=part, memory=part, every_s=every, for_s=0.35 * every, cause="neighbour"))


def _slower(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Everything takes longer, all the time."""
    del rng
    part = between(0.85, 0.35, strength)
    return setting.with_site(wear=Wear(compute=part, memory=part))


COMPUTE: Final[tuple[Fault, ...]] = (
    Fault("thermal", "COMPUTE_THERMAL", _hot, without_signals=_SLOWER, signals="gpu"),
    Fault("power_cap", "COMPUTE_POWER_CAP", _capped, without_signals=_SLOWER, signals="gpu"),
    Fault("gpu_shared", "COMPUTE_GPU_SHARED", _neighbour, without_signals=_SLOWER, signals="gpu"),
    Fault("slower_engine", "DECODE_SLOWDOWN", _slower, also=("COMPUTE_KERNEL_REGRESSION",), before=True),
)
