"""When an objective is in danger: burn rates over two windows, and quantiles beside them.

An alarm of a burn rate fires when the error budget is spent `rate` times too fast in a long window, so that it is no
blip, and in a short one, so that it is not over (Site Reliability Workbook, ch. 5). An alarm of a quantile fires when
more requests passed the bound of `ttft_p99` than one in a hundred, by an exact test of the counts: a p99 itself rests
on too few requests, and the p99s of two processes do not add up.

No clock and no input: `judge` is given the counts, says what has changed, and is its own memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from tailrace.govern.attainment import LONGEST_NS
from tailrace.govern.objectives import objective_name
from tailrace.model.thresholds import S
from tailrace.stats.tests import binomial_tail

__all__ = ["DEFAULT_BURN", "AlarmPolicy", "Alarms", "Alert", "BurnRule", "State", "impossible", "window_name"]


class BurnRule(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of windows."""

    severity: str
    long_ns: int
    short_ns: int
    rate: float
    """How many times too fast."""


DEFAULT_BURN: Final = (
    BurnRule(severity="page", long_ns=3600 * S, short_ns=300 * S, rate=14.4),
    BurnRule(severity="page", long_ns=6 * 3600 * S, short_ns=1800 * S, rate=6.0),
    BurnRule(severity="ticket", long_ns=3 * 86_400 * S, short_ns=6 * 3600 * S, rate=1.0),
)
"""2 %, 5 % and 10 % of a month's budget, as the workbook has it."""

ALARM_P: Final = 1e-4
"""One false alarm in 10,000 looks at traffic that keeps its objective only just."""


class State(StrEnum):
    """Of one alert."""

    FIRING = "firing"
    RESOLVED = "resolved"


class AlarmPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is watched."""

    burn: tuple[BurnRule, ...] = DEFAULT_BURN
    """A rate that an objective cannot reach (14.4 for a p50) is no rule for it."""
    min_missed: int = 10
    """Fewer misses in the long window are no alarm: at three requests an hour one slow one burns at 33."""
    quantiles: bool = True
    quantile_ns: int = 300 * S
    resolve_ns: int = 300 * S
    """So long must it be calm before an alarm is over, lest it flap."""

    def windows(self) -> dict[str, int]:
        """Name -> length (ns) of every window that is looked at."""
        lengths = {length for rule in self.burn for length in (rule.long_ns, rule.short_ns)}
        lengths |= {self.quantile_ns} if self.quantiles else set()
        return {window_name(length): length for length in sorted(lengths)}


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alarm that began or ended."""

    key: str
    """The same for the same lane, objective and rule: what a receiver groups by."""
    state: State
    severity: str
    lane: str
    objective: str
    """`ttft_p99`."""
    rule: str
    """`burn 1h/5m > 14.4` or `quantile 5m`."""
    bound_ns: int
    requests: int
    """In the long window (the only one, of a quantile's)."""
    missed: int
    burn_rate: float
    """In the long window."""
    short_burn_rate: float
    began_ns: int
    """When it began to fire, on the clock that `judge` is given."""
    text: str
    """One sentence for a person."""


class _Watch(msgspec.Struct):
    firing: Alert
    calm_since: int | None = None


def window_name(length_ns: int) -> str:
    """`300 s` -> `5m`."""
    for unit, name in ((86_400 * S, "d"), (3600 * S, "h"), (60 * S, "m"), (S, "s")):
        if length_ns % unit == 0:
            return f"{length_ns // unit}{name}"
    return f"{length_ns / S:g}s"


def highest_rate(quantile: float) -> float:
    """How fast a budget can burn at most: every request misses."""
    return 1.0 / (1.0 - quantile)


