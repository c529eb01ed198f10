"""Faults between the client and the engine's API server: proxies, pools, lanes, the network, readers."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.govern.lane import LanePolicy
from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, chance, pick
from tailrace.simulate.incidents.site import PATIENT, Service

_replace = msgspec.structs.replace


def in_flight(setting: Setting) -> float:
    """About how many requests are in flight in the healthy system: rate x time in the engine."""
    traffic = setting.traffic
    shares = sum(one.share for one in traffic.classes)
    output = sum(one.share / shares * one.output * np.exp(one.output_spread**2 / 2) for one in traffic.classes)
    return float(traffic.rate * output * (0.016 if setting.site.preset.startswith("a100") else 0.009))


def _buffering(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    size = int(between(1024, 65_536, strength) * rng.uniform(0.8, 1.2))
    return setting.with_site(hop=_replace(setting.site.hop, buffer_bytes=size))


def _coalescing(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    timer = between(40, 300, strength) * rng.uniform(0.9, 1.1)
    return setting.with_site(hop=_replace(setting.site.hop, coalesce_ms=float(timer)))


def _holding(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    share = float(rng.uniform(0.04, 0.5))
    return setting.with_site(hop=_replace(setting.site.hop, hold_share=share, hold_ms=between(250, 6000, strength)))


def _pool(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    del rng
    cap = max(2, round(in_flight(setting) * between(1.6, 0.75, strength)))
    return setting.with_site(gateway=_replace(setting.site.gateway, pool=cap))


def _lane(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    del rng
    cap = max(2, round(in_flight(setting) * between(1.6, 0.75, strength)))
    lane = LanePolicy(budgets=PATIENT, running=cap, queued=100_000)
    return setting.with_site(gateway=_replace(setting.site.gateway, lanes=(lane,)))


def _own_loop(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    every = pick(rng, 0.7, 2.0, 5.0)
    gateway = _replace(setting.site.gateway, block_every_s=every, block_ms=between(120, 1500, strength))
    return setting.with_site(gateway=gateway)


def _network(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    hop = setting.site.hop
    if chance(rng, 0.5):
        hop = _replace(hop, latency_ms=hop.latency_ms + between(40, 400, strength), jitter_ms=between(2, 30, strength))
    else:
        hop = _replace(hop, loss=between(0.002, 0.05, strength), jitter_ms=hop.jitter_ms + between(0.5, 10, strength))
    return setting.with_site(hop=hop)


def _slow_reader(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    client = _replace(
        setting.site.client,
        slow_share=float(rng.uniform(0.05, 0.4)),
        slow_bytes_per_s=between(12_000, 2_000, strength),
        window_bytes=pick(rng, 4096, 8192, 16_384),
    )
    return setting.with_site(client=client)


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


GATEWAY: Final[tuple[Fault, ...]] = (
    Fault("proxy_buffering", "GW_PROXY_BUFFERING", _buffering),
    Fault("chunk_coalescing", "GW_CHUNK_COALESCING", _coalescing),
    Fault("first_event_held", "GW_HOLDS_FIRST_EVENT", _holding),
    Fault("connection_pool", "GW_CONN_POOL_CAP", _pool),
    Fault("lane_limit", "GW_LANE_QUEUE", _lane),
    Fault("gateway_blocked", "GW_SELF_BOTTLENECK", _own_loop),
    Fault("network", "GW_NETWORK", _network),
    Fault("slow_reader", "CLIENT_SLOW_READER", _slow_reader),
    Fault("preprocess_slow", "PREPROCESS_SLOW", _preprocess, _with_service),
    Fault("postprocess_slow", "POSTPROCESS_SLOW", _postprocess, _with_service),
)
