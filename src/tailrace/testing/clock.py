"""A clock that moves only when told to."""

from __future__ import annotations

from tailrace.model.thresholds import MS, S


class ManualClock:
    """Stands in for `time.monotonic_ns`: `clock()` is now, `advance(...)` moves it forward; it never moves back."""

    def __init__(self, now_ns: int = 1_000 * S) -> None:
        # Not 0: code that takes a stamp for a truth value, or 0 for "absent", fails at once.
        self._now_ns = now_ns

    def __call__(self) -> int:
        """Return the time now (ns)."""
        return self._now_ns

    @property
    def now_ns(self) -> int:
        """The time now (ns)."""
        return self._now_ns

    def advance(self, *, ns: int = 0, ms: float = 0.0, s: float = 0.0) -> int:
        """Move forward by the sum of the arguments; the new time (ns). A negative step is an error."""
        step = ns + round(ms * MS) + round(s * S)
        if step < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-step} ns")
        self._now_ns += step
        return self._now_ns

    def move_to(self, now_ns: int) -> int:
        """Move forward to `now_ns`; an earlier time is an error."""
        return self.advance(ns=now_ns - self._now_ns)
