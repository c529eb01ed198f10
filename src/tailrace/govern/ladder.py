"""The degradation ladder: a declared order in which quality is given up under load, and taken back.

Each rung is entered and left on measured signals. A signal has two thresholds, so that noise between them moves
nothing; a rung is held for a least time, so that what it does can be seen before the next; one rung is taken at a time,
in either direction. Where a rung that was left has to be entered again soon, calm must last longer the next time.

With signals that press without a break a rung lasts at most `confirm_ns + dwell_ns` and one look, with signals that are
calm at most `dwell_ns` or `longest_calm_ns`, whichever is more, and one look. Refusals of its own do not lengthen that:
a ladder that refuses on its own account would never find out that it need not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from tailrace.govern.rungs import DEFAULT_RUNGS, Effects, Rung, RungSettings, effects_of
from tailrace.model.thresholds import MS, S

KEPT_EVENTS: Final = 256
_RELAPSE: Final = 2
"""A rung entered again within this many times the calm that it was left after was left too early."""
_LONGEST_HOLD: Final = 8
"""By how much the calm that is asked for may grow."""


class Signal(StrEnum):
    """What the ladder looks at. Times are shares of the TTFT objective of the lane in which they are worst."""

    TTFT = "ttft"
    QUEUE_WAIT = "queue_wait"
    PREDICTED_WAIT = "predicted_wait"
    ENGINE_WAITING = "engine_waiting"
    """Requests that wait inside the engine; of several, inside the one with the fewest."""
    KV_USAGE = "kv_usage"
    """Share of its KV blocks in use; of several, the lowest."""
    GAPS_PER_S = "gaps_per_s"
    """Gaps beyond the limit of their lane, where that asks for degradation."""
    LOOP_LAG_MS = "loop_lag_ms"
    """How late the gateway's own loop is."""
    TURNED_AWAY = "turned_away"
    """Share of the requests that the ladder itself refused, lanes of low priority left out. It presses nobody; while it
    is there, what the rungs hold back is still coming. Whether the engine could serve it by now only a rung less can
    show: it holds a rung for `longest_calm_ns` at most."""


_OWN_DOING: Final = frozenset({Signal.TURNED_AWAY})


def _since(before: int | None, now: int, *, holds: bool) -> int | None:
    """Since when something holds."""
    if not holds:
        return None
    return now if before is None else before


class Threshold(msgspec.Struct, frozen=True):
    """A signal presses from `enter` on (`math.inf`: never) and is calm up to `leave`; in between it says nothing."""

    enter: float
    leave: float


DEFAULT_THRESHOLDS: Final[Mapping[Signal, Threshold]] = {
    Signal.TTFT: Threshold(1.0, 0.7),
    Signal.QUEUE_WAIT: Threshold(0.5, 0.2),
    Signal.PREDICTED_WAIT: Threshold(1.0, 0.4),
    Signal.ENGINE_WAITING: Threshold(16, 4),
    Signal.KV_USAGE: Threshold(0.97, 0.88),
    Signal.GAPS_PER_S: Threshold(0.5, 0.1),
    Signal.LOOP_LAG_MS: Threshold(250, 100),
    Signal.TURNED_AWAY: Threshold(math.inf, 0.02),
}


class LadderPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The declared ladder. Rungs in the order in which they are taken; durations in ns."""

    rungs: tuple[Rung, ...] = DEFAULT_RUNGS
    thresholds: Mapping[Signal, Threshold] = msgspec.field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    """Signals that are not here are not looked at."""
    settings: RungSettings = RungSettings()
    confirm_ns: int = 500 * MS
    """How long there must have been no calm before a rung is taken: a single spike is no overload."""
    dwell_ns: int = 2 * S
    """The least time between two steps; only a rung that was just left may be taken again without it."""
    calm_ns: int = 15 * S
    """How long all signals must be calm before a rung is left."""

    @property
    def longest_calm_ns(self) -> int:
        """The most that is ever asked for, after a rung was left too early again and again."""
        return self.calm_ns * _LONGEST_HOLD


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the ladder, in either direction."""

    at_ns: int
    step: int
    """How many rungs are in force from now on."""
    before: int
    rung: Rung
    """The one that was taken or left; of several (a pin), the last."""
    signal: Signal | None = None
    """The one that pressed hardest, or, on the way back, was nearest to pressing; absent for an operator's pin."""
    value: float | None = None
    threshold: float | None = None
    cause: str = "signals"
    """`signals`, `pinned` or `policy`."""


