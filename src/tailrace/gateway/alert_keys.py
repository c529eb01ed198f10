"""The configuration's keys for alarms, who is told of them, and the diagnosis that goes with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from tailrace.gateway.config_values import Duration, Section, lasting
from tailrace.govern.attainment import LONGEST_NS
from tailrace.govern.burn_rate import DEFAULT_BURN, AlarmPolicy, BurnRule, impossible
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import S

SHORTEST_LOOK_NS = 1 * S
SHORTEST_WINDOW_NS = 1 * S


class BurnConfig(Section):
    """One burn rate that is an alarm: exceeded in the long window and in the short one."""

    rate: float
    """How many times too fast the error budget burns; 14.4 for an hour is 2 % of a month's."""
    long: Duration
    short: Duration
    """A twelfth of the long one is usual."""
    severity: str = "page"


class ReceiverConfig(Section):
    """Who is told."""

    url: str
    """Where the JSON goes to, by POST."""
    form: Literal["tailrace", "alertmanager", "slack"] = "tailrace"
    """`tailrace`: the alert with its whole diagnosis; `alertmanager`: Prometheus Alertmanager's `/api/v2/alerts`;
    `slack`: an incoming webhook of Slack, or of what takes its messages (Mattermost, Discord's `/slack`)."""
    token: str | None = None
    """Sent as a bearer token."""
    severities: list[str] | None = None
    """Only these; absent: all."""
    timeout: Duration = lasting(5 * S)
    """How long it may take to answer."""


class AlertsConfig(Section):
    """When the objectives are in danger, and who is told."""

    enabled: bool = True
    every: Duration = lasting(15 * S)
    """How often is looked."""
    burn: list[BurnConfig] | None = None
    """Absent: 14.4 over 1h and 5m (page), 6 over 6h and 30m (page), 1 over 3d and 6h (ticket), for every objective
    whose budget can burn so fast. Yours are refused where an objective never can."""
    min_missed: int = 10
    """Fewer requests beyond the bound are no alarm."""
    quantiles: bool = True
    """Also when more requests pass a bound than its quantile allows: for the p99 and the p99.9, severity `notice`."""
    quantile_window: Duration = lasting(300 * S)
    resolve_after: Duration = lasting(300 * S)
    """How long it must have been calm before an alarm is over."""
    receivers: list[ReceiverConfig] = msgspec.field(default_factory=list)

    def policy(self) -> AlarmPolicy:
        """As the governor reads it."""
        return AlarmPolicy(
            burn=DEFAULT_BURN if self.burn is None else self._rules(self.burn),
            min_missed=self.min_missed,
            quantiles=self.quantiles,
            quantile_ns=int(self.quantile_window),
            resolve_ns=int(self.resolve_after),
        )

    @staticmethod
    def _rules(burn: Sequence[BurnConfig]) -> tuple[BurnRule, ...]:
        return tuple(
            BurnRule(severity=one.severity, long_ns=int(one.long), short_ns=int(one.short), rate=one.rate)
            for one in burn
        )


class DiagnosisConfig(Section):
    """The diagnosis that the gateway makes by itself, in a process of its own beside the requests."""

    every: Duration = lasting(60 * S)
    """0s: only when an alarm begins, or somebody asks."""
    window: Duration = lasting(600 * S)
    """The requests that it looks at: those that began so long ago at most."""
    before: Duration = lasting(3600 * S)
    """The requests before the window that it compares them with; 0s: none."""
    requests: int = 100_000
    """At most so many of either, the newest."""
    timeout: Duration = lasting(60 * S)
    """Then it is given up."""


