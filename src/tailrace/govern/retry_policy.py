"""Whether a request whose attempt failed is sent again: where, after how long, and out of which budget.

Only before the first byte has left for the client: whoever asks has seen to that. A retry elsewhere costs the fleet one
more attempt at a time at which it may be failing already, so all retries together are a share of the traffic; and what
took its engine down with it is not handed from engine to engine.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace.model.thresholds import MS, S

if TYPE_CHECKING:
    from random import Random

WINDOW_NS: Final = 10 * S
"""What the budget looks back on."""
_SLICE_NS: Final = S
RETRYABLE: Final = frozenset({429, 500, 502, 503, 529})
"""Not 504: the engine has worked on it for its whole time. Not other 4xx: the next engine would say the same."""
_REFUSALS: Final = frozenset({429, 503, 529})
"""Of those, the ones that began no work."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is retried."""

    attempts: int = 3
    """Of one request, the first included."""
    same_backend: bool = False
    """Whether the engine that failed is asked again where there is no other."""
    statuses: frozenset[int] = RETRYABLE
    backoff_ns: int = 50 * MS
    """The longest first wait; it doubles with every retry, and the wait is drawn from 0 up to it (full jitter)."""
    backoff_max_ns: int = 2 * S
    wait_max_ns: int = 2 * S
    """A `Retry-After` longer than this is the client's to wait for."""
    budget: float = 0.1
    """Retries as a share of the requests of the last 10 s ..."""
    reserve: int = 3
    """... or so many in 10 s, where that is more: thirty requests that all fail cost at most three attempts more."""


class Trouble(StrEnum):
    """What became of an attempt."""

    UNREACHABLE = "unreachable"
    """No connection: the engine has got nothing."""
    REFUSED = "refused"
    """429 or 503: it has begun nothing."""
    ERROR = "error"
    """Another 5xx."""
    CUT = "cut"
    """The connection died before the first byte: the engine may have died of this very request."""


class RetryBudget:
    """Attempts after the first, as a share of the traffic. Nothing can be saved up beyond the window.

    In any 10 s (give or take one), the larger of `budget` x requests and `reserve` pass.
    """

    __slots__ = ("_requests", "_retries", "_slices", "denied", "policy", "taken")

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self._slices: deque[list[int]] = deque()
        """[second, requests, retries], the oldest first."""
        self._requests = self._retries = 0
        self.taken = 0
        self.denied = 0
        """Retries that the budget had no room for."""

    def request(self, now: int) -> None:
        """A client's request goes upstream."""
        self._at(now)[1] += 1
        self._requests += 1

    def left(self, now: int) -> float:
        """Retries that may be made at this moment."""
        self._at(now)
        return max(self.policy.budget * self._requests, self.policy.reserve) - self._retries

    def take(self, now: int) -> bool:
        """Room for one retry: it is used."""
        if self.left(now) < 1:
            self.denied += 1
            return False
        self._at(now)[2] += 1
        self._retries += 1
        self.taken += 1
        return True

    def _at(self, now: int) -> list[int]:
        second = now // _SLICE_NS
        slices = self._slices
        if slices and slices[-1][0] == second:
            return slices[-1]
        oldest = second - WINDOW_NS // _SLICE_NS
        while slices and slices[0][0] <= oldest:
            _, requests, retries = slices.popleft()
            self._requests -= requests
            self._retries -= retries
        fresh = [second, 0, 0]
        slices.append(fresh)
        return fresh


class Again(NamedTuple):
    """A retry that is due."""

    wait_ns: int
    elsewhere: bool


def trouble_of(status: int) -> Trouble:
    """What an HTTP error status says of the attempt."""
    return Trouble.REFUSED if status in _REFUSALS else Trouble.ERROR


def decide(
    policy: RetryPolicy,
    budget: RetryBudget,
    trouble: Trouble,
    *,
    attempts: int,
    cuts: int,
    elsewhere: bool,
    not_before: int,
    until: int,
    now: int,
    random: Random,
) -> Again | None:
    """The retry to make after the last of `attempts` failed, or `None`: the client gets what there is.

    `cuts`: attempts of this request that ended with their connection, this one included. `elsewhere`: another backend
    may be asked; where the first could not be reached that is free, since no engine has had any work. `not_before`:
    until when the engine that failed wants to be left alone (`Retry-After`; 0: it did not say). `until`: when the
    request's own time is over. Takes from `budget` only for a retry that is made.
    """
    if attempts >= policy.attempts or (trouble is Trouble.CUT and cuts > 1):
        return None
    if not elsewhere and (not policy.same_backend or trouble is Trouble.CUT):
        return None
    if elsewhere and trouble is Trouble.UNREACHABLE:
        wait = 0  # nothing was begun, and whoever is asked next has not been asked yet
    else:
        wait = round(random.random() * min(policy.backoff_max_ns, policy.backoff_ns << (attempts - 1)))
    if not elsewhere and not_before - now > wait:
        # Jitter behind it, never before: everybody was told the same instant.
        wait += not_before - now
        if not_before - now > policy.wait_max_ns:
            return None
    if now + wait >= until:
        return None
    if not (elsewhere and trouble is Trouble.UNREACHABLE) and not budget.take(now):
        return None
    return Again(wait, elsewhere)


def retry_after_ns(value: str, unix_now_s: float) -> int | None:
    """`Retry-After` -> ns from now; `None` for what is neither a number of seconds nor a date (RFC 9110 §10.2.3).

    A date is compared with `unix_now_s` (wall clock, s).
    """
    text = value.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit() and len(text) <= 12:
        return round(float(text) * S)
    from email.utils import mktime_tz, parsedate_tz  # noqa: PLC0415  (servers write seconds; a date is rare)

    date = parsedate_tz(text)
    if date is None:
        return None
    try:
        return max(0, round((mktime_tz(date) - unix_now_s) * S))
    except (ValueError, OverflowError):  # a day that no month has
        return None