class Ladder:
    """`look` at the signals now and then; `effects` says what is given up."""

    def __init__(self, policy: LadderPolicy) -> None:
        self.step = 0
        self.pinned = False
        self.events: deque[StepEvent] = deque(maxlen=KEPT_EVENTS)
        """The last steps, oldest first."""
        self.steps_up = 0
        self.steps_down = 0
        self.signals: dict[Signal, float] = {}
        """As they were at the last look; what nobody knows is absent."""
        self._changed_at: int | None = None
        self._pressed_since: int | None = None
        self._calm_since: int | None = None
        self._quiet_since: int | None = None
        """Since when all is calm but for what the ladder itself refuses."""
        self._retreated = False
        """The last step was one back, on signals."""
        self._declare(policy)

    def _declare(self, policy: LadderPolicy) -> None:
        self.policy = policy
        steps = range(len(policy.rungs) + 1)
        self._effects = [effects_of(policy.rungs[:step], policy.settings) for step in steps]
        self._hold = [1 for _ in steps]
        """By rung (from 1): how many times the calm is asked for before it is left."""
        self._left_at: list[int | None] = [None for _ in steps]

    @property
    def effects(self) -> Effects:
        """What is given up at the moment."""
        return self._effects[self.step]

    def look(self, signals: Mapping[Signal, float | None], now: int) -> StepEvent | None:
        """Take in what was measured; returns the step that follows, if one does. An absent signal presses nobody."""
        thresholds = self.policy.thresholds
        self.signals = {name: value for name, value in signals.items() if value is not None and name in thresholds}
        worst = max(self.signals, key=self._strain, default=None)
        pressing = worst is not None and self.signals[worst] >= thresholds[worst].enter
        loud = {name for name, value in self.signals.items() if value > thresholds[name].leave}
        calm, quiet = not loud, loud <= _OWN_DOING
        self._calm_since = _since(self._calm_since, now, holds=calm)
        self._quiet_since = _since(self._quiet_since, now, holds=quiet)
        if calm:
            self._pressed_since = None
        elif pressing and self._pressed_since is None:
            self._pressed_since = now
        if self.pinned:
            return None
        settled = self._changed_at is None or now - self._changed_at >= self.policy.dwell_ns
        if pressing and (settled or self._retreated) and self.step < len(self.policy.rungs):
            assert self._pressed_since is not None
            if now - self._pressed_since >= self.policy.confirm_ns:
                return self._up(worst, now)
        elif not pressing and settled and self.step:
            calm_for, quiet_for = (now - (now if at is None else at) for at in (self._calm_since, self._quiet_since))
            if (calm and calm_for >= self._calm_needed()) or (quiet and quiet_for >= self.policy.longest_calm_ns):
                return self._down(worst, now)
        return None

    def pin(self, step: int | None, now: int) -> StepEvent | None:
        """Hold the ladder at `step`, or let the signals move it again (`None`), from where it is.

        Returns the step that this is, if it is one. Raises `ValueError` for a step that the ladder does not have.
        """
        if step is None:
            if self.pinned:
                self.pinned = False
                self._changed_at = now
                self._pressed_since = self._calm_since = self._quiet_since = None
            return None
        if not 0 <= step <= len(self.policy.rungs):
            raise ValueError(f"the ladder has the steps 0 to {len(self.policy.rungs)}, not {step}")
        self.pinned = True
        if step == self.step:
            return None
        rung = self.policy.rungs[max(step, self.step) - 1]
        return self._move(step, StepEvent(at_ns=now, step=step, before=self.step, rung=rung, cause="pinned"))

    def replace(self, policy: LadderPolicy, now: int) -> StepEvent | None:
        """Another ladder: it begins where the rungs that both have in common end, and keeps the events and the pin.

        Returns the step that this is, if it is one.
        """
        if policy == self.policy:
            return None
        kept = 0
        for old, new in zip(self.policy.rungs[: self.step], policy.rungs, strict=False):
            if old is not new:
                break
            kept += 1
        before, rungs = self.step, self.policy.rungs
        self._declare(policy)
        self._changed_at = now
        if kept == before:
            return None
        return self._move(kept, StepEvent(at_ns=now, step=kept, before=before, rung=rungs[kept], cause="policy"))

    def back_in_ns(self, now: int) -> int:
        """How long at least until one rung is left, if all is calm from now on: what a refused client is told."""
        if not self.step:
            return 0
        since = now if self._calm_since is None else self._calm_since
        calm_at = since + self._calm_needed()
        return max(0, calm_at - now, (self._changed_at or 0) + self.policy.dwell_ns - now)

    def view(self, now: int) -> dict[str, Any]:
        """For people and programs: where it stands and why (times in ms)."""
        thresholds = self.policy.thresholds
        return {
            "step": self.step,
            "rungs": [{"name": rung.value, "on": at < self.step} for at, rung in enumerate(self.policy.rungs)],
            "pinned": self.pinned,
            "for_ms": None if self._changed_at is None else (now - self._changed_at) / 1e6,
            "back_in_ms": self.back_in_ns(now) / 1e6 if self.step else None,
            "steps_up": self.steps_up,
            "steps_down": self.steps_down,
            "signals": {
                name.value: {
                    "value": self.signals.get(name),
                    "enter": bounds.enter if bounds.enter < math.inf else None,
                    "leave": bounds.leave,
                    "presses": name in self.signals and self.signals[name] >= bounds.enter,
                }
                for name, bounds in thresholds.items()
            },
            "events": [
                {
                    "ago_ms": (now - event.at_ns) / 1e6,
                    "step": event.step,
                    "before": event.before,
                    "rung": event.rung.value,
                    "signal": None if event.signal is None else event.signal.value,
                    "value": event.value,
                    "threshold": event.threshold,
                    "cause": event.cause,
                }
                for event in self.events
            ],
        }

    # -- inside

    def _strain(self, name: Signal) -> float:
        """How near a signal is to pressing: 1 is its threshold."""
        enter = self.policy.thresholds[name].enter
        return self.signals[name] / enter if enter else self.signals[name]

    def _calm_needed(self) -> int:
        return self.policy.calm_ns * self._hold[self.step]

    def _up(self, signal: Signal | None, now: int) -> StepEvent:
        step = self.step + 1
        left_at = self._left_at[step]
        relapsed = left_at is not None and now - left_at <= _RELAPSE * self.policy.calm_ns * self._hold[step]
        self._hold[step] = min(self._hold[step] * 2, _LONGEST_HOLD) if relapsed else 1
        return self._move(step, self._event(step, self.policy.rungs[step - 1], signal, now))

    def _down(self, signal: Signal | None, now: int) -> StepEvent:
        self._left_at[self.step] = now
        step = self.step - 1
        return self._move(step, self._event(step, self.policy.rungs[step], signal, now))

    def _event(self, step: int, rung: Rung, signal: Signal | None, now: int) -> StepEvent:
        bounds = None if signal is None else self.policy.thresholds[signal]
        up = step > self.step
        return StepEvent(
            at_ns=now,
            step=step,
            before=self.step,
            rung=rung,
            signal=signal,
            value=None if signal is None else self.signals[signal],
            threshold=None if bounds is None else (bounds.enter if up else bounds.leave),
        )

    def _move(self, step: int, event: StepEvent) -> StepEvent:
        if step > self.step:
            self.steps_up += 1
        else:
            self.steps_down += 1
        self._retreated = step < self.step and event.cause == "signals"
        self.step = step
        self._changed_at = event.at_ns
        # The next step has to be earned anew, under what this one changes.
        self._calm_since = self._quiet_since = self._pressed_since = None
        self.events.append(event)
        return event
