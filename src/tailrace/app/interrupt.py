"""A composition as a program: its event loop, and SIGINT and SIGTERM as a request to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_interrupted(main: Callable[[asyncio.Event], Awaitable[T]]) -> tuple[T, bool]:
    """Run `main(stop)` in a new loop; a signal sets `stop`. Returns its result and whether a signal came.

    Call it from the main thread. What `main` raises is raised here.
    """

    async def guarded() -> tuple[T, bool]:
        stop = asyncio.Event()
        came = False

        def on_signal() -> None:
            nonlocal came
            came = True
            stop.set()

        loop = asyncio.get_running_loop()
        for one in SIGNALS:
            loop.add_signal_handler(one, on_signal)
        try:
            result = await main(stop)
        finally:
            for one in SIGNALS:
                loop.remove_signal_handler(one)
        return result, came

    return uvloop.run(guarded())
