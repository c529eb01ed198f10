"""The configuration's keys for several engines: how work is shared out, and what happens when one of them fails."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.gateway.config_sections import BackendConfig
from tailrace.gateway.config_values import Duration, Section, lasting
from tailrace.govern.balance import BalancePolicy, BalanceSettings
from tailrace.govern.breaker import BreakerPolicy
from tailrace.govern.hedge import HedgePolicy
from tailrace.govern.outlier import OutlierPolicy
from tailrace.govern.retry_policy import RETRYABLE, RetryPolicy
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S

_WEIGHTS: Final = (0.01, 100.0)
_PROBE_NS: Final = (10 * MS, 60 * S)


class BalanceConfig(Section):
    """Which of several engines gets the next request."""

    policy: BalancePolicy = BalancePolicy.LEAST_WORK
    """`least_work`: the fewest outstanding tokens for its weight. `two_choices`: the better of two drawn by weight.
    `prefix`: prompts that begin alike go to one engine, whose cache has their beginning, while its work is within the
    bound."""
    sessions: bool = True
    """Requests with the same `x-session-id` go to the same engine, within the same bound."""
    prefix_tokens: int = 256
    """With `prefix`: how much of a prompt must be alike, at 4 bytes a token. Shorter prompts go by least work."""
    bound: float = 1.25
    """How many times its share of the work an engine may have for the sake of its cache ..."""
    slack_tokens: int = 8192
    """... beyond this many tokens, which are always within it."""
    slow_start: Duration = lasting(10 * S)
    """How long an engine that comes back (or is added) takes to get its whole share. It begins with a tenth."""

    def resolve(self) -> BalanceSettings:
        """As the governor reads them."""
        return BalanceSettings(
            policy=self.policy,
            sessions=self.sessions,
            prefix_tokens=self.prefix_tokens,
            bound=self.bound,
            slack_tokens=self.slack_tokens,
            slow_start_ns=int(self.slow_start),
        )


class RetryConfig(Section):
    """When a request whose attempt failed is sent again. Never once a byte has left for the client."""

    attempts: int = 3
    """Of one request, the first included; 1 retries nothing."""
    same_backend: bool = False
    """Whether the engine that failed is asked again where there is no other. Clients' SDKs do that by themselves."""
    statuses: list[int] = msgspec.field(default_factory=lambda: sorted(RETRYABLE))
    """Answers that are not passed on while another attempt may do better."""
    backoff: Duration = lasting(50 * MS)
    """The longest first wait. It doubles with each retry; the wait is drawn from 0 up to it."""
    backoff_max: Duration = lasting(2 * S)
    wait_max: Duration = lasting(2 * S)
    """The longest `Retry-After` that is waited for here; a longer one is passed on at once."""
    budget: float = 0.1
    """Retries as a share of the requests of the last 10 s, in each worker ..."""
    reserve: int = 3
    """... or so many in 10 s, where that is more. Engines that could not be reached do not count: they had no work."""

    def resolve(self) -> RetryPolicy:
        """As the governor reads them."""
        return RetryPolicy(
            attempts=self.attempts,
            same_backend=self.same_backend,
            statuses=frozenset(self.statuses),
            backoff_ns=int(self.backoff),
            backoff_max_ns=int(self.backoff_max),
            wait_max_ns=int(self.wait_max),
            budget=self.budget,
            reserve=self.reserve,
        )


class BreakerConfig(Section):
    """When an engine that fails is left alone. The last one that is left never is."""

    enabled: bool = True
    failures: int = 5
    """So many requests in a row that failed through its fault (4xx and 429 are none) open it ..."""
    share: float = 0.5
    """... and so does this share of ..."""
    requests: int = 20
    """... at least so many requests in ..."""
    window: Duration = lasting(10 * S)
    """... this time."""
    probe: Duration = lasting(500 * MS)
    """While it is open, one request in this time shows whether the engine is back."""

    def resolve(self) -> BreakerPolicy:
        """As the governor reads them."""
        return BreakerPolicy(
            enabled=self.enabled,
            failures=self.failures,
            share=self.share,
            requests=self.requests,
            window_ns=int(self.window),
            probe_ns=int(self.probe),
        )


class OutliersConfig(Section):
    """When an engine that is much slower than the others at the same work gets nothing for a while."""

    enabled: bool = True
    factor: float = 3.0
    """So many times their latency (geometric mean, at prompts of the same length), or their gap events."""
    requests: int = 20
    """Of it within the window, at least."""
    window: Duration = lasting(30 * S)
    max_ejected: float = 0.34
    """The largest share of the engines that may be out at once, rounded down: one of three, none of two."""
    eject: Duration = lasting(10 * S)
    """For how long, the first time; twice as long each further time, up to five minutes."""

    def resolve(self) -> OutlierPolicy:
        """As the governor reads them."""
        return OutlierPolicy(
            enabled=self.enabled,
            factor=self.factor,
            requests=self.requests,
            window_ns=int(self.window),
            max_ejected=self.max_ejected,
            eject_ns=int(self.eject),
        )


