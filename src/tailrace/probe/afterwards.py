"""Work that can wait until nothing arrives: a record is made when the loop has looked at its sockets again.

When many streams end in one moment, making their records at once would take milliseconds, in which the stamps of the
next requests' first bytes wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, Generic, TypeVar

T = TypeVar("T")

TURN_NS: Final = 300_000
"""Of each turn of the loop. One item is always done, so that it comes to an end on the busiest loop."""


class Afterwards(Generic[T]):
    """Hands items to `take` one after the other, in order, a little in each turn of the loop.

    What `take` raises goes to `on_error`, and the items behind it are dropped: they would fail alike.
    """

    def __init__(
        self, take: Callable[[T], None], on_error: Callable[[Exception], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._take = take
        self._on_error = on_error
        self._loop = loop
        self._items: deque[T] = deque()
        self._due = False

    def put(self, item: T) -> None:
        """Have `item` taken soon."""
        self._items.append(item)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._some)

    def _some(self) -> None:
        self._due = False
        until = monotonic_ns() + TURN_NS
        try:
            while self._items:
                self._take(self._items.popleft())
                if monotonic_ns() > until:
                    break
        except Exception as error:  # noqa: BLE001  (the loop would log it and go on)
            self._items.clear()
            self._on_error(error)
        if self._items and not self._due:
            self._due = True
            self._loop.call_soon(self._some)

    def finish(self) -> None:
        """Take all that is left, now. Raises what `take` raises."""
        while self._items:
            self._take(self._items.popleft())
