"""Faults of the engine's API server and of the processor under it."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.setting import Setting, between, chance, pick, spread
from tailrace.simulate.incidents.site import Wear
from tailrace.simulate.incidents.traffic import Class

_replace = msgspec.structs.replace


def _collections(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Pauses of the collector: at even intervals, in one of the two processes."""
    wear = Wear(
        pause_every_s=float(rng.uniform(1.2, 8.0)),
        pause_ms=between(150, 2500, strength),
        pause_in="front" if chance(rng, 0.6) else "core",
        pause_growth=0.01 if chance(rng, 0.3) else 0.0,
    )
    return setting.with_site(wear=wear)


def _starved(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    every = pick(rng, 0.0, 10.0, 20.0)
    wear = Wear(host=between(5, 60, strength), every_s=every, for_s=0.3 * every, cause=pick(rng, "quota", "contention"))
    return setting.with_site(wear=wear)


def _with_long_prompts(setting: Setting, rng: np.random.Generator) -> Setting:
    chat = setting.traffic.classes[0]
    share = float(rng.uniform(0.04, 0.15))
    document = Class(name="document", share=share, prompt=int(spread(rng, 1800, 4000)), prompt_spread=0.4, output=100)
    return setting.with_traffic(classes=(_replace(chat, share=1 - share), document))


def _tokenising(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Prompts are tokenised on the loop that streams all answers, and slowly."""
    del rng
    front = _replace(setting.site.front, on_loop=True, token_us=between(45, 600, strength))
    return setting.with_site(front=front)


def _long_answers(setting: Setting, rng: np.random.Generator) -> Setting:
    essay = _replace(setting.traffic.classes[0], share=1.0, output=int(spread(rng, 500, 900)), output_spread=0.4)
    return setting.with_traffic(classes=(essay,))


def _detokenising(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Each step pays for all text so far: the answer is decoded anew with each token."""
    del rng
    return setting.with_site(wear=Wear(position_us=between(0.4, 3.5, strength)))


def _with_tools(setting: Setting, rng: np.random.Generator) -> Setting:
    chat = setting.traffic.classes[0]
    longer = _replace(chat, output=max(chat.output, 200), output_spread=0.4)
    tools = float(rng.uniform(0.1, 0.4))
    return setting.with_traffic(classes=(longer, *setting.traffic.classes[1:]), tools=tools)


def _parser(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The parser of tool calls holds the arguments back until they are whole."""
    front = _replace(
        setting.site.front,
        hold_at=int(rng.integers(15, 80)),
        hold_tokens=int(between(45, 200, strength)),
        held_share=float(rng.uniform(0.5, 1.0)),
    )
    return setting.with_site(front=front)


FRONT_END: Final[tuple[Fault, ...]] = (
    Fault("gc_pause", "FE_GC_PAUSE", _collections),
    Fault(
        "cpu_starved",
        "FE_CPU_STARVED",
        _starved,
        without_signals=("DECODE_SLOWDOWN", "COMPUTE_STALL", "COMPUTE_KERNEL_REGRESSION"),
        signals="host",
    ),
    Fault("tokenising_on_loop", "FE_EVENTLOOP_BLOCK", _tokenising, _with_long_prompts),
    Fault("detokenising", "FE_DETOKENIZE_GROWTH", _detokenising, _long_answers),
    Fault("tool_parser", "STREAM_GAP_AT_POSITION", _parser, _with_tools),
)
