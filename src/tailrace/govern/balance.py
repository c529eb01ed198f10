"""Which backend gets a request: the least outstanding work, or the one that has the prompt's head in its cache.

Work is counted in tokens, not in requests: a prompt of 8,000 tokens is no equal of one of 80. Who is not usable
(breaker open, ejected, told to wait) is passed over while another is; where nobody is, all are asked: no backend is
shut out for having been the last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.govern.ring import Ring
from tailrace.govern.standing import Standing

if TYPE_CHECKING:
    from random import Random

PROBE_EVERY: Final = 10
"""Of so many requests at most one is a probe of a backend whose breaker is open, as long as others can serve: a failed
probe costs a retry, and retries are a tenth of the traffic by default."""
SMOOTHING: Final = 0.1
"""Weight of a new sample in the moving mean of the skew."""


class BalancePolicy(StrEnum):
    """How the next backend is chosen."""

    LEAST_WORK = "least_work"
    """The one with the fewest outstanding tokens for its weight."""
    TWO_CHOICES = "two_choices"
    """The better one of two drawn by weight: close to the same, and several gateways do not all pick the same one."""
    PREFIX = "prefix"
    """Prompts with the same head go to the same backend, while its work is within the bound."""


class BalanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How work is shared out."""

    policy: BalancePolicy = BalancePolicy.LEAST_WORK
    sessions: bool = True
    """Requests of one session go to one backend, while its work is within the bound."""
    prefix_tokens: int = 256
    """How much of a prompt is its head. Shorter prompts have nothing worth staying for."""
    bound: float = 1.25
    """How much more work than its share a backend may have for the sake of its cache (Mirrokni et al., 2018) ..."""
    slack_tokens: int = 8192
    """... beyond this much, which an engine takes in its stride."""
    slow_start_ns: int = 10_000_000_000


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of whoever serves it."""

    tokens: int = 0
    """Its work."""
    prompt_tokens: int = 0
    key: int | None = None
    """Hash of its session, or of its prompt's head: where requests of the same key went before it is cheaper."""


_ANY: Final = Want()


