"""Faults of nobody: the traffic has changed."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, chance, pick, spread
from tailrace.simulate.incidents.traffic import Class

_replace = msgspec.structs.replace


def _longer_prompts(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The share of long prompts grows, at an equal rate."""
    del rng
    classes = setting.traffic.classes
    chat, document = classes[0], classes[1]
    share = min(document.share * between(1.5, 5.0, strength), 0.6)
    return setting.with_traffic(classes=(_replace(chat, share=1 - share), _replace(document, share=share)))


def _with_documents(setting: Setting, rng: np.random.Generator) -> Setting:
    chat = setting.traffic.classes[0]
    fast = setting.site.preset.startswith("h100")
    share = float(rng.uniform(0.01, 0.06))
    document = Class(name="document", share=share, prompt=5000 if fast else 3000, prompt_spread=0.3, output=120)
    return setting.with_traffic(classes=(_replace(chat, share=1 - share), document))


def _longer_answers(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    del rng
    factor = between(1.4, 4.0, strength)
    longer = tuple(_replace(one, output=int(one.output * factor)) for one in setting.traffic.classes)
    return setting.with_traffic(classes=longer)


def _sessions(setting: Setting, rng: np.random.Generator) -> Setting:
    tokens = int(spread(rng, 1200, 4000))
    site = setting.with_site(tells_cached=True, knobs={**setting.site.knobs, "enable_prefix_caching": True})
    return site.with_traffic(sessions=pick(rng, 15, 40), shared_tokens=tokens, repeats=0.97, longest_prompt=12_000)


def _unlike(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Prompts no longer begin alike (a time stamp stands first), or the cache is off."""
    if chance(rng, 0.3):
        return setting.with_site(knobs={**setting.site.knobs, "enable_prefix_caching": False})
    return setting.with_traffic(repeats=0.97 * (1 - between(0.3, 1.0, strength)))


def _bursts(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The same number of requests, many of them at once."""
    return setting.with_traffic(
        arrivals="bursts",
        burst_s=float(rng.uniform(5, 20)),
        burst_share=between(0.3, 0.95, strength),
        burst_for_s=float(rng.uniform(0.1, 0.4)),
    )


def _with_grammar(setting: Setting, rng: np.random.Generator) -> Setting:
    return setting.with_traffic(grammar=float(rng.uniform(0.05, 0.3)))


def _compiled_anew(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Grammars that are not in the cache, and take their time."""
    del rng
    front = _replace(setting.site.front, grammar_ms=between(250, 5000, strength), grammar_cached=0.1)
    return setting.with_site(front=front)


def _choices(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Requests ask for several answers at once."""
    return setting.with_traffic(choices=between(0.08, 0.6, strength), choices_n=pick(rng, 4, 8))


def _one_answer(setting: Setting, rng: np.random.Generator) -> Setting:
    return setting.with_traffic(choices=0.0).having(load=float(rng.uniform(0.35, 0.65)))


MIX: Final[tuple[Fault, ...]] = (
    Fault("longer_prompts", "MIX_SHIFT", _longer_prompts, _with_documents, before=True),
    Fault("longer_answers", "MIX_SHIFT", _longer_answers, before=True),
    Fault("cache_lost", "MIX_CACHE_MISS", _unlike, _sessions, before=True),
    Fault("bursts", "MIX_BURSTY_ARRIVALS", _bursts),
    Fault("grammar", "MIX_STRUCTURED_OUTPUT", _compiled_anew, _with_grammar),
    Fault("more_choices", "MIX_DECODING_OPTIONS", _choices, _one_answer, before=True),
)
