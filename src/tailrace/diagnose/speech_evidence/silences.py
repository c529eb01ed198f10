"""How long somebody was told to wait for silence before a turn ends."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.vocabulary import in_unit

__all__ = ["Silence", "configured_silences"]

_NAMES: Final = re.compile(
    r"endpointing|utterance_end|silence_duration|min_silence|vad_silence|silence_ms|end_silence|stop_secs|stop_history|"
    r"end_of_turn_silence|eou_silence|silence_(?:timeout|threshold_ms|s$|secs)|trailing_silence|hangover|redemption"
)
_UNITS: Final = (("_ms", "ms"), ("_secs", "s"), ("_s", "s"), ("_delay", "s"), ("stop_history", "ms"))
_LONGEST_MS: Final = 60_000.0


class Silence(NamedTuple):
    """One such setting."""

    name: str
    ms: float
    place: str


def configured_silences(observed: Observed) -> list[Silence]:
    """Settings of recognisers, voice detectors and turn detectors that say how much silence ends a turn."""
    out = []
    for setting in observed.settings:
        name = setting.name.lower()
        value = setting.number
        if value is None or not _NAMES.search(name) or "max_" in name:
            continue
        unit = setting.unit or next((unit for ending, unit in _UNITS if name.endswith(ending)), "")
        # Providers count in ms unless the name says otherwise; nobody waits for 30 s.
        scaled = in_unit(value, unit or ("s" if value < 30 else "ms"), "ms")
        if scaled is not None and 0 < scaled <= _LONGEST_MS:
            out.append(Silence(setting.name, scaled, str(setting.place)))
    return out
