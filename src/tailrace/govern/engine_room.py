"""Room in the engine as the engine itself tells it: an admission limit that follows `waiting` and KV usage.

An operator asks for it (`EngineRoomPolicy` in the configuration); then metrics that are old, or were never read, count
as a full engine. What was sent since the last reading is counted here, because the reading does not know of it: else
everything that waits would rush in after one good reading (herding), and the next reading would come too late.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import S

_SEATS_NS: Final = 60 * S
"""How long an engine's largest batch is remembered after it was last seen to be full."""
_FIRST: Final = 8
"""Requests that may be sent to an idle engine between two readings, where nothing else bounds them."""
_SOME_KV: Final = 0.02
"""Below this share the usage says nothing of what one request takes."""


class EngineRoomPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When an engine has no room. A bound that is `None` is not looked at."""

    max_waiting: int | None = 4
    """No room when more than this wait in the engine's own queue. Some must wait, or it idles between two readings."""
    max_kv_usage: float | None = 0.9
    """No room when more than this share of the KV blocks is in use: vLLM preempts, and computes again, at 1."""
    stale_ns: int = 5 * S
    """A reading older than this counts as a full engine."""


class EngineRoom:
    """One engine. `hear` every reading, `sent` and `ended` every request; `room` says whether one more may go."""

    __slots__ = ("_allowance", "_ended", "_last", "_policy", "_processes", "_seats", "_seats_at", "_sent")

    def __init__(self, policy: EngineRoomPolicy, *, processes: int = 1) -> None:
        """`processes`: how many hear the same readings and send to the engine: each sends its part, but at least one
        where there is room.
        """
        self._policy = policy
        self._processes = processes
        self._last: EngineState | None = None
        self._sent = 0
        self._ended = 0
        self._allowance = 0
        self._seats: int | None = None
        self._seats_at = 0

    def hear(self, state: EngineState | None, now: int) -> None:
        """A reading of the engine's metrics; `None`, or one that was heard already, changes nothing."""
        if state is None or (self._last is not None and state.at_ns <= self._last.at_ns):
            return
        self._last = state
        self._sent = self._ended = 0
        waiting, running = state.waiting or 0, state.running or 0
        if waiting and running:
            # It waits although the engine would rather run it: this is as many as it runs of such requests.
            self._seats, self._seats_at = running, now
        elif self._seats is not None and (now - self._seats_at > _SEATS_NS or running > self._seats):
            self._seats = None
        allowed = self._allowed(waiting, running, state.kv_usage)
        self._allowance = allowed if allowed <= 0 else max(1, allowed // self._processes)

    def sent(self) -> None:
        """A request went to this engine."""
        self._sent += 1

    def ended(self) -> None:
        """A request has left this engine, however it ended."""
        self._ended += 1

    def stale(self, now: int) -> bool:
        """Whether the engine's state is unknown: nothing read yet, or too long ago."""
        return self._last is None or now - self._last.at_ns > self._policy.stale_ns

    def room(self, now: int, in_flight: int = 1) -> bool:
        """Whether one more request may be sent. With none of ours `in_flight` one always may: its end, or the next
        reading, is what lets the others go; with no such exception a lost metrics port would stop everything.
        """
        if in_flight <= 0:
            return True
        if self.stale(now):
            return False
        return self._sent - self._ended < self._allowance

    def why_not(self, now: int) -> str:
        """What stands in the way, in words; empty where there is room."""
        last, policy = self._last, self._policy
        if last is None:
            return "the engine's metrics have not been read yet"
        if self.stale(now):
            return f"the engine's metrics are {(now - last.at_ns) / 1e9:.1f} s old"
        if self._sent - self._ended < self._allowance:
            return ""
        if policy.max_waiting is not None and (last.waiting or 0) > policy.max_waiting:
            return f"{last.waiting} requests wait in the engine, more than {policy.max_waiting}"
        if policy.max_kv_usage is not None and (last.kv_usage or 0.0) > policy.max_kv_usage:
            return f"{last.kv_usage:.0%} of the engine's KV blocks are in use, more than {policy.max_kv_usage:.0%}"
        return f"{self._sent} requests were sent since the engine's metrics were read"

    def _allowed(self, waiting: int, running: int, kv_usage: float | None) -> int:
        """Requests that may be sent until the next reading, beyond as many as end until then.

        Above 0 there is room; below, so many must end before another takes a place.
        """
        policy = self._policy
        # An engine whose batch was never seen full may take as many again as it runs: it doubles with every reading.
        seats = max(0, self._seats - running) if self._seats is not None else max(running, _FIRST)
        if policy.max_waiting is None:
            allowed = max(seats, 1)
        else:
            allowed = policy.max_waiting - waiting + (0 if waiting else seats)
        if policy.max_kv_usage is not None and kv_usage is not None and kv_usage >= _SOME_KV and running:
            # As many requests as the blocks between here and the bound are worth, at what those that run take.
            allowed = min(allowed, math.floor(running * (policy.max_kv_usage - kv_usage) / kv_usage))
        return allowed
