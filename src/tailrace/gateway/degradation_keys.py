"""The configuration's keys for the degradation ladder."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tailrace.gateway.config_values import Duration, Section, lasting
from tailrace.govern.ladder import DEFAULT_THRESHOLDS, LadderPolicy, Signal, Threshold
from tailrace.govern.rungs import DEFAULT_RUNGS, Rung, RungSettings
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S


class SignalConfig(Section):
    """When one signal presses, and when it is calm."""

    enter: float | None = None
    """From here on it presses the ladder up a rung; absent: the signal's default."""
    leave: float | None = None
    """Up to here it is calm; below `enter`."""
    off: bool = False
    """It is not looked at."""


class DegradationConfig(Section):
    """What is given up under load, in which order, and on which signals."""

    enabled: bool = False
    rungs: list[Rung] = msgspec.field(default_factory=lambda: list(DEFAULT_RUNGS))
    """In the order in which they are taken: `batch`, `cap`, `low_waits`, `refuse` by default. Also there: `shrink`,
    `cached`, `smaller_model`."""
    lanes: list[str] | None = None
    """The lanes whose waits and first tokens are looked at; absent: all that are not of low priority."""
    signals: dict[str, SignalConfig] = msgspec.field(default_factory=dict)
    """By name: `ttft`, `queue_wait` and `predicted_wait` as shares of the lane's TTFT objective, `engine_waiting` in
    requests, `kv_usage` from 0 to 1, `gaps_per_s`, `loop_lag_ms`, `turned_away` as a share of the requests."""
    pin: int | None = None
    """Hold the ladder at so many rungs, whatever the signals say; `POST /degradation` sets it while it serves."""
    window: Duration = lasting(10 * S)
    """How far back waits and first tokens count."""
    confirm: Duration = lasting(500 * MS)
    """How long there must have been no calm before a rung is taken."""
    dwell: Duration = lasting(2 * S)
    """The least time between two steps."""
    calm: Duration = lasting(15 * S)
    """How long all signals must be calm before a rung is left; doubled, up to eightfold, when it was left too early."""
    limit_factor: float = 0.75
    """`batch`: what is left of each lane's running limit."""
    cap: int = 512
    """`cap`: the longest answer, in tokens."""
    shrink: int = 4096
    """`shrink`: the longest prompt, in tokens."""
    cached_for: Duration = lasting(600 * S)
    """`cached`: how long past its time an answer of the response cache is still given."""
    models: dict[str, str] = msgspec.field(default_factory=dict)
    """`smaller_model`: model -> the smaller one that answers instead."""

    def policy(self) -> LadderPolicy:
        """As the governor reads it."""
        thresholds: dict[Signal, Threshold] = {}
        for signal, default in DEFAULT_THRESHOLDS.items():
            own = self.signals.get(signal.value)
            if own is None:
                thresholds[signal] = default
            elif not own.off:
                enter = default.enter if own.enter is None else own.enter
                thresholds[signal] = Threshold(enter, default.leave if own.leave is None else own.leave)
        return LadderPolicy(
            rungs=tuple(self.rungs),
            thresholds=thresholds,
            settings=RungSettings(
                limit_factor=self.limit_factor,
                cap_tokens=self.cap,
                shrink_tokens=self.shrink,
                models=dict(self.models),
            ),
            confirm_ns=int(self.confirm),
            dwell_ns=int(self.dwell),
            calm_ns=int(self.calm),
        )


def check_degradation(section: DegradationConfig, lanes: Sequence[str], *, place: str) -> None:
    """Refuse a ladder that cannot stand, or would flap. `lanes`: the names there are. Raises `ConfigError`."""
    if not section.rungs:
        raise ConfigError(
            "a ladder without rungs gives nothing up",
            place=f"{place}.rungs",
            remedy=f"Leave the key out for {', '.join(DEFAULT_RUNGS)}, or `degradation` altogether.",
        )
    if len(set(section.rungs)) < len(section.rungs):
        raise ConfigError("a rung stands there twice", place=f"{place}.rungs", remedy="Name each rung once.")
    for name in section.lanes or ():
        if name not in lanes:
            raise ConfigError(
                f"there is no lane {name!r}", place=f"{place}.lanes", remedy=f"The lanes are {', '.join(lanes)}."
            )
    for name in section.signals:
        if name not in {signal.value for signal in Signal}:
            raise ConfigError(
                f"{name!r} is no signal",
                place=f"{place}.signals",
                remedy=f"The signals are {', '.join(signal.value for signal in Signal)}.",
            )
    policy = section.policy()
    for signal, bounds in policy.thresholds.items():
        if not 0 <= bounds.leave < bounds.enter:
            enter = "never" if bounds.enter == math.inf else f"{bounds.enter:g}"
            raise ConfigError(
                f"it would flap: entered from {enter} on, left up to {bounds.leave:g}",
                place=f"{place}.signals.{signal.value}",
                remedy="`leave` must be below `enter`, and neither below 0.",
            )
    if not policy.thresholds or all(bounds.enter == math.inf for bounds in policy.thresholds.values()):
        raise ConfigError("no signal could ever press", place=f"{place}.signals", remedy="Leave one of them on.")
    _check_amounts(section, place)


def _check_amounts(section: DegradationConfig, place: str) -> None:
    if section.pin is not None and not 0 <= section.pin <= len(section.rungs):
        raise ConfigError(
            f"the ladder has no step {section.pin}",
            place=f"{place}.pin",
            remedy=f"Write a number from 0 to {len(section.rungs)}, or null to let the signals decide.",
        )
    if not 0 < section.limit_factor < 1:
        raise ConfigError(
            f"{section.limit_factor:g} of a limit is no smaller limit",
            place=f"{place}.limit_factor",
            remedy="Write a share between 0 and 1, for example 0.75.",
        )
    for name, least in (("cap", 1), ("shrink", 64)):
        if getattr(section, name) < least:
            raise ConfigError(
                f"{getattr(section, name)} tokens are too few",
                place=f"{place}.{name}",
                remedy=f"Write at least {least}.",
            )
    for name in ("window", "dwell", "calm"):
        if getattr(section, name) < S:
            raise ConfigError(
                "what is shorter than a second cannot be told from noise",
                place=f"{place}.{name}",
                remedy="Write at least `1s`.",
            )
    if Rung.SMALLER_MODEL in section.rungs and not section.models:
        raise ConfigError(
            "the rung smaller_model has no model to go to",
            place=f"{place}.models",
            remedy="Write for example `models: {llama-70b: llama-8b}`.",
        )
