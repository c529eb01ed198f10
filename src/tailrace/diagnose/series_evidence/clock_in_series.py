"""The clock of an accelerator in series: it fell under load, at the power limit or by heat."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.clock_fall import AT_CAP, SERIES_FALL
from tailrace.diagnose.commands import CLOCK_OVER_TIME
from tailrace.diagnose.observed import Arm, Observed, Series
from tailrace.diagnose.series_evidence.shared_gaps import at_times
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.stats.correlation import correlation

__all__ = ["clock_in_series"]

Mask = NDArray[np.bool_]
IDLE: Final = 0.05
HOT_C: Final = 83.0
"""Boards begin to slow down between 83 and 90 °C."""
LESS: Final = 0.9
LEAST: Final = 3
_POWER: Final = ("sw_power_cap", "hw_power_brake")
_HEAT: Final = ("sw_thermal", "hw_thermal")
_SPEEDS: Final = ("prompt_tok_s", "output_tok_s", "decode_tok_s", "req_s", "tflops", "rel_speed", "throughput")
_MOMENTS: Final = frozenset({"t", "time", "elapsed", "minute"})
_MOMENT: Final = re.compile(r"(?:t|at|after|minute|min|second|hour)\W{0,3}(\d+(?:\.\d+)?)\W*(?:s|min|h)?|(\d+(?:\.\d+)?) ?(?:s|sec|min|minutes?|h|hours?)", re.IGNORECASE)  # fmt: skip  # noqa: E501
"""`minute 6`, `t=60 s`, `10 min`: a label that is a time."""
_TIMES: Final = ("ttft", "tpot", "itl", "e2e", "prefill", "decode")


class _Fall(NamedTuple):
    """A clock before and under its limit (MHz)."""

    gpu: str
    clock: Series
    high: float
    low: float
    at_power: Mask
    by_heat: Mask | None
    """`None` where no reason was read."""
    loaded: Mask
    row: int
    """Of the lowest reading."""


def clock_in_series(cause: Cause, observed: Observed, *, heat: bool) -> Finding | None:
    """The largest fall over the devices that the limit in question explains."""
    falls = [fall for series in observed.of_series("sm_clock") if (fall := _fall(observed, series)) is not None]
    fitting = [fall for fall in falls if _fits(fall, observed, heat=heat)]
    if not fitting:
        return None if falls else _one_moment(cause, observed, heat=heat)
    fall = max(fitting, key=lambda one: 1 - one.low / one.high)
    return _found(cause, observed, fall, heat=heat)


def _one_moment(cause: Cause, observed: Observed, *, heat: bool) -> Finding | None:
    """A reason that one look at the device says is active: a suspicion, whatever the clock did before and after."""
    active = [
        series
        for reason in (_HEAT if heat else _POWER)
        for series in observed.of_series("clock_event", reason=reason)
        if 0 < len(series) < LEAST and bool(np.nan_to_num(series.values).any())
    ]
    if not active:
        return None
    names = sorted({series.labels["reason"].replace("_", " ") for series in active})
    place = str(active[0].place)
    what = "heat" if heat else "its power limit"
    return cause.finding(
        statement=f"The device says that {what} holds its clock down at this moment ({', '.join(names)} active).",
        evidence=[
            *(Evidence(f"{name} active", place, name.replace(" ", "_"), None) for name in names),
            *_readings(observed, active[0]),
        ],
        explains_ms=None,
        relation=f"{', '.join(names)}: active in one reading",
        n=1,
        advice="Log it over time beside the requests (nvidia-smi "
        "--query-gpu=timestamp,clocks.sm,power.draw,power.limit,temperature.gpu,clocks_event_reasons.active "
        "--format=csv -l 1): a busy device touches its power limit often, and only a clock that falls makes requests "
        "slower.",
        price="None.",
        verify="tailrace diagnose smi.csv",
        missing=[
            "SM clock, power and temperature over time: one reading does not show that the clock fell",
            "requests of the same time: whether they were slower",
        ],
        level=Level.SUSPECTED,
    )


def _readings(observed: Observed, beside: Series) -> list[Evidence]:
    """What else the one look at that device says."""
    units = {"sm_clock": "MHz", "power": "W", "power_limit": "W", "temperature": "C"}
    out = []
    for name, unit in units.items():
        seen = _of(observed, name, beside)
        if seen is not None and np.isfinite(seen.values[-1]):
            value = float(seen.values[-1])
            words = f"{name.replace('_', ' ')} {value:.4g} {unit}"
            out.append(Evidence(words, str(seen.line_of(len(seen) - 1)), name, value, unit))
    return out


def _of(observed: Observed, name: str, clock: Series, **labels: str) -> Series | None:
    gpu = clock.labels.get("gpu", "")
    return next(
        (item for item in observed.of_series(name, **labels) if item.labels.get("gpu", "") == gpu and len(item)), None
    )


def _fall(observed: Observed, clock: Series) -> _Fall | None:
    if clock.axis not in ("time", "scrape") or len(clock) < LEAST:
        return None
    values = clock.values
    util, power, limit = (_of(observed, name, clock) for name in ("gpu_util", "power", "power_limit"))
    loaded = np.isfinite(values) & (values > 0)
    if util is not None:
        loaded &= ~(at_times(util, clock) <= IDLE)
    if loaded.sum() < LEAST:
        return None
    at_power = np.zeros(values.size, dtype=bool)
    by_heat: Mask | None = None
    for reason in (*_POWER, *_HEAT):
        told = _of(observed, "clock_event", clock, reason=reason)
        if told is None:
            continue
        active = at_times(told, clock) > 0
        if reason in _POWER:
            at_power |= active
        else:
            by_heat = active if by_heat is None else by_heat | active
    if power is not None and limit is not None:
        with np.errstate(invalid="ignore"):
            at_power |= at_times(power, clock) >= AT_CAP * at_times(limit, clock)
    limited = at_power | (by_heat if by_heat is not None else False)
    free = loaded & ~limited
    high = float(np.quantile(values[free], 0.9, method="higher")) if free.any() else float(np.nanmax(values[loaded]))
    row = int(np.flatnonzero(loaded)[int(np.argmin(values[loaded]))])
    low = float(values[row])
    if low > (1 - SERIES_FALL) * high:
        return None
    return _Fall(clock.labels.get("gpu", ""), clock, high, low, at_power & loaded, by_heat, loaded, row)


def _fits(fall: _Fall, observed: Observed, *, heat: bool) -> bool:
    """Whether the lowest readings are at the limit in question, and not (only) at the other."""
    low = fall.loaded & (fall.clock.values <= fall.low + 0.25 * (fall.high - fall.low))
    hot = fall.by_heat is not None and bool(fall.by_heat[low].mean() >= 0.5)
    capped = bool(fall.at_power[low].mean() >= 0.5)
    if not heat:
        return capped and not hot
    if hot:
        return True
    # Without reasons: a clock that falls as the temperature rises, while the power is below its limit.
    temperature = _of(observed, "temperature", fall.clock)
    if fall.by_heat is not None or capped or temperature is None:
        return False
    seen = at_times(temperature, fall.clock)
    known = fall.loaded & np.isfinite(seen)
    if _held_at_heat(observed, fall, seen, low):
        return True
    if known.sum() < 4 or np.ptp(seen[known]) < 8 or float(np.nanmax(seen)) < 75:
        return False
    return correlation(seen[known], fall.clock.values[known]) <= -0.8


def _held_at_heat(observed: Observed, fall: _Fall, seen: NDArray[np.float64], low: Mask) -> bool:
    """A device at its thermal limit holds its temperature there and draws less: at a power limit it would draw as much
    as ever.
    """
    power = _of(observed, "power", fall.clock)
    if power is None or not bool(np.isfinite(seen[low]).all()):
        return False
    draw = at_times(power, fall.clock)
    rest = fall.loaded & ~low
    if not rest.any():
        return False
    hot = float(np.median(seen[low])) >= max(HOT_C, float(np.nanmedian(seen[rest])))
    return hot and float(np.nanmedian(draw[low])) <= LESS * float(np.nanmax(draw[fall.loaded]))


def _slower(observed: Observed) -> tuple[str, str, float] | None:
    """(words, where, by how much): work that got slower over the same time, from series or from arms by time."""
    for name in _SPEEDS:
        for series in observed.of_series(name):
            values = series.values[np.isfinite(series.values)]
            if values.size >= LEAST and values[-1] < 0.97 * values.max():
                best = float(values.max())
                return _words(name, best, float(values[-1])), str(series.place), 1 - float(values[-1]) / best
    for key, cells in _by_time(observed).items():
        cells.sort(key=lambda cell: cell[0])
        values = np.array([value for _, value, _ in cells])
        faster = key.split(".")[0] not in _TIMES
        best, last = float(values.max() if faster else values.min()), float(values[-1])
        worse = last < 0.97 * best if faster else last > 1.03 * best
        if values.size >= 2 and best > 0 and worse:
            return _words(key, best, last), str(cells[-1][2].place), abs(1 - last / best)
    return None


def _by_time(observed: Observed) -> dict[str, list[tuple[float, float, Arm]]]:
    """Quantity -> (time, value, arm) of the arms of a table whose rows are moments."""
    rows: dict[str, list[tuple[float, float, Arm]]] = {}
    for arm in observed.arms:
        at = next((value for key, value in arm.keys.items() if key in _MOMENTS and isinstance(value, float)), None)
        if at is None and (named := _MOMENT.fullmatch((arm.label or arm.name).strip())) is not None:
            at = float(named[1] or named[2])
        for key, quoted in arm.values.items():
            if at is not None and quoted.quantity not in _MOMENTS and not quoted.relative:
                rows.setdefault(key, []).append((at, quoted.value, arm))
    return rows


def _words(name: str, before: float, after: float) -> str:
    return f"{name}: {before:.4g} -> {after:.4g} ({after / before - 1:+.1%})"


def _found(cause: Cause, observed: Observed, fall: _Fall, *, heat: bool) -> Finding:
    share = f"{1 - fall.low / fall.high:.1%}"
    high, low = f"{fall.high:.0f}", f"{fall.low:.0f}"
    name = f"GPU {fall.gpu}" if fall.gpu else "The GPU"
    slower = _slower(observed)
    missing, evidence = [], []
    evidence.append(
        Evidence(
            text=f"SM clock of {name}: {high} -> {low} MHz under load, -{share}",
            source=str(fall.clock.line_of(fall.row)),
            name="sm_clock",
            value=fall.low,
            unit="MHz",
        )
    )
    power, limit, temperature = (_of(observed, one, fall.clock) for one in ("power", "power_limit", "temperature"))
    if power is not None:
        draw = float(at_times(power, fall.clock)[fall.row])
        of = f" of {float(at_times(limit, fall.clock)[fall.row]):.0f}" if limit is not None else ""
        evidence.append(
            Evidence(text=f"power there: {draw:.0f}{of} W", source=str(power.place), name="power", value=draw, unit="W")
        )
    elif not heat:
        missing.append("power and its limit (power.draw, power.limit)")
    if temperature is not None:
        seen = at_times(temperature, fall.clock)
        evidence.append(
            Evidence(
                text=f"temperature {float(seen[0]):.0f} -> {float(seen[fall.row]):.0f} C",
                source=str(temperature.place),
                name="temperature",
                value=float(seen[fall.row]),
                unit="C",
            )
        )
    if fall.by_heat is None:
        missing.append("clock event reasons (clocks_event_reasons.active): they tell power from heat")
    else:
        hot = int(fall.by_heat.sum())
        capped = int(fall.at_power.sum())
        evidence.append(
            Evidence(
                text=f"limited by power in {capped}, by heat in {hot} of {int(fall.loaded.sum())} readings under load",
                source=str(fall.clock.place),
                name="limited",
                value=float(hot if heat else capped),
            )
        )
    if slower is None:
        missing.append("throughput or latency over the same time: whether anybody was slower for it")
    else:
        evidence.append(
            Evidence(text=f"meanwhile {slower[0]}", source=slower[1], name="slower", value=round(slower[2], 4))
        )
    why = "it is too hot" if heat else "it is at its power limit"
    return cause.finding(
        statement=f"{name} lowers its SM clock from {high} to {low} MHz (-{share}) under load because {why}. Prefill "
        "follows "
        "the clock; decode stays flat where memory bandwidth limits it.",
        evidence=evidence,
        explains_ms=None,
        relation=f"1 - {low} / {high} = {share}" + (f"; {slower[0]}" if slower else ""),
        n=int(fall.loaded.sum()),
        advice="Look at its cooling (fans, airflow, neighbours, dust) or lower the power limit to what it can cool; "
        "record the "
        "requested and the effective limit."
        if heat
        else "Raise the power limit (`nvidia-smi -pl WATTS`, where the board allows more), run fewer prefills at once, "
        "or plan "
        "capacity with this clock; record the requested and the effective limit.",
        price="A lower power limit costs speed at all times; cooling costs money."
        if heat
        else "More power and heat, or a longer queue for prefills.",
        verify=CLOCK_OVER_TIME,
        missing=missing,
        disproof_checked=[
            "the clock is not flat",
            "heat does not limit it"
            if not heat and fall.by_heat is not None
            else "the reasons are not known"
            if fall.by_heat is None
            else "heat limits it",
        ],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )
