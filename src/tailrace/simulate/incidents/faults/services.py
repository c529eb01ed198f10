"""Faults of a user's own service between gateway and engine, whose stages it reports."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, pick
from tailrace.simulate.incidents.site import Service

_replace = msgspec.structs.replace


def _with_service(setting: Setting, rng: np.random.Generator) -> Setting:
    if setting.site.service is not None:
        return setting
    service = Service(
        workers=pick(rng, 16, 32), before_ms=float(rng.uniform(3, 20)), after_ms=float(rng.uniform(0.5, 4))
    )
    return setting.with_site(service=service)


def _service(setting: Setting) -> Service:
    service = setting.site.service
    assert service is not None, "prepared with one"
    return service


def _preprocess(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    service = _service(setting)
    slower = _replace(service, before_ms=service.before_ms + between(60, 900, strength), workers=128)
    del rng
    return setting.with_site(service=slower)


def _postprocess(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    del rng
    service = _service(setting)
    # The pool stays as it is: it may fill up.
    return setting.with_site(service=_replace(service, after_ms=service.after_ms + between(150, 3000, strength)))


def _lock(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """A part that one request at a time can do: the rate fills it to so much."""
    del rng
    service = _service(setting)
    full = between(0.45, 0.97, strength)
    held = _replace(service, lock_ms=1000 * full / setting.traffic.rate, workers=256, spread=0.35)
    return setting.with_site(service=held)


def _with_encoder(setting: Setting, rng: np.random.Generator) -> Setting:
    setting = _with_service(setting, rng)
    return setting.with_site(service=_replace(_service(setting), encode_ms=float(rng.uniform(2, 8))))


def _encoder(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The encoder takes so many times as long; it does one request at a time and fills up."""
    del rng
    service = _service(setting)
    most = 0.9 * 1000 / setting.traffic.rate
    slower = min(service.encode_ms + between(40, 900, strength), max(most, 2 * service.encode_ms))
    return setting.with_site(service=_replace(service, encode_ms=slower))


SERVICES: Final[tuple[Fault, ...]] = (
    Fault("preprocess_slow", "PREPROCESS_SLOW", _preprocess, _with_service),
    Fault("postprocess_slow", "POSTPROCESS_SLOW", _postprocess, _with_service),
    Fault(
        "lock_contention",
        "LOCK_CONTENTION",
        _lock,
        _with_service,
        without_signals=("PREPROCESS_SLOW",),
        signals="host",
    ),
    Fault("encode_slow", "ENCODE_SLOW", _encoder, _with_encoder),
)
