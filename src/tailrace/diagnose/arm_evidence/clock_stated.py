"""COMPUTE_POWER_CAP and COMPUTE_THERMAL from a form: clock, power and its limit, temperature, and which limit the
device says is active.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import told
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.clock_fall import AT_CAP, STATED_FALL
from tailrace.diagnose.commands import CLOCK_OVER_TIME
from tailrace.diagnose.observed import Observed, Setting
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["clock_stated", "limit_told"]

HOT_C: Final = 83.0
_CLOCK: Final = re.compile(r"(?:sm|gpu|graphics|core)?_?clocks?(?:_|$)|^sclk|mhz$", re.IGNORECASE)
_HIGH: Final = re.compile(r"max|base|boost|rated|before|cold|start|unloaded|requested|idle|high|default", re.IGNORECASE)
_NOT_SM: Final = re.compile(r"mem|event|reason|throttle", re.IGNORECASE)
_NO: Final = re.compile(r"\bnot\b|inactive|\bno\b|none|false|^0(?:x0+)?$|off", re.IGNORECASE)
_YES: Final = re.compile(r"active|yes|true|on\b|thermal|power|throttl|0x", re.IGNORECASE)
_SLOWER: Final = re.compile(r"ttft|tpot|itl|prefill|decode|tok_s|tflops|latency|e2e|req_s|throughput", re.IGNORECASE)


def limit_told(text: str, *, heat: bool) -> bool | None:
    """Whether words of a column or a form say that the limit in question holds the clock; `None` where they tell
    nothing of it.
    """
    words = text.lower()
    about = re.search(r"therm|\bheat|hot\b|temperature" if heat else r"power|\bsw_?cap|brake", words) is not None
    if not about:
        return None
    return not re.search(r"inactive|not active|\bnone\b|\bno\b|: ?0\b|false", words)


def clock_stated(cause: Cause, observed: Observed, *, heat: bool) -> Finding | None:
    """The clock is below what it was (or can be), and power is at its limit, or heat is said to hold it."""
    items = told(observed)
    clocks = [item for item in items if _CLOCK.search(item.name) and not _NOT_SM.search(item.name)]
    span = _span(clocks)
    power, limit = (
        _number(items, r"^(?:gpu_)?power(?:_draw)?(?:_w)?$"),
        _number(items, r"power_(?:limit|cap)|^tdp|^cap_w$"),
    )
    at_limit = power is not None and limit is not None and limit[0] > 0 and power[0] >= AT_CAP * limit[0]
    flags = {True: _flag(items, r"therm|heat"), False: _flag(items, r"power_cap|power_brake|sw_power")}
    temperature = _number(items, r"temp", last=True)
    thermal, capping = flags[True], flags[False]
    hot = thermal is not None and thermal[0]
    capped = at_limit or (capping is not None and capping[0])
    if span is None or span[1] > (1 - STATED_FALL) * span[0]:
        return None
    if heat and (
        not hot and not (temperature is not None and temperature[0] >= HOT_C and power is not None and not at_limit)
    ):
        return None
    if heat and thermal is not None and not thermal[0]:
        return None
    if not heat and (hot or not capped):
        return None
    high, low, shown = span
    slower = [item for item in items if _SLOWER.search(item.name) and isinstance(item.value, (list, int, float))][:3]
    missing = ["the SM clock over time with the clock-event reasons, beside the load"]
    if not slower:
        missing.append("throughput or latency of both times: whether anybody was slower for it")
    known = [
        item
        for pair in (power, limit, temperature, flags[True], flags[False])
        if pair is not None
        for item in [pair[1]]
    ]
    fall = 1 - low / high
    return cause.finding(
        statement=f"The SM clock is {low:.0f} MHz where {high:.0f} MHz is possible (-{fall:.1%}), "
        + ("and the device is too hot." if heat else "and power is at its limit with no thermal limit active."),
        evidence=[
            *(evidence_of_setting(item) for item in shown),
            *(evidence_of_setting(item) for item in known),
            *(evidence_of_setting(item) for item in slower),
            Evidence(f"1 - {low:.0f} / {high:.0f} = {fall:.1%}", "computed", "fall", round(fall, 4)),
        ],
        explains_ms=None,
        relation=f"1 - {low:.0f} / {high:.0f} = {fall:.1%}"
        + (f"; power {power[0]:g} of {limit[0]:g} W" if power is not None and limit is not None else ""),
        n=1,
        advice="Look at its cooling (fans, airflow, neighbours), or lower its power limit to what it can cool."
        if heat
        else "Raise the power limit (nvidia-smi -pl), or run fewer prefills at once; otherwise plan capacity with "
        "this clock.",
        price="A lower clock at all times, or money for cooling." if heat else "More power and heat.",
        verify=CLOCK_OVER_TIME,
        missing=missing,
        disproof_checked=[
            *([f"thermal limit {'active' if thermal[0] else 'not active'}"] if thermal is not None else []),
            *([f"power {'at' if at_limit else 'below'} its limit"] if power is not None and limit is not None else []),
        ],
        action=Action.FIX,
    )


def _values(item: Setting) -> list[float]:
    values = item.value if isinstance(item.value, list) else [item.value]
    return [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


def _span(clocks: list[Setting]) -> tuple[float, float, list[Setting]] | None:
    """(high, low, where they stand): a list, or a clock beside one that is called its most, or the earlier one."""
    for item in clocks:
        values = _values(item)
        if len(values) > 1 and min(values) > 0:
            return max(values), values[-1], [item]
    high = [item for item in clocks if _HIGH.search(item.name) and len(_values(item)) == 1]
    low = [item for item in clocks if item not in high and len(_values(item)) == 1]
    if not high or not low:
        return None
    return max(_values(item)[0] for item in high), _values(low[0])[0], [high[0], low[0]]


def _number(items: list[Setting], words: str, *, last: bool = False) -> tuple[float, Setting] | None:
    for item in items:
        values = _values(item)
        if values and re.search(words, item.name, re.IGNORECASE):
            return (values[-1] if last else max(values)), item
    return None


def _flag(items: list[Setting], words: str) -> tuple[bool, Setting] | None:
    """Whether something of that name is said to be active."""
    for item in items:
        if not re.search(words, item.name, re.IGNORECASE) or isinstance(item.value, (list, float)):
            continue
        text = str(item.value)
        if isinstance(item.value, bool):
            return item.value, item
        if _NO.search(text):
            return False, item
        if _YES.search(text):
            return True, item
    for item in items:
        about = isinstance(item.value, str) and re.search(
            r"reason|throttl|slowdown|clock_event", item.name, re.IGNORECASE
        )
        if about and re.search(words.replace("_", "[ _]"), item.value, re.IGNORECASE):
            return not re.search(r"inactive|not active", item.value, re.IGNORECASE), item
    return None