class HedgeConfig(Section):
    """When a request that is slow to answer is sent a second time, to another engine; the first answer counts."""

    enabled: bool = False
    """It buys the tail with work: look at the engines' load first."""
    quantile: float = 0.95
    """Of the waits for the first token in the same lane; whoever waits longer is sent again."""
    least: Duration = lasting(50 * MS)
    """Never sooner."""
    budget: float = 0.05
    """Second attempts as a share of the requests of the last 10 s, or one, where that is more."""

    def resolve(self) -> HedgePolicy:
        """As the governor reads them."""
        return HedgePolicy(quantile=self.quantile, least_ns=int(self.least), budget=self.budget)


def check_balance(
    balance: BalanceConfig,
    retry: RetryConfig,
    breaker: BreakerConfig,
    outliers: OutliersConfig,
    hedge: HedgeConfig,
    *,
    where: str,
) -> None:
    """Refuse what could not work. Raises `ConfigError` with the place and the remedy."""
    _within(balance.prefix_tokens, 1, 1 << 20, f"{where}: balance.prefix_tokens", "`256` is the default")
    _within(balance.bound, 1.0, 100.0, f"{where}: balance.bound", "`1.25` lets an engine have a quarter more")
    _within(balance.slack_tokens, 0, 1 << 40, f"{where}: balance.slack_tokens", "`8192` is the default")
    _within(retry.attempts, 1, 10, f"{where}: retry.attempts", "`1` retries nothing")
    _within(retry.budget, 0.0, 1.0, f"{where}: retry.budget", "`0.1` is a tenth of the requests")
    _within(retry.reserve, 0, 1000, f"{where}: retry.reserve", "`3` is the default")
    _within(breaker.failures, 1, 10_000, f"{where}: breaker.failures", "`enabled: false` switches it off")
    _within(breaker.share, 0.01, 1.0, f"{where}: breaker.share", "`0.5` is half of the requests")
    _within(breaker.requests, 1, 10_000, f"{where}: breaker.requests", "`20` is the default")
    _within(outliers.factor, 1.2, 100.0, f"{where}: outliers.factor", "`3` is three times slower")
    _within(outliers.requests, 5, 10_000, f"{where}: outliers.requests", "`20` is the default")
    _within(outliers.max_ejected, 0.0, 0.9, f"{where}: outliers.max_ejected", "`0.34` is one of three")
    _within(hedge.quantile, 0.5, 0.999, f"{where}: hedge.quantile", "`0.95` hedges the slowest twentieth")
    _within(hedge.budget, 0.0, 0.5, f"{where}: hedge.budget", "`0.05` is a twentieth of the requests")
    for status in retry.statuses:
        if status != 429 and not 500 <= status <= 599:
            raise ConfigError(
                f"an answer of {status} would be the same from any engine",
                place=f"{where}: retry.statuses",
                remedy="Write 429 and statuses from 500 to 599.",
            )
    if not _PROBE_NS[0] <= breaker.probe <= _PROBE_NS[1]:
        raise ConfigError(
            "an engine is tried again too often or too late",
            place=f"{where}: breaker.probe",
            remedy="Write a time from `10ms` to `60s`; `500ms` is the default.",
        )
    for place, lasts in (("breaker.window", breaker.window), ("outliers.window", outliers.window)):
        if lasts < S:
            raise ConfigError(
                "nothing can be judged from so short a time",
                place=f"{where}: {place}",
                remedy="Write at least `1s`.",
            )


def check_share(backend: BackendConfig, *, place: str) -> None:
    """Refuse a weight or a bound that no engine could have. Raises `ConfigError`."""
    _within(backend.weight, *_WEIGHTS, f"{place}.weight", "`2` gets twice the work of `1`")
    if backend.max_prompt_tokens is not None:
        _within(backend.max_prompt_tokens, 1, 1 << 31, f"{place}.max_prompt_tokens", "leave it out for no bound")


def engine_part(backend: BackendConfig) -> BackendConfig:
    """What makes it another engine if it changes: all but its share of the work and what its requests are told."""
    return msgspec.structs.replace(backend, weight=1.0, max_prompt_tokens=None, forward_priority=False)


def _within(value: float, low: float, high: float, place: str, hint: str) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"{value:g} cannot be", place=place, remedy=f"Write a number from {low:g} to {high:g}; {hint}."
        )
