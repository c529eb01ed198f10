"""Limits that several processes share: what they say to each other about it, as plain data.

The limits of a lane are kept exact by leases. One party, the keeper (`leases.LeaseBook` in a supervisor; a Redis script
where the processes stand on several hosts), hands out places; a process uses only places that it holds. The sum of what
is held never exceeds a limit, so neither does the sum of what is used, however late a message is.

A lane is *loose* while everybody finds a place among its own: no message passes. Once somebody needs more than is
spare, it is *tight*: every place that is not in use goes back to the keeper at once, who then knows what is free and
gives it to whoever has waited longest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class Report(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One process on one lane: what it gives back, and what it lacks beyond what it holds."""

    lane: str
    number: int
    """Of this process and lane, counted from 1."""
    heard: int
    """The number of the last order obeyed; grants of later ones are still on their way."""
    given_running: int = 0
    given_queued: int = 0
    need_running: int = 0
    """Requests that wait."""
    need_queued: int = 0
    """Those of them that hold no place in the queue either: they are refused when there is none anywhere."""
    oldest_ns: int = 0
    """When the longest waiting one came, on the monotonic clock that the processes of a machine share; compared only
    with other such stamps. 0 where nobody waits."""


class Order(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the keeper says to one process about one lane."""

    lane: str
    number: int
    """Of this process and lane, counted from 1."""
    running: int = 0
    """Places more."""
    queued: int = 0
    tight: bool = False
    """Give back whatever is not in use, now and whenever a place becomes free."""
    settled: int = 0
    """Nobody has a place in the queue for what the report of this number still lacks."""
    elsewhere: int = 0
    """Requests that wait in the other processes."""


class SharedState(Protocol):
    """The way to the keeper. Never waits: orders come later, in the order in which they were given."""

    def report(self, reports: list[Report]) -> None:
        """Send what has changed."""

    def listen(self, listener: Callable[[list[Order]], None]) -> None:
        """Hand all orders to `listener`."""
