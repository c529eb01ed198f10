"""How many requests were under way at a moment, counted from the records themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among
from tailrace.analyze.timebase import starts_ns
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import or_zero

__all__ = ["Account", "InFlight", "account"]

Floats = NDArray[np.float64]


class InFlight(NamedTuple):
    """Sorted begins and ends (ns on the window's axis)."""

    begins: Floats
    ends: Floats

    @classmethod
    def of(cls, begin: Floats, end: Floats) -> InFlight:
        """From the intervals of requests, in any order."""
        return cls(np.sort(begin), np.sort(end))

    def at(self, when: Floats) -> Floats:
        """How many were under way at each of `when`; one that begins just then counts."""
        begun = np.searchsorted(self.begins, when, side="right")
        over = np.searchsorted(self.ends, when, side="right")
        return (begun - over).astype(np.float64)

    @property
    def most(self) -> int:
        """The most at once."""
        return int(self.at(self.begins).max()) if self.begins.size else 0


class Account(NamedTuple):
    """All requests of a window, whatever became of them; times in ns on the window's axis."""

    start: Floats
    sent: Floats
    """When it left the gateway's own queue."""
    end: Floats
    reached: NDArray[np.bool_]
    """It was sent to an engine: not refused, and not over before it left the queue."""

    def upstream(self, rows: NDArray[np.bool_] | None = None) -> InFlight:
        """Those with the engines (of `rows`, a mask over `Window.every`)."""
        chosen = self.reached if rows is None else self.reached & rows
        return InFlight.of(self.sent[chosen], self.end[chosen])


@once_a_window
def account(window: Window) -> Account:
    """Begin, send and end of every request of the window."""
    every = window.every
    start = starts_ns(every).astype(np.float64)
    held = or_zero(every.column("queue_gateway_ns"))
    ingress = or_zero(every.column("ingress_ns"))
    end = start + every.column("e2e_ns")
    sent = np.minimum(start + ingress + held, end)
    refused = among(every.column("outcome"), {"rejected"})
    return Account(start, sent, end, ~refused & (sent < end))
