"""The replicas behind a gateway: who got how much work, and how long its requests took."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import codes_of
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import or_zero

__all__ = ["Replicas", "replicas"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAST: Final = 10
"""Requests below which a replica's median says nothing."""


class Replicas(NamedTuple):
    """One entry a replica, in the order of `names`."""

    names: list[str]
    of_row: Ints
    """Row of `Window.done` -> replica."""
    of_every: Ints
    """Row of `Window.every` -> replica, -1 where it has none."""
    in_flight: Floats
    """Requests under way there, mean over the window (Little: sum of times / span)."""
    tokens: Floats
    """Prompt and output tokens of its completed requests."""
    requests: Floats

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def skew(self) -> float:
        """Largest mean in flight over the mean of all."""
        return float(self.in_flight.max() / max(float(self.in_flight.mean()), 1e-9)) if self.n else 1.0

    @property
    def work_skew(self) -> float:
        """Largest share of tokens over the equal share."""
        return float(self.tokens.max() / max(float(self.tokens.mean()), 1e-9)) if self.n else 1.0

    @property
    def hot(self) -> int:
        """The replica with the most in flight."""
        return int(np.argmax(self.in_flight))

    def words(self) -> str:
        """Mean in flight by replica, the fullest first."""
        order = np.argsort(-self.in_flight, kind="stable")
        return ", ".join(f"{self.names[i]} {self.in_flight[i]:.1f}" for i in order.tolist())


@once_a_window
def replicas(window: Window) -> Replicas:
    """Which replica served whom. Requests that reached none are left out."""
    index, names = codes_of(window.every.column("backend"))
    keep = np.array([i for i, name in enumerate(names) if name], dtype=np.int64)
    place = np.full(len(names), -1, dtype=np.int64)
    place[keep] = np.arange(keep.size)
    of_every = place[index] if index.size else np.empty(0, dtype=np.int64)
    known = account(window)
    inside = (of_every >= 0) & known.reached
    span = max(float(known.end.max() - known.start.min()), 1.0) if known.start.size else 1.0
    lasted = known.end - known.sent
    of_row = of_every[window.rows]
    done = window.done
    work = or_zero(window.tokens) + or_zero(done.column("output_tokens"))
    rows = of_row >= 0
    size = keep.size
    return Replicas(
        names=[str(names[i]) for i in keep],
        of_row=of_row,
        of_every=of_every,
        in_flight=np.bincount(of_every[inside], weights=lasted[inside], minlength=size)[:size] / span,
        tokens=np.bincount(of_row[rows], weights=work[rows], minlength=size)[:size].astype(np.float64),
        requests=np.bincount(of_every[inside], minlength=size)[:size].astype(np.float64),
    )
