"""STREAM_GAP_AT_POSITION from a form: so many of so many streams stop, all at one place of the text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import number_stated, told
from tailrace.diagnose.arms.shown import evidence_of_setting, number
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["position_stated"]

LEAST_MS: Final = 1000.0
_PLACE: Final = re.compile(r"(?:gap|stall|pause|stop).*(?:position|place|where|at$)|^(?:text )?position|same position")
_FEATURES: Final = re.compile(r"grammar|structured|specul|tool|draft|schema|prefix cach|lora|chunked", re.IGNORECASE)


def position_stated(cause: Cause, observed: Observed) -> Finding | None:
    """Needs the place, the streams that have the gap, and how long it is."""
    place = next(
        (
            item
            for item in told(observed)
            if _PLACE.search(item.name.replace("_", " ")) and isinstance(item.value, str) and item.value
        ),
        None,
    )
    gap = number_stated(observed, r"^(?:gaps?|stalls?|pauses?)(?: s| ms)?$")
    longest = _longest(gap)
    if place is None or gap is None or longest is None or longest < LEAST_MS:
        return None
    some = number_stated(observed, r"(?:streams?|requests?|of them) (?:with|having|hit|affected)|affected")
    every = number_stated(observed, r"^(?:streams?|requests?|n|total(?: streams| requests)?|samples?)$")
    features = [item for item in told(observed) if item.value is True and _FEATURES.search(item.name.replace("_", " "))]
    missing = []
    if some is None or every is None or not every.number:
        missing.append("in how many of how many streams the gap is")
    missing.append("the same prompts with each feature switched off by itself, and chunk stamps with text offsets")
    of = ""
    if some is not None and every is not None and some.number and every.number:
        if some.number > every.number:
            return None
        of = f" in {some.number:g} of {every.number:g} streams"
    names = " x ".join(item.name.replace("_", " ") for item in features)
    return cause.finding(
        action=Action.COLLECT,
        statement=f"The gap of up to {number(longest, 'ms')} comes{of} at the same position of the text "
        f"({place.value}): what happens there, not the load, stops the stream"
        + (f"; in use are {names}." if names else "."),
        evidence=[
            evidence_of_setting(place),
            evidence_of_setting(gap),
            *(evidence_of_setting(item) for item in (some, every) if item is not None),
            *(evidence_of_setting(item) for item in features),
            Evidence(f"longest gap {number(longest, 'ms')}", str(gap.place) or "form", "gap_ms", longest, "ms"),
        ],
        explains_ms=longest,
        relation=f"{some.number:g} / {every.number:g} = {some.number / every.number:.1%} of the streams"
        if of and some is not None and every is not None and some.number and every.number
        else f"gap {number(longest, 'ms')} at one position",
        n=int(every.number) if every is not None and every.number else 1,
        advice="Test feature pairs one by one at that position (grammar x speculation first, then tool parser, prefix "
        "cache, chunked prefill): the pair whose removal ends the gap is it. Do not blame one by its position alone.",
        price="Each feature that is switched off for the test costs its own gain.",
        verify=again(),
        missing=missing,
        disproof_checked=["the position is said to be the same"],
    )


def _longest(gap: Setting | None) -> float | None:
    if gap is None or not gap.unit:
        return None
    values = gap.value if isinstance(gap.value, list) else [gap.value]
    known = [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return in_unit(max(known), gap.unit, "ms") if known else None
