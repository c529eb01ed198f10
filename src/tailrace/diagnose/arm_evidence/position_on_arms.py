"""STREAM_GAP_AT_POSITION from rows of gaps: each names its stream, how long it was, and where in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import condition, figure
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["position_on_arms"]

LEAST: Final = 3
LEAST_MS: Final = 500.0
WIDTH: Final = 0.01
SHARE: Final = 0.8
PLACE: Final = (
    r"(?:text|char\w*|tokens?|output)[ _]?(?:offset|position|index|before (?:the )?(?:gap|stop|pause|stall)|so far)|"
    r"^(?:offset|position)|(?:gap|pause|stop|stall) (?:position|offset|index)|at token|chars? (?:into|from)"
)


def position_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Four fifths of the gaps lie within a hundredth of one position."""
    rows = [
        (arm, gap, place)
        for arm in observed.arms
        if (gap := figure(arm, "chunk_gap", stats=("", "max", "p99"))) is not None
        and (place := condition(arm, PLACE)) is not None
        and gap.unit == "ms"
        and gap.value >= LEAST_MS
    ]
    if len(rows) < LEAST:
        return None
    places = np.array([place for *_, place in rows])
    middle = float(np.median(places))
    near = np.abs(places - middle) <= max(WIDTH * middle, 1.0)
    if middle <= 0 or near.sum() < max(LEAST, SHARE * len(rows)):
        return None
    longest = max(gap.value for _, gap, _ in rows)
    n = int(near.sum())
    return cause.finding(
        action=Action.COLLECT,
        statement=f"{n} of {len(rows)} streams stop at the same position of the text ({middle:g}) for up to "
        f"{number(longest, 'ms')}: what happens there, not the load, stops them.",
        evidence=[
            *(evidence_of(arm, gap) for arm, gap, _ in rows[:8]),
            Evidence(f"{n} of {len(rows)} gaps lie at position {middle:g}", str(rows[0][0].place), "position", middle),
        ],
        explains_ms=longest,
        relation=f"positions {places.min():g} to {places.max():g}, median {middle:g}",
        n=len(rows),
        advice="Try the features that meet there one by one (grammar x speculation, tool-call parser, stop strings, "
        "detokeniser) on the same prompts; keep the pair that stops apart.",
        price="A feature switched off costs what it was there for.",
        verify=again(),
        missing=["how many streams had no gap there", "the same prompts with each feature switched off by itself"],
        disproof_checked=[f"{n} of {len(rows)} at one position"],
    )
