"""Faults of nobody: the traffic has changed."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between
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


MIX: Final[tuple[Fault, ...]] = (Fault("longer_prompts", "MIX_SHIFT", _longer_prompts, _with_documents, before=True),)
