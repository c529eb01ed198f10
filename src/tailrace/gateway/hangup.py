"""Clients that leave while we do not read them.

A socket that is not read hides its end behind what it still holds: a paused upload's client could be gone for as long
as the engine takes nothing. The kernel knows at once, and tells through `EPOLLRDHUP`, which event loops do not offer.
Where there is no epoll, the end is seen when reading goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import Final, Protocol

_EVENTS: Final = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLONESHOT", 0)


class Watched(Protocol):
    """Whose socket it is."""

    def hung_up(self) -> None:
        """The other side closed, or is gone."""


class HangupWatch:
    """One epoll of its own, which the event loop watches as it watches any descriptor."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._watched: dict[int, Watched] = {}

    def watch(self, fd: int, who: Watched) -> None:
        """Tell `who` once when the peer of `fd` closes. Until `forget`."""
        if not _EVENTS or fd < 0:
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._ready)
        with contextlib.suppress(OSError):  # closed meanwhile: its end is told by the loop
            self._epoll.register(fd, _EVENTS)
            self._watched[fd] = who

    def forget(self, fd: int, who: Watched) -> None:
        """Stop watching `fd` for `who`: the number may be another socket's by now."""
        if self._watched.get(fd) is who and self._epoll is not None:
            del self._watched[fd]
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        """The event loop ends."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        self._watched.clear()

    def _ready(self) -> None:
        if self._epoll is None:
            return
        for fd, _ in self._epoll.poll(0):
            who = self._watched.get(fd)
            if who is not None:
                self.forget(fd, who)
                who.hung_up()
