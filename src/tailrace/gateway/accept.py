"""Accepting a burst of clients.

The event loop (libuv) accepts one connection an iteration. While a thousand streams flow, an iteration takes tens of
milliseconds, and a thousand new clients would wait half a minute before anybody reads their first byte: unseen, because
for them the connection is made (by the kernel), and for us the request has not begun. So each accepted connection looks
whether more are waiting behind it, and takes them at once. With none waiting that is one system call a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any, Final

AT_ONCE: Final = 64
"""How many are taken beside the loop's own: below a millisecond of work for each that is read afterwards."""
SHARED_AT_ONCE: Final = 4
"""From a socket that other processes accept from too: they want some of a burst."""


class Accepting:
    """The protocol factory of a server, with an eye on its listening sockets."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._sockets: list[socket.socket] = []
        self._options: dict[str, Any] = {}
        self._at_once = AT_ONCE
        self._joining: set[asyncio.Future[Any]] = set()

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a connection that the loop has accepted."""
        if self._sockets:
            self._take_more()
        return self._make()

    def watch(self, server: asyncio.Server, *, at_once: int = AT_ONCE, **options: Any) -> None:
        """Take bursts from this server's sockets; `options` are what it was made with: `ssl` and its time-outs."""
        self._at_once = at_once
        self._options = options
        for listening in server.sockets:
            # A descriptor of our own: the loop closes its own when it stops listening.
            copy = socket.socket(fileno=os.dup(listening.fileno()))
            copy.settimeout(0)
            self._sockets.append(copy)

    def stop(self) -> None:
        """Take no more."""
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    def close(self) -> None:
        """Take no more; connections whose handshake is under way are dropped."""
        self.stop()
        for joining in self._joining:
            joining.cancel()

    def _take_more(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            for _ in range(self._at_once):
                try:
                    client, _ = listening.accept()
                except OSError:  # nobody waits; or no descriptor is left, which the loop's own accept reports
                    break
                client.settimeout(0)
                joining = asyncio.ensure_future(
                    loop.connect_accepted_socket(self._make, client, **self._options), loop=loop
                )
                self._joining.add(joining)
                joining.add_done_callback(self._joined)

    def _joined(self, joining: asyncio.Future[Any]) -> None:
        self._joining.discard(joining)
        with contextlib.suppress(asyncio.CancelledError, OSError):  # it left before it was there, or broke its TLS
            joining.result()
