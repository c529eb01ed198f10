"""The last minutes of an engine's readings, in bounded memory.

One reading of vLLM's default buckets is about 10 kB when everything in it has moved, so `MOST` of them are below 2 MB
for each engine, whatever the scrape period is: readings that come closer together than `SPACING_NS` replace one
another, and those older than `KEPT_NS` go.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tailrace.engines.odometer import Reading
from tailrace.model.thresholds import S

KEPT_NS: Final = 300 * S
SPACING_NS: Final = 2 * S
MOST: Final = KEPT_NS // SPACING_NS + 2


class ReadingRing:
    """Readings in order of time; the newest is always here."""

    def __init__(self, *, kept_ns: int = KEPT_NS, spacing_ns: int = SPACING_NS) -> None:
        self._kept_ns, self._spacing_ns = kept_ns, spacing_ns
        self._readings: deque[Reading] = deque(maxlen=MOST)

    def __len__(self) -> int:
        return len(self._readings)

    def add(self, reading: Reading) -> None:
        """The newest reading. Stamps must not go back."""
        readings = self._readings
        # The newest is on trial: it stays only if it is far enough from the one before it.
        if len(readings) >= 2 and readings[-1].at_ns - readings[-2].at_ns < self._spacing_ns:
            readings.pop()
        readings.append(reading)
        while len(readings) > 2 and reading.at_ns - readings[1].at_ns >= self._kept_ns:
            readings.popleft()

    @property
    def newest(self) -> Reading | None:
        """The last reading."""
        return self._readings[-1] if self._readings else None

    def window(self, length_ns: int) -> tuple[Reading, Reading] | None:
        """The newest reading, and the one `length_ns` before it or the nearest later one.

        `None` with fewer than two readings: one says nothing about a stretch of time.
        """
        readings = self._readings
        if len(readings) < 2:
            return None
        newest = readings[-1]
        since = newest.at_ns - length_ns
        for reading in readings:
            if reading.at_ns >= since:
                return (reading, newest) if reading is not newest else (readings[-2], newest)
        return readings[-2], newest

    def between(self, begin_ns: int, end_ns: int) -> list[Reading]:
        """The readings of a stretch of time, both ends included."""
        return [reading for reading in self._readings if begin_ns <= reading.at_ns <= end_ns]
