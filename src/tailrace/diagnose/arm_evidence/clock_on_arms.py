"""A clock that falls, in a table with a row a clock, or a throughput that falls beside a device's readings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.clock_beside import clock_beside
from tailrace.diagnose.arm_evidence.clock_stated import limit_told
from tailrace.diagnose.arms.asked import GAUGE_FIRST, figure, number_stated, worded
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.clock_fall import AT_CAP, STATED_FALL
from tailrace.diagnose.commands import CLOCK_OVER_TIME
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["ClockTable", "clock_table", "power_on_arms", "thermal_on_arms"]

FOLLOWS: Final = 0.5
"""Exponent of speed ~ clock^e from which it follows the clock."""
FLAT: Final = 0.2
HOT_C: Final = 85.0


class ClockTable(NamedTuple):
    """The rows that name a clock, the fastest first."""

    rows: list[tuple[Arm, Quoted]]
    prefill: tuple[Quoted, Quoted] | None
    """At the highest and at the lowest clock."""
    decode: tuple[Quoted, Quoted] | None
    pace: tuple[Quoted, Quoted] | None
    """Time per token: it grows as the clock falls."""
    power: tuple[Quoted, Quoted] | None
    heat: tuple[Quoted, Quoted] | None

    @property
    def high(self) -> float:
        """MHz."""
        return self.rows[0][1].value

    @property
    def low(self) -> float:
        """MHz."""
        return self.rows[-1][1].value

    @property
    def fall(self) -> float:
        """1 - low / high."""
        return 1.0 - self.low / self.high

    def exponent(self, pair: tuple[Quoted, Quoted] | None) -> float | None:
        """E of speed ~ clock^e between the two ends."""
        if pair is None or min(pair[0].value, pair[1].value) <= 0:
            return None
        return float(np.log(pair[0].value / pair[1].value) / np.log(self.high / self.low))


def clock_table(observed: Observed) -> ClockTable | None:
    """The table; `None` where the clocks are (nearly) equal or no speed stands beside them."""
    rows = [(arm, value) for arm in observed.arms if (value := figure(arm, "sm_clock")) is not None and value.value > 0]
    rows.sort(key=lambda row: -row[1].value)
    if len(rows) < 2 or rows[-1][1].value > (1 - STATED_FALL) * rows[0][1].value:
        return None
    top, bottom = rows[0][0], rows[-1][0]

    def both(*names: str) -> tuple[Quoted, Quoted] | None:
        for name in names:
            one, two = figure(top, name, stats=GAUGE_FIRST), figure(bottom, name, stats=GAUGE_FIRST)
            if one is not None and two is not None and one.key == two.key:
                return one, two
        return None

    prefill = both("prompt_tok_s", "tflops", "req_s")
    decode = both("decode_tok_s", "output_tok_s")
    pace = both("tpot", "itl", "ttft", "e2e", "prefill")
    if not (prefill or decode or pace):
        return None
    return ClockTable(rows, prefill, decode, pace, both("power"), both("temperature"))


def thermal_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The clock is low where the power is below what it was: nothing but heat (or another limit) holds it down."""
    table = clock_table(observed)
    if table is None:
        return clock_beside(cause, observed, heat=True)
    told = _reason(table, heat=True)
    if (_at_limit(observed, table) is True and told is not True) or told is False:
        return None
    speed = table.exponent(table.prefill if table.prefill is not None else table.decode)
    if speed is None and (slowed := table.exponent(table.pace)) is not None:
        speed = -slowed
    if speed is None or speed < FOLLOWS:
        return None
    return _found(cause, table, heat=True)


