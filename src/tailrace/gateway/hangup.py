"""Noticing that a client has left while nobody reads from it.

An event loop learns of a FIN by reading, so a connection whose reading is paused could be dead for minutes while an
engine computes for it. Linux tells it apart from data: EPOLLRDHUP. One epoll object watches all paused connections, and
the event loop watches that one.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable


class HangupWatch:
    """Calls back once when a watched transport's peer has shut down its side. Does nothing where there is no epoll."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._gone: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._gone)

    def watch(self, transport: asyncio.Transport, gone: Callable[[], None]) -> None:
        """`gone` is called from the event loop; `forget` before the transport is closed or read again."""
        descriptor = _descriptor(transport)
        if descriptor < 0 or not hasattr(select, "epoll"):
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._look)
        self._gone[descriptor] = gone
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def forget(self, transport: asyncio.Transport) -> None:
        """Not any more. Harmless where nothing was watched."""
        descriptor = _descriptor(transport)
        if self._gone.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Watch nothing any more."""
        self._gone.clear()
        epoll, self._epoll = self._epoll, None
        if epoll is not None:
            asyncio.get_running_loop().remove_reader(epoll.fileno())
            epoll.close()

    def _look(self) -> None:
        if self._epoll is None:
            return
        for descriptor, _ in self._epoll.poll(0):
            self._epoll.unregister(descriptor)
            gone = self._gone.pop(descriptor, None)
            if gone is not None:
                gone()


def _descriptor(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    return -1 if sock is None else int(sock.fileno())