class Alarms:
    """What is firing."""

    def __init__(self, policy: AlarmPolicy) -> None:
        self.policy = policy
        self._watches: dict[str, _Watch] = {}

    @property
    def firing(self) -> list[Alert]:
        """Oldest first."""
        return sorted((watch.firing for watch in self._watches.values()), key=lambda one: one.began_ns)

    def judge(
        self, missed: Mapping[str, Mapping[str, Any]], bounds: Mapping[str, Mapping[str, int]], now: int
    ) -> list[Alert]:
        """What has begun and what has ended since the last look.

        `missed`: lane -> objective -> window -> `{"requests", "missed"}` (`Attainment.view`, added up over processes);
        `bounds`: lane -> objective -> ns. An alarm whose lane or objective is gone ends.
        """
        changes: list[Alert] = []
        seen: set[str] = set()
        for lane, objectives in missed.items():
            for objective, windows in objectives.items():
                for alert, hot in self._of_objective(lane, objective, windows, bounds, now):
                    seen.add(alert.key)
                    changes += self._step(alert, now, hot=hot)
        for key in [key for key in self._watches if key not in seen]:
            changes.append(_ended(self._watches.pop(key).firing))
        return changes

    def _of_objective(
        self,
        lane: str,
        objective: str,
        windows: Mapping[str, Mapping[str, int]],
        bounds: Mapping[str, Mapping[str, int]],
        now: int,
    ) -> Iterator[tuple[Alert, bool]]:
        named = objective_name(objective)
        bound = bounds.get(lane, {}).get(objective)
        if named is None or bound is None:
            return
        allowed = 1.0 - named[1]
        for rule in self.policy.burn:
            if rule.rate >= highest_rate(named[1]):
                continue
            long, short = (windows.get(window_name(length)) for length in (rule.long_ns, rule.short_ns))
            if long is None or short is None:
                continue
            rates = _rate(long, allowed), _rate(short, allowed)
            name = f"burn {window_name(rule.long_ns)}/{window_name(rule.short_ns)} > {rule.rate:g}"
            hot = min(rates) > rule.rate and long["missed"] >= self.policy.min_missed
            # While it fires, the short window alone says whether it goes on: the long one remembers for hours.
            goes_on = rates[1] > rule.rate
            firing = f"{lane}/{objective}/{name}" in self._watches
            yield _alert(lane, objective, name, rule.severity, bound, long, rates, now), goes_on if firing else hot
        if self.policy.quantiles:
            window = windows.get(window_name(self.policy.quantile_ns))
            if window is not None:
                rate = _rate(window, allowed)
                n, count = window["requests"], window["missed"]
                hot = count >= self.policy.min_missed and binomial_tail(count, n, allowed) < ALARM_P
                name = f"quantile {window_name(self.policy.quantile_ns)}"
                firing = f"{lane}/{objective}/{name}" in self._watches
                yield (
                    _alert(lane, objective, name, "notice", bound, window, (rate, rate), now),
                    (rate > 1.0 if firing else hot),
                )

    def _step(self, alert: Alert, now: int, *, hot: bool) -> list[Alert]:
        watch = self._watches.get(alert.key)
        if watch is None:
            if not hot:
                return []
            self._watches[alert.key] = _Watch(alert)
            return [alert]
        watch.firing = msgspec.structs.replace(alert, began_ns=watch.firing.began_ns)
        if hot:
            watch.calm_since = None
        elif watch.calm_since is None:
            watch.calm_since = now
        if watch.calm_since is not None and now - watch.calm_since >= self.policy.resolve_ns:
            return [_ended(self._watches.pop(alert.key).firing)]
        return []


def impossible(rules: Sequence[BurnRule], objectives: Mapping[str, int]) -> str:
    """What is wrong with an operator's own rules: the first that no objective can reach, or a window out of range."""
    for rule in rules:
        if not 0 < rule.short_ns < rule.long_ns <= LONGEST_NS:
            return (
                f"the windows {window_name(rule.long_ns)} and {window_name(rule.short_ns)} do not fit: the long one is "
                f"longer than the short one, and {window_name(LONGEST_NS)} at most"
            )
        for objective in objectives:
            named = objective_name(objective)
            if named is not None and rule.rate >= highest_rate(named[1]):
                return (
                    f"a burn rate of {rule.rate:g} can never fire for {objective}: with every request missing, its "
                    f"budget burns at {highest_rate(named[1]):.3g}"
                )
    return ""


def _rate(window: Mapping[str, int], allowed: float) -> float:
    return window["missed"] / window["requests"] / allowed if window["requests"] else 0.0


def _alert(
    lane: str,
    objective: str,
    rule: str,
    severity: str,
    bound_ns: int,
    window: Mapping[str, int],
    rates: tuple[float, float],
    now: int,
) -> Alert:
    n, count = window["requests"], window["missed"]
    share = f" ({count / n:.1%})" if n else ""
    length = rule.split()[1].partition("/")[0]
    bound = f"{bound_ns / 1e6:,.0f}" if bound_ns >= 10_000_000 else f"{bound_ns / 1e6:g}"
    text = (
        f"{objective} of lane {lane}: {count} of {n} requests{share} of the last {length} passed {bound} ms; the error "
        f"budget burns {rates[0]:.1f} times too fast"
        if n
        else f"{objective} of lane {lane}: no request was judged in the last {length}, nothing burns"
    )
    if rates[1] != rates[0]:
        text += f", {rates[1]:.1f} times in the short window"
    return Alert(
        key=f"{lane}/{objective}/{rule}",
        state=State.FIRING,
        severity=severity,
        lane=lane,
        objective=objective,
        rule=rule,
        bound_ns=bound_ns,
        requests=n,
        missed=count,
        burn_rate=round(rates[0], 3),
        short_burn_rate=round(rates[1], 3),
        began_ns=now,
        text=f"{text}.",
    )


def _ended(alert: Alert) -> Alert:
    return msgspec.structs.replace(alert, state=State.RESOLVED)
