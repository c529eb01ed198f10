"""A device's clock that falls under a limit while a table shows that work slows down in the same time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.asked import GAUGE_FIRST, figure
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.clock_fall import AT_CAP, SERIES_FALL
from tailrace.diagnose.commands import CLOCK_OVER_TIME
from tailrace.diagnose.observed import Arm, Observed, Quoted, Role, Series
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["clock_beside"]

IN_STEP: Final = 0.25
"""A speed of two arms goes with the clock where both fell to the same part of what they were, to this much."""
SLOWER: Final = 0.05
"""A speed that fell by less did not fall."""

_TIME: Final = re.compile(
    r"^(?:t|t_?s|time|elapsed|minutes?|seconds?|step|window|run|iteration)(?:_\w+)?$", re.IGNORECASE
)
_SPEEDS: Final = ("tflops", "prompt_tok_s", "output_tok_s", "decode_tok_s", "req_s")


def clock_beside(cause: Cause, observed: Observed, *, heat: bool) -> Finding | None:
    """SM clock down, the limit in question active (the other not), and a speed that falls in the table beside it."""
    for clock in observed.of_series("sm_clock"):
        found = _one(cause, observed, clock, heat=heat)
        if found is not None:
            return found
    return None


def _one(cause: Cause, observed: Observed, clock: Series, *, heat: bool) -> Finding | None:
    values = clock.values[np.isfinite(clock.values)]
    if values.size < 3:
        return None
    high, low = float(values.max()), float(values[-1])
    if high <= 0 or low > (1 - SERIES_FALL) * high:
        return None
    hot, capped = _active(observed, clock, "thermal"), _active(observed, clock, "power")
    at_limit = _at_limit(observed, clock)
    if heat and not hot:
        return None
    if not heat and (hot or not (capped or at_limit)):
        return None
    slower = _slower(observed) or _in_step(observed, low / high)
    if slower is None:
        return None
    words, evidence = slower
    power = _last(observed, "power", clock)
    limit = _last(observed, "power_limit", clock)
    place = str(clock.line_of(clock.values.size - 1)) or "readings"
    device = clock.labels.get("gpu", "0")
    drawn = f" at {number(power, 'W')} of {number(limit, 'W')}" if power is not None and limit is not None else ""
    return cause.finding(
        statement=f"GPU {device} lowers its SM clock from {high:.0f} to {low:.0f} MHz (-{1 - low / high:.1%}){drawn}, "
        + ("with a thermal limit active" if heat else "with its power at the limit and no thermal limit active")
        + f"; {words}.",
        evidence=[
            Evidence(f"SM clock {high:.0f} -> {low:.0f} MHz, -{1 - low / high:.1%}", place, "sm_clock_mhz", low, "MHz"),
            *(
                [Evidence(f"power {number(power, 'W')} of {number(limit, 'W')}", place, "power_w", power, "W")]
                if power is not None and limit is not None
                else []
            ),
            Evidence(f"thermal limit {'active' if hot else 'not active'}", place),
            *_temperature(observed, clock),
            *evidence,
        ],
        explains_ms=None,
        relation=f"1 - {low:.0f} / {high:.0f} = {1 - low / high:.1%}; {words}",
        n=int(values.size),
        advice="Look at its cooling (fans, airflow, neighbours), or lower its power limit to what it can cool."
        if heat
        else "Raise the power limit (nvidia-smi -pl), or run fewer prefills at once; otherwise plan capacity with "
        "this clock.",
        price="A lower power limit costs speed at all times; cooling costs money."
        if heat
        else "More power and heat, or a longer queue for prefills.",
        verify=CLOCK_OVER_TIME,
        disproof_checked=[
            f"power {'at' if at_limit else 'below'} its limit" if at_limit is not None else "power limit unknown",
            f"thermal reasons {'active' if hot else 'inactive'}",
        ],
    )


def _active(observed: Observed, clock: Series, word: str) -> bool:
    """Whether a clock-event reason of that kind was active in the slow half of the readings."""
    for item in observed.of_series("clock_event"):
        if item.labels.get("gpu") != clock.labels.get("gpu") or word not in item.labels.get("reason", ""):
            continue
        if np.nan_to_num(item.values[item.values.size // 2 :]).any():
            return True
    return False


def _last(observed: Observed, name: str, clock: Series) -> float | None:
    for item in observed.of_series(name):
        if item.labels.get("gpu") == clock.labels.get("gpu"):
            values: NDArray[np.float64] = item.values[np.isfinite(item.values)]
            return float(values[-1]) if values.size else None
    return None


def _at_limit(observed: Observed, clock: Series) -> bool | None:
    power, limit = _last(observed, "power", clock), _last(observed, "power_limit", clock)
    return None if power is None or not limit else power >= AT_CAP * limit


def _slower(observed: Observed) -> tuple[str, list[Evidence]] | None:
    """A speed that falls from its best to the last row of a table over time."""
    rows: list[tuple[Arm, Quoted]] = []
    for arm in observed.arms:
        speed = figure(arm, *_SPEEDS, stats=GAUGE_FIRST)
        if speed is not None and any(_TIME.match(name) for name in arm.keys):
            rows.append((arm, speed))
    rows = [row for row in rows if row[1].key == rows[0][1].key]
    if len(rows) < 2:
        return None
    best, last = max(value.value for _, value in rows), rows[-1][1]
    if best <= 0 or last.value > (1 - SLOWER) * best:
        return None
    words = (
        f"{quantity(last)} falls {number(best)} -> {number(last.value, last.unit)} "
        f"(-{1 - last.value / best:.0%}) in the same time"
    )
    return words, [evidence_of(arm, value) for arm, value in rows]


_DURATIONS: Final = ("prefill", "ttft", "tpot", "itl", "e2e")


def _in_step(observed: Observed, left: float) -> tuple[str, list[Evidence]] | None:
    """Two arms (fresh and heated through) of which a speed fell to, or a time grew by, what is left of the clock."""
    if len(observed.arms) != 2:
        return None
    first, last = observed.arms
    if first.role is Role.AFTER or last.role is Role.BEFORE:
        first, last = last, first
    for names, inverse in ((_SPEEDS, False), (_DURATIONS, True)):
        for name in names:
            one, two = figure(first, name, stats=GAUGE_FIRST), figure(last, name, stats=GAUGE_FIRST)
            if one is None or two is None or one.key != two.key or min(one.value, two.value) <= 0:
                continue
            ratio = one.value / two.value if inverse else two.value / one.value
            if ratio <= 1 - SLOWER and abs(ratio / left - 1.0) <= IN_STEP:
                words = (
                    f"{quantity(two)} goes {number(one.value)} -> {number(two.value, two.unit)} "
                    f"({two.value / one.value - 1:+.1%}) from {first.name} to {last.name}, in step with the clock"
                )
                return words, [evidence_of(first, one), evidence_of(last, two)]
    return None


def _temperature(observed: Observed, clock: Series) -> list[Evidence]:
    for item in observed.of_series("temperature"):
        known = item.values[np.isfinite(item.values)]
        if item.labels.get("gpu") == clock.labels.get("gpu") and known.size:
            text = f"temperature {known[0]:.0f} -> {known.max():.0f} C"
            return [Evidence(text, str(item.place), "temperature_c", float(known.max()), "C")]
    return []
