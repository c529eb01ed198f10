"""Faults of what the engine's scheduler is asked to do: too much, in pieces too large, with too little memory."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.faults.gateway import in_flight
from tailrace.simulate.incidents.setting import Setting, between, capacity, chance, pick, spread
from tailrace.simulate.incidents.site import Batcher, Wear
from tailrace.simulate.incidents.traffic import Class

_replace = msgspec.structs.replace
_GONE: Final = 0.6
"""Strength from which no threshold is left."""


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


def _mixed(setting: Setting, rng: np.random.Generator, *, longer: float = 1.0) -> Setting:
    fast = setting.site.preset.startswith("h100")
    tokens = spread(rng, 6000, 16_000) if fast else spread(rng, 3000, 8000)
    return _documents(setting, rng, share=(0.02, 0.08), tokens=tokens * longer)


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
    blocks = int(in_flight(setting) * tokens * between(2.0, 0.8, strength) / 16)
    longest = traffic.longest_prompt + traffic.longest_output
    return setting.with_site(knobs={**setting.site.knobs, "num_gpu_blocks": max(blocks, longest // 16 + 8)})


def _guarded(setting: Setting, rng: np.random.Generator) -> Setting:
    """Very long prompts come, and a threshold keeps each of them from taking a whole step: a whole prompt is seconds of
    the engine's time, and without the threshold whoever comes meanwhile waits for all of it.
    """
    mixed = _mixed(setting, rng, longer=2.0)
    budget = pick(rng, 1024, 2048)
    return mixed.with_site(
        knobs={**mixed.site.knobs, "max_num_batched_tokens": budget, "long_prefill_token_threshold": budget // 4}
    )


def _unguarded(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The threshold is raised, or gone: whoever comes behind a long prompt waits until it is through."""
    del rng
    budget = int(setting.site.knobs["max_num_batched_tokens"])
    most = 0 if strength >= _GONE else int(budget * between(0.6, 1.0, strength / _GONE))
    return setting.with_site(knobs={**setting.site.knobs, "long_prefill_token_threshold": most})


def _small_batch(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """So few requests may run at once that they wait, and the engine could do more."""
    del rng
    most = max(2, round(in_flight(setting) * between(1.5, 0.75, strength)))
    return setting.with_site(knobs={**setting.site.knobs, "max_num_seqs": most})


def _batcher(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """A dynamic batcher waits for a batch that this load does not fill."""
    window = between(60, 1200, strength)
    preferred = int(setting.traffic.rate * window / 1000 * float(rng.uniform(1.5, 4.0))) + 2
    return setting.with_site(batcher=Batcher(window_ms=window, preferred=preferred))


def _at_low_load(setting: Setting, rng: np.random.Generator) -> Setting:
    return setting.having(load=float(rng.uniform(0.1, 0.4)))


def _hang(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The core stands still once, with requests in it."""
    wear = Wear(hang_at=float(rng.uniform(0.25, 0.7)), hang_s=between(2.0, 30.0, strength))
    return setting.with_site(wear=wear)


SCHEDULER: Final[tuple[Fault, ...]] = (
    # The cap of running requests is what they wait for: whether it or the load is called too much is a question of what
    # the tokens' objective leaves room for.
    Fault("overload", "SCHED_QUEUE_SATURATION", _overload, also=("TUNE_NOT_SCALE",)),
    Fault("prefill_pieces", "SCHED_PREFILL_STEALS_DECODE", _large_pieces, _mixed, also=("SCHED_HOL_LONG_PREFILL",)),
    # Both are one step that is too long for whoever shares it: what else the engine does decides whether those who wait
    # for a first token feel it more, or those who read.
    Fault("long_prompt_first", "SCHED_HOL_LONG_PREFILL", _unguarded, _guarded, also=("SCHED_PREFILL_STEALS_DECODE",)),
    # A cache that is too small forgets beginnings before it throws anybody out; memory for it mends both.
    Fault("kv_small", "SCHED_KV_PREEMPTION", _little_memory, also=("MIX_CACHE_MISS",)),
    Fault(
        "batch_limit",
        "TUNE_NOT_SCALE",
        _small_batch,
        also=("SCHED_QUEUE_SATURATION", "SCHED_INSTANCE_LIMIT"),
    ),
    Fault("batcher_window", "SCHED_BATCHER_WAIT", _batcher, _at_low_load),
    Fault("engine_hang", "ENGINE_STALL", _hang, also=("COMPUTE_STALL",)),
)
