"""GW_IDLE_TIMEOUT from a form that lists at which ages connections ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.asked import number_stated, told
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.configured.timers import alike, timers
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["idle_timeout_in_ages"]

LEAST: Final = 3
_MOST: Final = 10_000
WIDTH: Final = 0.02
SHARE: Final = 0.8
_AGES: Final = re.compile(
    r"(?:disconnect|fail\w*|abort|error|drop|cut|reset|timeout)s?\b.*(?:\bat\b|ages?|after)|ages? of", re.IGNORECASE
)
_NOTHING: Final = re.compile(r"bytes(?: received)?$", re.IGNORECASE)


def idle_timeout_in_ages(cause: Cause, observed: Observed) -> Finding | None:
    """Most of the ages lie within 2 % of one value."""
    many = number_stated(observed, r"^(?:n |num |count )?(?:failed|failures|errors|disconnects|aborted)(?: requests)?$")
    for item in told(observed):
        if not _AGES.search(item.name.replace("_", " ")) or not item.unit or "share" in item.name:
            continue
        ages = _ms(item) if isinstance(item.value, list) else np.zeros(0)
        if item.number is not None and not isinstance(item.value, list) and many is not None and many.number:
            # One age for all of them, and how many they were.
            one = in_unit(item.number, item.unit, "ms")
            ages = np.full(min(int(many.number), _MOST), one) if one is not None else ages
        if ages.size < LEAST:
            continue
        middle = float(np.median(ages))
        near = ages[np.abs(ages - middle) <= WIDTH * middle]
        if middle > 0 and near.size >= max(LEAST, SHARE * ages.size):
            return _found(cause, observed, item, ages, near)
    return None


def _ms(item: Setting) -> np.ndarray:
    known = [float(one) for one in item.value if isinstance(one, (int, float)) and not isinstance(one, bool)]
    scaled = [in_unit(one, item.unit, "ms") for one in known]
    return np.array([one for one in scaled if one is not None], dtype=np.float64)


def _found(cause: Cause, observed: Observed, item: Setting, ages: np.ndarray, near: np.ndarray) -> Finding:
    seconds, low, high = (value / 1e3 for value in (float(np.median(near)), float(near.min()), float(near.max())))
    bytes_ = next((one for one in told(observed) if _NOTHING.search(one.name.replace("_", " "))), None)
    empty = bytes_ is not None and bytes_.number == 0
    timer = alike(observed, seconds * 1e3, owner="gateway")
    missing = []
    if bytes_ is None:
        missing.append("the bytes that each of them had received (0: before the first token)")
    if not timer:
        missing.append(
            "the timers of every hop: none that is known has this value"
            if timers(observed)
            else "the configuration of every hop on the way (idle and read timeouts)"
        )
    shown = f"{seconds:.4g} s" if seconds < 120 else f"{seconds:.4g} s ({seconds / 60:.3g} min)"
    return cause.finding(
        action=Action.TUNE,
        statement=f"{near.size} of {ages.size} connections end at one age, {shown}"
        + (", with no byte received" if empty else "")
        + f": {timer[0].name if timer else 'an idle timer of a hop'} cuts them.",
        evidence=[
            evidence_of_setting(item),
            Evidence(f"{near.size} of {ages.size} at {low:.4g} to {high:.4g} s ({shown})", str(item.place) or "form"),
            *([evidence_of_setting(bytes_)] if bytes_ is not None else []),
            *([Evidence(f"{timer[0].name} is {timer[0].ms / 1e3:g} s", timer[0].place)] if timer else []),
        ],
        explains_ms=None,
        relation=f"ages {low:.4g} to {high:.4g} s: {near.size} of {ages.size} within {WIDTH:.0%}",
        n=int(ages.size),
        advice="Set the idle timer of that hop above the longest silence (p99 TTFT, tool calls), or send SSE comments "
        "(`: heartbeat`) while nothing is said; stop retrying these requests meanwhile.",
        price="A longer timer keeps dead connections longer; heartbeats cost a few bytes a second.",
        verify=f"tailrace bench http://localhost:8080 --requests 1  # quiet for {seconds:.0f} s, it must live on",
        missing=missing,
        disproof_checked=[f"the ages do not spread: {low:.4g} to {high:.4g} s"],
    )
