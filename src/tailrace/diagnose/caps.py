"""Whether what runs at once is capped: flat at its most while others wait."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.window import Window

__all__ = ["RunningCap", "running_cap"]

AT_CAP: Final = 0.8
QUEUED: Final = 0.2
LEAST: Final = 10


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
