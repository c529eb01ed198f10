"""The configuration's keys for canaries and shadows: another set of backends that gets a share, or copies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tailrace.gateway.config_values import Duration, Section, human, lasting
from tailrace.govern.canary_policy import CanaryPolicy
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S


class CanaryConfig(Section):
    """A share of the requests goes to other backends, is compared, widened in steps and rolled back by itself."""

    backends: list[str]
    """Names of the backends that are the canary. All others (but a shadow's) are the stable route."""
    name: str = "canary"
    """The experiment: sessions are dealt out by it, and another name starts another canary at a reload."""
    steps: list[float] = msgspec.field(default_factory=lambda: [0.10, 0.25, 0.50, 1.0])
    """Shares of the sessions, rising; 1.0 at the end hands everything over."""
    hold: Duration = lasting(1800 * S)
    """The least time on a step. A rollback does not wait for it."""
    min_requests: int = 500
    """The least number of the canary's finished requests on a step."""
    requests_per_s: float | None = None
    """Traffic of both routes to expect: says at the start (and in `tailrace check`) what can be found in what time."""
    start: str = "running"
    """`running` begins with the first step as soon as the gateway serves; `paused` waits at no traffic for `resume`."""
    alpha: float = 0.01
    """The chance that a canary that is no worse is ever rolled back, over all looks, metrics and steps together."""
    tolerance: float = 0.03
    """A uniform slow-down up to this share is accepted."""
    tail_tolerance: float = 0.25
    """So is this much more than the due number of very slow or failed requests."""
    settle: Duration = lasting(0)
    """After a step begins: requests that end within it are not compared (a cold cache)."""
    look: Duration = lasting(2 * S)
    """How often the evidence is judged; also the shortest batch of time. 60 of them must have passed before a moderate
    slow-down can count."""
    kv_usage: float = 0.95
    """A canary whose KV cache is fuller than this does not widen."""
    gpus: list[str] = msgspec.field(default_factory=list)
    """Which of the GPUs that `signals` reads are the canary's, by number (`["1"]`); none named: all of them."""
    gpu_utilization: float | None = None
    """Likewise its GPU (share of 1), where this machine's sampler reads it; absent: shown, no guard."""

    def policy(self) -> CanaryPolicy:
        """As the governor reads it."""
        return CanaryPolicy(
            name=self.name,
            steps=tuple(self.steps),
            hold_ns=int(self.hold),
            min_requests=self.min_requests,
            alpha=self.alpha,
            tolerance=self.tolerance,
            tail_tolerance=self.tail_tolerance,
            settle_ns=int(self.settle),
            look_ns=int(self.look),
            declared_rate=self.requests_per_s,
            kv_usage=self.kv_usage,
            gpu_utilization=self.gpu_utilization,
        )


class ShadowConfig(Section):
    """Copies of requests go to test backends; their answers are read, recorded and dropped."""

    backends: list[str]
    """Names of the test backends. No client is ever answered by them."""
    share: float = 0.01
    """Share of the requests that are copied."""
    at_once: int = 4
    """Copies in flight at most (each worker's own); a copy beyond is not made, and counted."""


def check_routes(
    canary: CanaryConfig | None, shadow: ShadowConfig | None, backends: Sequence[str], workers: int, *, where: str
) -> None:
    """Refuse routes that lead nowhere. Raises `ConfigError` with the place and the remedy."""
    taken: set[str] = set()
    if canary is not None:
        place = f"{where}: canary"
        _check_names(canary.backends, backends, taken, place=f"{place}.backends")
        _check_canary(canary, place)
        if workers > 1:
            raise ConfigError(
                f"a canary cannot be compared by {workers} workers: each would see its own part and decide for itself",
                place=f"{where}: workers",
                remedy="Write `workers: 1` while a canary runs; one process serves several thousand requests a second.",
            )
    if shadow is not None:
        place = f"{where}: shadow"
        _check_names(shadow.backends, backends, taken, place=f"{place}.backends")
        if not 0.0 <= shadow.share <= 1.0:
            raise ConfigError(
                f"{shadow.share} is no share", place=f"{place}.share", remedy="Write a number from 0 to 1, as 0.01."
            )
        if shadow.at_once < 1:
            raise ConfigError(
                f"{shadow.at_once} copies at once are none",
                place=f"{place}.at_once",
                remedy="Write at least 1; `share: 0` switches copies off.",
            )
    if taken and not set(backends) - taken:
        raise ConfigError(
            "every backend is a canary or a shadow: nothing is left for the stable route",
            place=f"{where}: backends",
            remedy="List the engines that serve today too, and name only the new ones in `canary` or `shadow`.",
        )


def _check_names(names: Sequence[str], backends: Collection[str], taken: set[str], *, place: str) -> None:
    if not names:
        raise ConfigError("names no backend", place=place, remedy=f"Name one of {', '.join(backends)}.")
    for name in names:
        if name not in backends:
            raise ConfigError(
                f"there is no backend {name!r}", place=place, remedy=f"The backends are {', '.join(backends)}."
            )
        if name in taken:
            raise ConfigError(
                f"{name!r} is named twice",
                place=place,
                remedy="A backend is the canary or the shadow, and each once.",
            )
        taken.add(name)


def _check_canary(canary: CanaryConfig, place: str) -> None:
    steps = canary.steps
    sound = bool(steps) and steps == sorted(set(steps)) and steps[0] > 0.0 and steps[-1] <= 1.0
    if not sound:
        raise ConfigError(
            f"{steps} are no steps", place=f"{place}.steps", remedy="Write rising shares, as [0.1, 0.25, 0.5, 1.0]."
        )
    if steps == [1.0]:
        raise ConfigError(
            "a canary that begins with everything is compared with nothing",
            place=f"{place}.steps",
            remedy="Begin with a smaller share: [0.1, 0.25, 0.5, 1.0].",
        )
    if canary.start not in ("running", "paused"):
        raise ConfigError(
            f"{canary.start!r} is no way to start", place=f"{place}.start", remedy="Write `running` or `paused`."
        )
    if not 50 * MS <= canary.look <= 60 * S:
        raise ConfigError(
            f"nobody looks every {human(canary.look)}",
            place=f"{place}.look",
            remedy="Write a time from 50ms to 60s; 2s is the default.",
        )
    if not 0.0 < canary.alpha <= 0.1:
        raise ConfigError(
            f"{canary.alpha} is no alpha to test by",
            place=f"{place}.alpha",
            remedy="Write a number above 0, at most 0.1; 0.01 lets one canary in a hundred be rolled back by chance.",
        )
    bounds = (
        ("min_requests", float(canary.min_requests), 1.0, 1e9),
        ("tolerance", canary.tolerance, 0.0, 10.0),
        ("tail_tolerance", canary.tail_tolerance, 0.0, 10.0),
        ("kv_usage", canary.kv_usage, 0.0, 1.0),
        ("gpu_utilization", 1.0 if canary.gpu_utilization is None else canary.gpu_utilization, 0.0, 1.0),
        ("requests_per_s", 1.0 if canary.requests_per_s is None else canary.requests_per_s, 1e-6, 1e6),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:
            raise ConfigError(
                f"{value:g} cannot be", place=f"{place}.{name}", remedy=f"Write a number from {low:g} to {high:g}."
            )
