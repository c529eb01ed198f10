"""Faults of what the engine's scheduler is asked to do: too much, in pieces too large, with too little memory."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.faults.gateway import in_flight
from tailrace.simulate.incidents.setting import Setting, between, capacity, chance, spread
from tailrace.simulate.incidents.traffic import Class

_replace = msgspec.structs.replace


def _overload(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """More requests come than the engine can serve at the batch that it is allowed."""
    del rng
    knobs = {**setting.site.knobs, "max_num_seqs": 64}
    # A request's share of a full batch's step, and its prompt: what 64 at once can do.
    most = capacity(_replace(setting.site, knobs=knobs), setting.traffic)
    return setting.with_site(knobs=knobs).with_traffic(rate=most * between(0.95, 1.8, strength))


def _documents(setting: Setting, rng: np.random.Generator, *, share: tuple[float, float], tokens: float) -> Setting:
    chat = setting.traffic.classes[0]
    part = float(rng.uniform(*share))
    document = Class(name="document", share=part, prompt=int(tokens), prompt_spread=0.15, output=120, output_spread=0.4)
    return setting.with_traffic(classes=(_replace(chat, share=1 - part), document), longest_prompt=int(tokens * 1.6))


def _mixed(setting: Setting, rng: np.random.Generator) -> Setting:
    fast = setting.site.preset.startswith("h100")
    tokens = spread(rng, 6000, 16_000) if fast else spread(rng, 3000, 8000)
    return _documents(setting, rng, share=(0.02, 0.08), tokens=tokens)


def _large_pieces(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The budget of a step lets a long prompt hold every stream up; without chunks it is computed whole."""
    knobs = dict(setting.site.knobs)
    if chance(rng, 0.5):
        knobs |= {"enable_chunked_prefill": False, "max_num_batched_tokens": 16_384}
    else:
        knobs |= {"max_num_batched_tokens": int(between(4096, 16_384, strength))}
    return setting.with_site(knobs=knobs)


def _little_memory(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    del rng
    traffic = setting.traffic
    shares = sum(one.share for one in traffic.classes)
    tokens = (
        sum(one.share / shares * (one.prompt * 1.15 + one.output) for one in traffic.classes) + traffic.shared_tokens
    )
    blocks = int(in_flight(setting) * tokens * between(1.3, 0.7, strength) / 16)
    longest = traffic.longest_prompt + traffic.longest_output
    return setting.with_site(knobs={**setting.site.knobs, "num_gpu_blocks": max(blocks, longest // 16 + 8)})


SCHEDULER: Final[tuple[Fault, ...]] = (
    Fault("overload", "SCHED_QUEUE_SATURATION", _overload),
    Fault("prefill_pieces", "SCHED_PREFILL_STEALS_DECODE", _large_pieces, _mixed, also=("SCHED_HOL_LONG_PREFILL",)),
    Fault("kv_small", "SCHED_KV_PREEMPTION", _little_memory),
)