def power_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The clock is low where the power is at its limit."""
    table = clock_table(observed)
    if table is None:
        return clock_beside(cause, observed, heat=False)
    if _at_limit(observed, table) is not True or _reason(table, heat=True) is True:
        return None
    return _found(cause, table, heat=False)


def _at_limit(observed: Observed, table: ClockTable) -> bool | None:
    """Whether power is at its limit at the low clock; `None` where the limit or the power is not known."""
    # The limit of the slow row: where the limit itself was changed, that of the fast one says nothing.
    limit = next((value for arm, _ in reversed(table.rows) if (value := figure(arm, "power_limit")) is not None), None)
    stated = number_stated(observed, r"power (?:limit|cap)|\btdp\b")
    most = limit.value if limit is not None else None if stated is None else stated.number
    if table.power is None or most is None or most <= 0:
        return None
    return table.power[1].value >= AT_CAP * most


def _found(cause: Cause, table: ClockTable, *, heat: bool) -> Finding:
    first, last = table.rows[0], table.rows[-1]
    evidence = [evidence_of(arm, value) for arm, value in table.rows]
    for pair in (table.prefill, table.decode, table.pace, table.power, table.heat):
        if pair is not None:
            evidence += [evidence_of(first[0], pair[0]), evidence_of(last[0], pair[1])]
    words, checked = _speeds(table)
    missing = ["the SM clock over time with the clock-event reasons (thermal or power), requested and effective limit"]
    rivals = []
    if heat:
        why = _not_power(table)
        if why:
            checked.append(why)
        else:
            rivals.append("COMPUTE_POWER_CAP")
    hot = table.heat is not None and max(item.value for item in table.heat) >= HOT_C
    reasons = next(
        (value for arm, _ in table.rows if (value := worded(arm, r"thermal|throttl|reason")) is not None), None
    )
    told = _reason(table, heat=heat)
    if told is True:
        evidence.append(Evidence(f"{last[0].name}: {_reasons(last[0])}", str(last[0].place) or "form", "reason"))
        rivals = []
    if (
        reasons is not None
        or told is True
        or _reason(table, heat=not heat) is False
        or (heat and hot and table.heat is not None and table.heat[1].value >= table.heat[0].value)
    ):
        missing = []
    return cause.finding(
        statement=f"The clock falls {number(table.high)} -> {number(table.low, 'MHz')} (-{table.fall:.0%}){words}: "
        + (
            "the device cannot shed its heat (thermal history decides the clock)."
            if heat
            else "it is at its power limit."
        ),
        evidence=list(dict.fromkeys(evidence)),
        explains_ms=None,
        relation=f"{number(table.low)} / {number(table.high)} = {table.low / table.high:.3f} (-{table.fall:.0%})"
        + (
            f"; {quantity(table.prefill[1])} {number(table.prefill[1].value)} / {number(table.prefill[0].value)} = "
            f"{table.prefill[1].value / table.prefill[0].value:.3f}"
            if table.prefill
            else ""
        )
        + (
            f"; {quantity(table.decode[1])} {number(table.decode[1].value)} / {number(table.decode[0].value)} = "
            f"{table.decode[1].value / table.decode[0].value:.3f}"
            if table.decode
            else ""
        ),
        n=len(table.rows),
        advice="Look at its cooling, and let it cool between measurements; record the requested and the effective "
        "clock with "
        "every benchmark."
        if heat
        else "Raise the power limit (nvidia-smi -pl), run fewer prefills at once, or plan with this clock.",
        price="A lower clock at all times, or money for cooling." if heat else "More power and heat.",
        verify=CLOCK_OVER_TIME,
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
        level=Level.SUSPECTED if missing or rivals else None,
    )


def _speeds(table: ClockTable) -> tuple[str, list[str]]:
    """(what prefill and decode did, what was checked)."""
    words, checked = "", []
    prefill, decode = table.exponent(table.prefill), table.exponent(table.decode)
    if table.prefill is not None and prefill is not None:
        one, two = table.prefill
        words += f", and {quantity(one)} follows it ({number(one.value)} -> {number(two.value, two.unit)})"
        checked.append(f"{quantity(one)} ~ clock^{prefill:.2f}")
    if table.decode is not None and decode is not None:
        one, two = table.decode
        if abs(decode) <= FLAT:
            words += (
                f", while decode is flat ({number(one.value)} and {number(two.value, two.unit)}: bound by "
                "memory bandwidth)"
            )
        else:
            words += f", and decode goes {number(one.value)} -> {number(two.value, two.unit)}"
        checked.append(f"decode ~ clock^{decode:.2f}")
    slowed = table.exponent(table.pace)
    if table.pace is not None and slowed is not None and not words:
        one, two = table.pace
        words += f", and {quantity(one)} goes {number(one.value, 'ms')} -> {number(two.value, 'ms')}"
        checked.append(f"{quantity(one)} ~ clock^{slowed:.2f}")
    return words, checked


def _reasons(arm: Arm) -> str:
    """What a row says in words of thermal or power limits: `throttle reason SW thermal slowdown`."""
    return "; ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in arm.keys.items()
        if isinstance(value, str) and re.search(r"therm|throttl|reason|event|limit|slowdown|cap\b", name, re.IGNORECASE)
    )


def _reason(table: ClockTable, *, heat: bool) -> bool | None:
    """Whether the slow row says that this limit holds its clock; `None` where it says nothing of it."""
    return limit_told(_reasons(table.rows[-1][0]), heat=heat)


def _not_power(table: ClockTable) -> str:
    """A fixed power limit holds power up while the clock falls; here it is lower than it was."""
    if table.power is None or table.power[1].value >= AT_CAP * table.power[0].value:
        return ""
    return (
        f"power at the low clock is {number(table.power[1].value, 'W')}, below the "
        f"{number(table.power[0].value, 'W')} of the "
        "high one: no fixed power limit holds it there"
    )
