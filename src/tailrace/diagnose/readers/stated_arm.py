"""Facts that stand in a form's context and not in an arm: one arm of their own, where the evidence has no other.

A person fills in what he knows wherever there is a field for it; a rule that asks arms must see it there too.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import QUANTITIES, TO_MS
from tailrace.diagnose.readers.fact_arms import fact_into

__all__ = ["STATED", "stated_arm"]

STATED: Final = "stated"
_LIMIT: Final = re.compile(r"max_queue_delay|queue_delay_(?:micro|milli)|batch\w*_(?:delay|window|timeout)")
"""How long a batcher may wait, which is a setting: it names a queue and a time, and nobody measured it."""
FEWEST: Final = 1
"""Without a known quantity nothing was measured under any condition."""


def stated_arm(observed: Observed) -> list[Arm]:
    """That arm; empty where there are arms already, or too little was stated."""
    forms = {item.source for item in observed.understood if item.format == "facts"}
    if observed.arms or not forms:
        return []
    keys: dict[str, float | str] = {}
    values: dict[str, Quoted] = {}
    place = None
    for item in observed.settings:
        if item.place.source in forms and item.number is not None and not isinstance(item.value, list):
            if item.number < 0 and item.unit not in TO_MS:
                continue  # `n_predict: -1`: a limit that is switched off
            if _LIMIT.search(item.name.lower()):
                continue
            place = place or item.place
            fact_into(keys, values, item.name, item.value, item.place)
    known = sum(item.quantity in QUANTITIES for item in values.values())
    if known < FEWEST or place is None:
        return []
    return [Arm(name=STATED, label=STATED, keys=keys, values=values, place=place)]
