"""Whether what runs at once is capped: flat at its most while others wait."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.in_flight import InFlight
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window

__all__ = ["RunningCap", "counted_cap", "running_cap"]

AT_CAP: Final = 0.8
QUEUED: Final = 0.2
LEAST: Final = 10
LEAST_WAIT: Final = 5.0
"""In usual gaps: who waits for so long does not only wait for the running step."""
ALIKE: Final = 0.06
MANY: Final = 8


class RunningCap(NamedTuple):
    """The cap as records saw it."""

    size: int
    share: float
    """Of the requests that found others waiting, those that found the engine at its most."""
    queued: int
    queued_share: float
    """Of all requests, those that found others waiting."""


def running_cap(window: Window, *, queued_share: float = QUEUED) -> RunningCap | None:
    """`None` where requests wait although less than usual runs (blocks, prefills), or where hardly any waits."""
    running, waiting = window.done.column("running_at_admission"), window.done.column("waiting_at_admission")
    queued = waiting > 0
    count = int(queued.sum())
    if count < max(LEAST, 0.05 * window.n) or np.isnan(running[queued]).all():
        return None
    top = float(np.nanmax(running))
    near = running[queued] >= 0.97 * top - 1
    share, of_all = float(near.mean()), float(queued.mean())
    return RunningCap(int(top), share, count, of_all) if share >= AT_CAP and of_all > queued_share else None


def counted_cap(window: Window) -> RunningCap | None:
    """As `running_cap`, counted from the records' own queue times where the engine reports them: how many run while
    somebody waits. A gauge that is read every few seconds misses a queue of seconds.

    `None` with several replicas, or where what runs meanwhile is not always as many.
    """
    queue = window.done.ms("queue_engine")
    if replicas(window).n > 1 or np.isnan(queue).mean() > 0.1 or np.isnan(window.median_gap_ms):
        return None
    queue = np.nan_to_num(queue, nan=0.0)
    held = np.nan_to_num(window.done.ms("queue_gateway"), nan=0.0) + np.nan_to_num(window.done.ms("ingress"), nan=0.0)
    arrived = window.start + held * 1e6
    begun = arrived + queue * 1e6
    waits = queue >= max(LEAST_WAIT * window.median_gap_ms, 50.0)
    if waits.sum() < max(2 * LEAST, 0.05 * window.n):
        return None
    runs = InFlight.of(begun, window.end)
    # Just before it is let in, whoever waits has the others before it.
    at = runs.at(begun[waits] - 1e6)
    top = float(np.quantile(at, 0.95))
    share = float((at >= (1.0 - ALIKE) * top - 1.0).mean())
    if top < MANY or share < AT_CAP or float(runs.at(begun).max()) > 1.1 * top + 2.0:
        return None
    return RunningCap(round(top), share, int(waits.sum()), float(waits.mean()))
