"""Whether requests went slower while something was the case: the pace of those inside against those outside."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.hardware import Shares
from tailrace.diagnose.window import Window

__all__ = ["Pace", "compare_pace"]

Floats = NDArray[np.float64]
LEAST: Final = 20
INSIDE: Final = 0.8
OUTSIDE: Final = 0.2
SLOWER: Final = 1.05


class Pace(NamedTuple):
    """Medians inside / outside; `None` where either side has too few requests or no such number."""

    decode: float | None
    """Of the usual gap between chunks."""
    prefill: float | None
    """Of the prefill time for each prompt token that was computed."""
    n_inside: int
    n_outside: int
    explains: Floats
    """What each row of `Window.done` lost by it (ms)."""

    @property
    def known(self) -> bool:
        """Whether there was anything to compare."""
        return self.decode is not None or self.prefill is not None

    @property
    def slower(self) -> bool:
        """Whether either was slower inside."""
        return max(self.decode or 0.0, self.prefill or 0.0) >= SLOWER

    def words(self) -> str:
        """For a reader."""
        parts = []
        if self.decode is not None:
            parts.append(f"usual gap x {self.decode:.2f}")
        if self.prefill is not None:
            parts.append(f"prefill a token x {self.prefill:.2f}")
        return f"{' and '.join(parts)} (n = {self.n_inside} inside, {self.n_outside} outside)"


def compare_pace(window: Window, shares: Shares) -> Pace:
    """Requests that lived at least 80 % inside, against those that lived at most 20 % inside."""
    part = shares.inside_ms(window.start, window.end) * 1e6 / np.maximum(window.end - window.start, 1.0)
    seen = shares.covered(window.start, window.end) >= INSIDE
    inside, outside = seen & (part >= INSIDE), seen & (part <= OUTSIDE)
    gap = window.done.ms("chunk_gap_p50")
    gap = np.where(np.isnan(gap), window.done.ms("tpot"), gap)
    prefill = window.done.ms("prefill")
    with np.errstate(invalid="ignore", divide="ignore"):
        a_token = prefill / np.maximum(window.computed_tokens, 1.0)
    decode, fill = _ratio(gap, inside, outside), _ratio(a_token, inside, outside)
    explains = np.zeros(window.n)
    for ratio, spent in ((decode, window.done.ms("decode")), (fill, prefill)):
        if ratio is not None and ratio > 1.0:
            explains += part * (1.0 - 1.0 / ratio) * np.nan_to_num(spent, nan=0.0)
    if fill is not None and fill > 1.0:
        # What stops streams are steps with a prefill: as much longer as those.
        explains += part * (1.0 - 1.0 / fill) * window.lost.stall
    return Pace(decode, fill, int(inside.sum()), int(outside.sum()), explains)


def _ratio(values: Floats, inside: NDArray[np.bool_], outside: NDArray[np.bool_]) -> float | None:
    known = ~np.isnan(values)
    a, b = values[inside & known], values[outside & known]
    if min(a.size, b.size) < LEAST or float(np.median(b)) <= 0:
        return None
    return float(np.median(a) / np.median(b))
