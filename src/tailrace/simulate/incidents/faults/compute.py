"""Faults of the accelerator."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, pick, spread
from tailrace.simulate.incidents.site import Wear

_replace = msgspec.structs.replace
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


def _new_build(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Another version of the engine, with slower kernels."""
    return _slower(setting, strength, rng).with_site(version=pick(rng, "0.19.1", "0.20.0"))


def _compiling(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Kernels are compiled when a shape comes for the first time."""
    del rng
    return setting.with_site(wear=Wear(jit_ms=between(700, 15_000, strength)))


def _now_and_then(setting: Setting, rng: np.random.Generator) -> Setting:
    """So little traffic that the engine is idle in between, for seconds."""
    chat = _replace(setting.traffic.classes[0], share=1.0, output=40)
    sparse = setting.with_traffic(classes=(chat,), shared_tokens=0, sessions=0)
    return sparse.having(load=float(rng.uniform(0.003, 0.012)), size=spread(rng, 250, 600))


def _ramp(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """After some idle seconds the accelerator's clocks are down, and come up slowly."""
    wear = Wear(
        idle_s=float(rng.uniform(1.5, 5.0)), ramp_s=between(0.2, 2.0, strength), ramp=between(0.45, 0.1, strength)
    )
    return setting.with_site(wear=wear)


COMPUTE: Final[tuple[Fault, ...]] = (
    Fault("thermal", "COMPUTE_THERMAL", _hot, without_signals=_SLOWER, signals="gpu"),
    Fault("power_cap", "COMPUTE_POWER_CAP", _capped, without_signals=_SLOWER, signals="gpu"),
    # What a neighbour costs shows against a time without it: no reading of the device says it.
    Fault("gpu_shared", "COMPUTE_GPU_SHARED", _neighbour, without_signals=_SLOWER, signals="gpu", before=True),
    Fault("slower_engine", "DECODE_SLOWDOWN", _slower, also=("COMPUTE_KERNEL_REGRESSION",), before=True),
    Fault("new_build", "COMPUTE_KERNEL_REGRESSION", _new_build, also=("DECODE_SLOWDOWN",), before=True),
    Fault("compiling", "COMPUTE_JIT", _compiling, also=("COMPUTE_STALL",)),
    Fault("idle_ramp", "COMPUTE_IDLE_RAMP", _ramp, _now_and_then),
)
