"""Pacing: waiting for an absolute time, which nothing but the end of the run can cut short."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

from tailrace.model.thresholds import S

SHORT_NS = 200_000
"""The loop's timers count in milliseconds; below this a turn of the loop is a better wait than a timer."""


class Pacer:
    """Waits for times; `stop` ends every wait, now and later."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self.stopped = False

    def stop(self) -> None:
        """End the wait."""
        self.stopped = True
        self._wake()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def until(self, due_ns: int | None) -> bool:
        """Wait until `due_ns` (monotonic; `None`: for ever). False when it was stopped instead.

        Never returns early. How late it returns is up to the loop and the host, and is the caller's to record.
        """
        while not self.stopped:
            left = None if due_ns is None else due_ns - monotonic_ns()
            if left is not None and left <= 0:
                return True
            if left is not None and left < SHORT_NS:
                await asyncio.sleep(0)
                continue
            self._future = self._loop.create_future()
            timer = None if left is None else self._loop.call_later(left / S, self._wake)
            try:
                await self._future
            finally:
                if timer is not None:
                    timer.cancel()
                self._future = None
        return False
