"""The sockets on which workers listen: opened by the supervisor, so that they outlive a worker where they should.

By TCP each worker has a socket of its own on the same address (SO_REUSEPORT: the kernel spreads connections over those
that listen). A worker that is replaced hands its socket on with whatever waits in it; the socket of one that was killed
is closed, so that new connections go to the others and not into the time until there is a new one.

A Unix socket cannot be shared so: there is one, and each worker accepts from it. Its file and whatever waits in it stay
for as long as the supervisor does, whoever dies.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol

from tailrace.gateway.address import UNIX, unix_path
from tailrace.gateway.config import Config
from tailrace.gateway.entrance import bind_error, split_address, web_address
from tailrace.gateway.unix_socket import UnixListener
from tailrace.model.errors import InputError


class DataPort(Protocol):
    """One address, held for as long as this object is open, and the sockets that listen on it."""

    @property
    def url(self) -> str:
        """Where clients reach it."""

    def open(self) -> socket.socket:
        """One more socket on the address, which whoever has it may close."""

    def withdraw(self) -> None:
        """The workers are about to end: let no new client wait for one."""

    def close(self) -> None:
        """Let the address go."""


def port_for(config: Config) -> DataPort:
    """Take `config.listen`. InputError where somebody else has it, another gateway of ours included."""
    path = unix_path(config.listen)
    if path is not None:
        return UnixPort(path, int(config.listen_mode, 8))
    return TcpPort(config.listen, "listen", tls=config.tls is not None)


class UnixPort:
    """A Unix socket for all workers."""

    def __init__(self, path: str, mode: int) -> None:
        self._listener = UnixListener(path, mode)

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"{UNIX}{self._listener.path}"

    def open(self) -> socket.socket:
        """The socket, under a number of its own."""
        return self._listener.socket.dup()

    def withdraw(self) -> None:
        """Take the file away."""
        self._listener.close()

    def close(self) -> None:
        """Take the file away."""
        self._listener.close()


class TcpPort:
    """A port for sockets that share it."""

    def __init__(self, listen: str, key: str, *, tls: bool = False) -> None:
        """`key` is the configuration's, for messages; `tls` only shows in `url`."""
        self._host, port = split_address(listen, key)
        option = "--listen" if key == "listen" else key
        try:
            found = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            self._held = socket.socket(family, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise bind_error(error, listen, option) from None
        try:
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Not shared yet: a port that others share would be taken without an error, and split between us.
            self._held.bind(address)
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError as error:
            self._held.close()
            raise bind_error(error, listen, option) from None
        self._family = family
        self._address: Any = self._held.getsockname()
        self._listen = listen
        self._tls = tls

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return web_address(self._address[0], self._address[1], tls=self._tls)

    @property
    def address(self) -> str:
        """Host as it was given, and the port's number."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._address[1]}"

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

    def withdraw(self) -> None:
        """Nothing: each worker's socket ends with it."""

    def close(self) -> None:
        """Let the address go."""
        self._held.close()
