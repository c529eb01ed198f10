"""Faults between the client and the engine's API server: proxies, pools, lanes, the network, readers."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.govern.lane import LanePolicy
from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, chance, pick, spread
from tailrace.simulate.incidents.site import PATIENT
from tailrace.simulate.incidents.traffic import Class
from tailrace.simulate.presets import preset

_replace = msgspec.structs.replace


def in_flight(setting: Setting) -> float:
    """About how many requests are in flight in the healthy system: rate x time in the engine."""
    traffic = setting.traffic
    shares = sum(one.share for one in traffic.classes)
    output = sum(one.share / shares * one.output * np.exp(one.output_spread**2 / 2) for one in traffic.classes)
    return float(traffic.rate * output * (0.016 if setting.site.preset.startswith("a100") else 0.009))


def answer_s(setting: Setting) -> float:
    """About how long an answer of the first class takes (s)."""
    chat = setting.traffic.classes[0]
    return chat.output * (0.016 if setting.site.preset.startswith("a100") else 0.009)


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


def _heavy(setting: Setting, rng: np.random.Generator) -> Setting:
    """Prompts that take their time, at a high load: first tokens come after seconds."""
    fast = setting.site.preset.startswith("h100")
    tokens = spread(rng, 5000, 9000) if fast else spread(rng, 2500, 5000)
    heavy = Class(name="context", share=1.0, prompt=int(tokens), prompt_spread=0.6, output=120, output_spread=0.4)
    loaded = setting.with_traffic(classes=(heavy,), longest_prompt=16_000, grammar=0.0)
    return loaded.having(load=float(rng.uniform(0.6, 0.75)))


def prompt_s(setting: Setting) -> float:
    """How long the engine computes the median prompt of the first class (s)."""
    prompt = setting.traffic.classes[0].prompt
    return float(preset(setting.site.preset).cost().step_ps(0, 0, [(prompt, 0)]) / 1e12)


def _idle_timer(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    del rng
    timer = round(prompt_s(setting) * between(9.0, 1.5, strength), 2)
    return setting.with_site(hop=_replace(setting.site.hop, idle_s=timer))


def _in_one_piece(setting: Setting, rng: np.random.Generator) -> Setting:
    """A part of the answers is not streamed: nobody sees a byte of them before they are whole."""
    chat = setting.traffic.classes[0]
    share = float(rng.uniform(0.3, 0.7))
    report = Class(
        name="report", share=share, prompt=800, output=int(spread(rng, 250, 700)), output_spread=0.5, stream=False
    )
    return setting.with_traffic(classes=(_replace(chat, share=1 - share), report))


def _whole_timer(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The timer for a whole request ends the longest answers."""
    del rng
    report = setting.traffic.classes[-1]
    usual = report.output * (0.018 if setting.site.preset.startswith("a100") else 0.010)
    timer = round(usual * between(2.8, 1.1, strength), 1)
    return setting.with_site(hop=_replace(setting.site.hop, timeout_s=timer))


GATEWAY: Final[tuple[Fault, ...]] = (
    Fault("proxy_buffering", "GW_PROXY_BUFFERING", _buffering),
    Fault("chunk_coalescing", "GW_CHUNK_COALESCING", _coalescing),
    Fault("first_event_held", "GW_HOLDS_FIRST_EVENT", _holding),
    Fault("connection_pool", "GW_CONN_POOL_CAP", _pool),
    Fault("lane_limit", "GW_LANE_QUEUE", _lane),
    Fault("gateway_blocked", "GW_SELF_BOTTLENECK", _own_loop),
    Fault("network", "GW_NETWORK", _network),
    Fault("idle_timer", "GW_IDLE_TIMEOUT", _idle_timer, _heavy),
    Fault("upstream_timer", "GW_UPSTREAM_TIMEOUT", _whole_timer, _in_one_piece),
)
