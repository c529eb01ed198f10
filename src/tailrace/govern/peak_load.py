"""How near the load is to its recent peak: a change of policy is better made when it is not."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from tailrace.model.thresholds import S

NEAR: Final = 0.8
"""Above this share of the recent peak a change needs to be forced."""
_LEAST_PEAK: Final = 8.0
"""Below so many requests at once nothing is a peak: one request after another would forbid every change."""
_WINDOW_NS: Final = 900 * S
_BUCKET_NS: Final = 10 * S
_SMOOTH_NS: Final = 5 * S


class PeakLoad:
    """The requests in flight, smoothed over five seconds, and their peak of the last quarter of an hour."""

    def __init__(self) -> None:
        self.now = 0.0
        self._at: int | None = None
        self._buckets: deque[tuple[int, float]] = deque()

    def saw(self, in_flight: int, now: int) -> None:
        """So many are in flight at `now` (ns, monotonic). Called by the sweeper; costs a microsecond."""
        since = _SMOOTH_NS if self._at is None else now - self._at
        self._at = now
        self.now += (in_flight - self.now) * -math.expm1(-since / _SMOOTH_NS)
        bucket = now // _BUCKET_NS
        buckets = self._buckets
        if buckets and buckets[-1][0] == bucket:
            if self.now > buckets[-1][1]:
                buckets[-1] = (bucket, self.now)
            return
        buckets.append((bucket, self.now))
        while buckets[0][0] < bucket - _WINDOW_NS // _BUCKET_NS:
            buckets.popleft()

    @property
    def peak(self) -> float:
        """The largest of the last quarter of an hour."""
        return max((load for _, load in self._buckets), default=0.0)


def too_near(load: float, peak: float) -> str:
    """Why a change of policy should wait; empty where it need not."""
    if peak < _LEAST_PEAK or load <= NEAR * peak:
        return ""
    return (
        f"{load:.0f} requests are in flight, {load / peak:.0%} of the peak of the last quarter of an hour "
        f"({peak:.0f}): a change of policy is safer below {NEAR:.0%}"
    )
