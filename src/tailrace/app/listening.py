"""The sockets on which workers listen: opened by the supervisor, so that they outlive a worker where they should.

Each worker has a socket of its own on the same address (SO_REUSEPORT: the kernel spreads connections over those that
listen). A worker that is replaced hands its socket on with whatever waits in it; the socket of one that was killed is
closed, so that new connections go to the others and not into the time until there is a new one.
"""

from __future__ import annotations

import socket
from typing import Any

from tailrace.gateway.gateway import bind_error, split_address
from tailrace.model.errors import InputError


class DataPort:
    """One address, held for as long as this object is open, and the sockets that listen on it."""

    def __init__(self, listen: str) -> None:
        """Take the address. InputError where somebody else has it, another gateway of ours included."""
        host, port = split_address(listen, "listen")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            self._held = socket.socket(family, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise bind_error(error, listen, "--listen") from None
        try:
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Not shared yet: a port that others share would be taken without an error, and split between us.
            self._held.bind(address)
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError as error:
            self._held.close()
            raise bind_error(error, listen, "--listen") from None
        self._family = family
        self._address: Any = self._held.getsockname()
        self._listen = listen

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host, port = self._address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def open(self) -> socket.socket:
        """One more socket on the address.

        The worker begins to listen when it can accept: until then the kernel sends connections to the others, or
        refuses them.
        """
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(self._address)
        except OSError as error:
            sock.close()
            raise InputError(
                f"a worker's socket cannot be opened: {error.strerror or error}",
                place=self._listen,
                remedy="Use --workers 1 where the system cannot share a port.",
            ) from None
        return sock

    def close(self) -> None:
        """Let the address go."""
        self._held.close()
