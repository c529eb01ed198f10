"""Faults of how requests are spread over several engines."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, pick, spread

_replace = msgspec.structs.replace


def _several(setting: Setting, rng: np.random.Generator) -> Setting:
    return setting.with_site(replicas=pick(rng, 2, 3, 4)).having(load=float(rng.uniform(0.35, 0.6)))


def _skewed(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """One engine gets more than its part: weights that no longer fit."""
    count = setting.site.replicas
    most = float(min(between(1.5, 3.5, strength) / count, 0.95))
    place = int(rng.integers(count))
    weights = tuple(most if i == place else (1 - most) / (count - 1) for i in range(count))
    return setting.with_site(gateway=_replace(setting.site.gateway, balance="weights", weights=weights))


def _with_sessions(setting: Setting, rng: np.random.Generator) -> Setting:
    """Conversations whose long beginnings one engine keeps."""
    setting = _several(setting, rng)
    traffic = {"sessions": pick(rng, 40, 120), "shared_tokens": int(spread(rng, 1500, 5000)), "repeats": 1.0}
    gateway = _replace(setting.site.gateway, balance="sticky")
    # The cache holds what each engine's own sessions need, and not those of all.
    blocks = int(traffic["sessions"] * traffic["shared_tokens"] / 16 / setting.site.replicas * 1.6) + 3000
    cached = {"enable_prefix_caching": True, "num_gpu_blocks": min(blocks, 27_000)}
    sticky = setting.with_site(gateway=gateway, knobs={**setting.site.knobs, **cached}, tells_cached=True)
    return sticky.with_traffic(**traffic, longest_prompt=12_000)


def _scattered(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """A change of routing sends a session's requests anywhere, all of them or a part."""
    del rng
    return setting.with_site(gateway=_replace(setting.site.gateway, scattered=between(0.3, 1.0, strength)))


def _hot(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """One session grows until its engine cannot keep up with it."""
    del rng
    return setting.with_traffic(hot=between(0.3, 0.9, strength))


BALANCING: Final[tuple[Fault, ...]] = (
    Fault("replica_skew", "LB_SKEW", _skewed, _several),
    Fault("affinity_lost", "LB_CACHE_AFFINITY_LOST", _scattered, _with_sessions, also=("MIX_CACHE_MISS",), before=True),
    Fault("hot_session", "LB_HOTSPOT", _hot, _with_sessions, also=("LB_SKEW",)),
)