def check_alerts(section: AlertsConfig, objectives: Mapping[str, Mapping[str, int]], *, place: str) -> None:
    """Refuse what cannot work. `objectives`: lane -> objective -> bound (ns). Raises `ConfigError`."""
    if int(section.every) < SHORTEST_LOOK_NS:
        raise ConfigError("is shorter than 1s", place=f"{place}.every", remedy="Use 15s.")
    _check_burn(section.burn or (), objectives, place=place)
    if section.min_missed < 1:
        raise ConfigError("is below 1", place=f"{place}.min_missed", remedy="Use 10.")
    if int(section.quantile_window) < 30 * S:
        raise ConfigError("is shorter than 30s", place=f"{place}.quantile_window", remedy="Use 5m.")
    if int(section.quantile_window) > LONGEST_NS:
        raise ConfigError("is longer than 7d: no more is kept", place=f"{place}.quantile_window", remedy="Use 5m.")
    for at, receiver in enumerate(section.receivers):
        parts = urlsplit(receiver.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                f"{receiver.url!r} is no address",
                place=f"{place}.receivers[{at}].url",
                remedy="Write http://HOST:PORT/PATH or https://HOST/PATH.",
            )
        _check_receiver(receiver, section.policy(), place=f"{place}.receivers[{at}]")


def _check_burn(burn: Sequence[BurnConfig], objectives: Mapping[str, Mapping[str, int]], *, place: str) -> None:
    seen: set[tuple[float, int, int]] = set()
    for at, one in enumerate(burn):
        rule = (one.rate, int(one.long), int(one.short))
        if rule in seen:
            raise ConfigError(
                "is the same rule as one above it: an alarm has one severity",
                place=f"{place}.burn[{at}]",
                remedy="Leave one of them out.",
            )
        seen.add(rule)
        if not 0.0 < one.rate < math.inf:
            raise ConfigError(f"{one.rate} is no rate", place=f"{place}.burn[{at}].rate", remedy="Use 14.4, 6 or 1.")
        if int(one.short) < SHORTEST_WINDOW_NS:
            raise ConfigError(
                "is shorter than 1s",
                place=f"{place}.burn[{at}].short",
                remedy="Use 5m.",
            )
        for lane, bounds in objectives.items():
            wrong = impossible(AlertsConfig._rules([one]), bounds)  # noqa: SLF001  (of this module)
            if wrong:
                raise ConfigError(
                    f"{wrong} (lane {lane})",
                    place=f"{place}.burn[{at}]",
                    remedy="Lower the rate, or give that lane an objective at a higher quantile.",
                )


def _check_receiver(receiver: ReceiverConfig, policy: AlarmPolicy, *, place: str) -> None:
    """One that would never hear anything is a slip of the pen, found when nobody was woken."""
    if receiver.token is not None and not receiver.token.isprintable():
        raise ConfigError(
            "holds what no header can carry (a line end, perhaps)",
            place=f"{place}.token",
            remedy="Give the token alone.",
        )
    if int(receiver.timeout) <= 0:
        raise ConfigError("is no time to answer in", place=f"{place}.timeout", remedy="Use 5s.")
    known = {rule.severity for rule in policy.burn} | ({"notice"} if policy.quantiles else set())
    if receiver.severities is not None:
        wrong = [one for one in receiver.severities if one not in known]
        if wrong or not receiver.severities:
            raise ConfigError(
                f"no rule has the severity {wrong[0]!r}" if wrong else "names no severity, so it would hear nothing",
                place=f"{place}.severities",
                remedy=f"Use some of {', '.join(sorted(known))}, or leave it out for all.",
            )


def check_diagnosis(section: DiagnosisConfig, *, place: str) -> None:
    """Refuse what cannot work. Raises `ConfigError`."""
    if int(section.window) <= 0:
        raise ConfigError("holds no request", place=f"{place}.window", remedy="Use 10m.")
    if int(section.timeout) < SHORTEST_LOOK_NS:
        raise ConfigError("is shorter than 1s", place=f"{place}.timeout", remedy="Use 60s.")
    if section.requests < 1:
        raise ConfigError("is below 1", place=f"{place}.requests", remedy="Use 100000.")
