"""Requests that have ended and still matter to those that have not: a bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from tailrace.measure.inference.scene import Heard, Scene

MOST: Final = 512
MOST_STAMPS: Final = 131_072
"""Stamps kept all in all: about 5 MB."""


class Neighbours:
    """Ended requests in the order in which they ended."""

    def __init__(self, *, most: int = MOST, most_stamps: int = MOST_STAMPS) -> None:
        self._ended: deque[Heard] = deque()
        self._most = most
        self._most_stamps = most_stamps
        self._stamps = 0
        self.forgotten_until = 0
        """The end of the last one dropped for want of room (ns): who was sent before it met more than is known."""

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, one: Heard) -> None:
        """It has ended."""
        self._ended.append(one)
        self._stamps += len(one.stamps)
        while len(self._ended) > self._most or self._stamps > self._most_stamps:
            self.forgotten_until = max(self.forgotten_until, self._drop().end)

    def forget(self, before: int) -> None:
        """Nobody who still matters was sent before this (ns)."""
        while self._ended and self._ended[0].end < before:
            self._drop()

    def clear(self) -> None:
        """Start anew: nothing is known of what was."""
        self._ended.clear()
        self._stamps = 0

    def scene(self, live: Iterable[Heard]) -> Scene:
        """They and those that live."""
        return Scene([*self._ended, *live])

    def _drop(self) -> Heard:
        one = self._ended.popleft()
        self._stamps -= len(one.stamps)
        return one