class Balancer:
    """Chooses among the standings of all backends. Ties go to chance: the first of the file is nobody special."""

    def __init__(self, standings: Iterable[Standing], settings: BalanceSettings, random: Random) -> None:
        self._random = random
        self._unprobed = PROBE_EVERY
        """Requests since the last probe."""
        self.replace(standings, settings)
        self.affinity_asked = 0
        """Requests that had a key ..."""
        self.affinity_met = 0
        """... and those of them that went to the first backend of its order."""
        self.forced = 0
        """Requests that went to a backend that was not usable, because none was."""

    def replace(self, standings: Iterable[Standing], settings: BalanceSettings) -> None:
        """Backends came, went or changed. The standings keep what they know."""
        self.standings = {standing.name: standing for standing in standings}
        self.settings = settings
        for standing in self.standings.values():
            standing.ramp_ns = settings.slow_start_ns
        self._ring = Ring([(standing.name, standing.weight) for standing in self.standings.values()])

    def choose(
        self, among: Sequence[Standing], now: int, want: Want = _ANY, *, but: Collection[Standing] = ()
    ) -> Standing | None:
        """One of `among`; `None` only where that is empty.

        `but`: not these, as long as there is any other at all.
        """
        if len(among) == 1:
            return among[0]
        if not among:
            return None
        able: Sequence[Standing] = [one for one in among if one.usable(now) and one not in but]
        if not able:
            able = [standing for standing in among if standing not in but] or list(among)
            usable = [standing for standing in able if standing.usable(now)]
            self.forced += not usable
            able = usable or able
        able = self._without_probes(fitting(able, want.prompt_tokens))
        if len(able) == 1:
            return able[0]
        if want.key is not None:
            chosen = self._near(able, want, now)
            if chosen is not None:
                return chosen
        if self.settings.policy is BalancePolicy.TWO_CHOICES and len(able) > 2:
            able = self._two(able, now)
        return self._least(able, want.tokens, now)

    def _without_probes(self, able: Sequence[Standing]) -> Sequence[Standing]:
        """Who is to be probed is probed first and alone; in between it gets nothing while others can serve."""
        self._unprobed += 1
        closed = [standing for standing in able if not standing.breaker.opened]
        if len(closed) == len(able) or not closed:
            return able
        if self._unprobed < PROBE_EVERY:
            return closed
        self._unprobed = 0
        return [standing for standing in able if standing.breaker.opened]

    def _least(self, able: Sequence[Standing], tokens: int, now: int) -> Standing:
        idle = [standing for standing in able if not standing.tokens]
        if len(idle) > 1:
            # Any of them is as good as the next for this request; by load alone the heaviest would get all of them.
            return self._random.choices(idle, [standing.share(now) for standing in idle])[0]
        best: Standing | None = None
        least = ties = 0.0
        for standing in able:
            # Its own work counts: two tokens in front of a prompt of thousands do not make a backend of weight 1
            # better than one of weight 4.
            load = (standing.tokens + tokens + 1) / standing.share(now)
            if best is None or load < least:
                best, least, ties = standing, load, 1
            elif load == least:
                ties += 1
                if self._random.random() * ties < 1:
                    best = standing
        assert best is not None
        return best

    def _two(self, able: Sequence[Standing], now: int) -> list[Standing]:
        weights = [standing.share(now) for standing in able]
        first = self._random.choices(range(len(able)), weights)[0]
        weights[first] = 0.0
        second = self._random.choices(range(len(able)), weights)[0]
        return [able[first], able[second]]

    def _near(self, able: Sequence[Standing], want: Want, now: int) -> Standing | None:
        """The first on the ring that may take it and is within the bound."""
        assert want.key is not None
        self.affinity_asked += 1
        settings = self.settings
        mean = sum(standing.tokens for standing in able) / sum(standing.share(now) for standing in able)
        names = {standing.name: standing for standing in able}
        home: str | None = None
        for name in self._ring.walk(want.key):
            home = home or name
            standing = names.get(name)
            if standing is None:
                continue
            # A backend in its slow start has little of a share: it is not filled up by keys that come home.
            within = max(settings.bound * mean, settings.slack_tokens) * standing.share(now)
            if standing.tokens <= within:
                self.affinity_met += name == home
                return standing
        return None


def fitting(able: Sequence[Standing], prompt_tokens: int) -> Sequence[Standing]:
    """Those that take so long a prompt; where none does, those that take the longest."""
    if all(standing.max_prompt_tokens is None for standing in able):
        return able
    fits = [s for s in able if s.max_prompt_tokens is None or prompt_tokens <= s.max_prompt_tokens]
    if fits:
        return fits
    longest = max(standing.max_prompt_tokens or 0 for standing in able)
    return [standing for standing in able if standing.max_prompt_tokens == longest]


class Skew:
    """How unequal the work of the backends is, as a moving mean over the moments that were looked at.

    Both are of outstanding tokens per weight. Moments without any work are left out: nothing is shared out then.
    """

    __slots__ = ("cv", "peak", "samples")

    def __init__(self) -> None:
        self.cv: float | None = None
        """Coefficient of variation: standard deviation / mean. 0 is even; (n - 1)^½ is all with one of n."""
        self.peak: float | None = None
        """The most loaded one's work / mean. 1 is even; n is all with one."""
        self.samples = 0

    def sample(self, standings: Sequence[Standing], now: int) -> None:
        """Look at the work of this moment."""
        if len(standings) < 2:
            return
        loads = [standing.tokens / standing.share(now) for standing in standings]
        mean = sum(loads) / len(loads)
        if mean <= 0:
            return
        cv = (sum((load - mean) ** 2 for load in loads) / len(loads)) ** 0.5 / mean
        peak = max(loads) / mean
        self.samples += 1
        weight = max(SMOOTHING, 1 / self.samples)
        self.cv = cv if self.cv is None else self.cv + weight * (cv - self.cv)
        self.peak = peak if self.peak is None else self.peak + weight * (peak - self.peak)
