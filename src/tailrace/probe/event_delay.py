"""Event-queue delay: from the moment a descriptor became readable until the event loop stamped it.

A kernel timer (timerfd) becomes readable at times that are known to the nanosecond. Its descriptor waits in the same
epoll set as the sockets, so the delay until the loop hands it over is the delay that a read at that moment had: the
kernel's wake-up, the wait for a processor, and everything that the loop did first. Each period is one sample, also
those of a time in which the loop stood still; a delay of 500 ms is then fifty samples and not one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from bisect import bisect_right
from time import monotonic_ns
from typing import Final

from tailrace.model.thresholds import MS

PERIOD_NS: Final = 10 * MS
_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = 0o2004000
_ABSOLUTE: Final = 1
_MOST: Final = 1000
"""Samples that one wake may add: ten seconds of a loop that stood still."""


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


def _timer(first_ns: int, period_ns: int) -> int | None:
    """A timer that becomes readable at `first_ns` (monotonic) and then each period; `None` where there is no such."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        create, settime = library.timerfd_create, library.timerfd_settime
    except (OSError, AttributeError):
        return None
    fd = int(create(_MONOTONIC, _NONBLOCK_CLOEXEC))
    if fd < 0:
        return None
    spec = _Timer(_TimeSpec(*divmod(period_ns, 10**9)), _TimeSpec(*divmod(first_ns, 10**9)))
    if settime(fd, _ABSOLUTE, ctypes.byref(spec), None) < 0:
        os.close(fd)
        return None
    return fd


class EventDelay:
    """Samples the delay while a run goes on. Start and stop it on the loop's thread."""

    def __init__(self) -> None:
        self.delays_ns: list[int] = []
        """One a period, in order."""
        self._seen: list[int] = []
        """When a wake took samples, and the mean delay of what it took."""
        self._mean: list[int] = []
        self._fd: int | None = None
        self._due = 0
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to sample, if this system has such timers."""
        self._due = monotonic_ns() + PERIOD_NS
        self._fd = _timer(self._due, PERIOD_NS)
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._ready)

    def stop(self) -> None:
        """Stop sampling."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _ready(self) -> None:
        now = monotonic_ns()
        fd = self._fd
        if fd is None:
            return
        with contextlib.suppress(BlockingIOError):
            count = int.from_bytes(os.read(fd, 8), "little")
            self.take(now, count)

    def take(self, now: int, count: int) -> None:
        """`count` periods had passed when the loop looked at `now`."""
        due = self._due
        self._due = due + count * PERIOD_NS
        if count > _MOST:
            due, count = due + (count - _MOST) * PERIOD_NS, _MOST
        delays = [max(0, now - due - i * PERIOD_NS) for i in range(count)]
        self.delays_ns += delays
        self._seen.append(now)
        self._mean.append(sum(delays) // count)

    def at(self, stamp: int) -> int:
        """What to expect of the delay (ns) of an event that was stamped at `stamp`; 0 where nothing is known.

        It is that of the nearest wake: of the one before, or of the one that follows within half a period, whichever
        is nearer.
        """
        seen = self._seen
        place = bisect_right(seen, stamp)
        best, distance = 0, PERIOD_NS * 3 // 2
        for i in (place - 1, place):
            if 0 <= i < len(seen) and abs(seen[i] - stamp) < distance:
                best, distance = self._mean[i], abs(seen[i] - stamp)
        return best
