"""Where clients come in: the data port's listening socket, TCP or Unix, TLS on it, and clients that come in bursts."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from tailrace.gateway.accept import AT_ONCE, SHARED_AT_ONCE, Accepting
from tailrace.gateway.address import UNIX, unix_path
from tailrace.gateway.config import Config
from tailrace.gateway.tls import HANDSHAKE_S, SHUTDOWN_S, renew, server_context
from tailrace.gateway.unix_socket import UnixListener
from tailrace.model.errors import InputError

BACKLOG: Final = 4096
_HANDSHAKE_UNDER_WAY_S: Final = 0.5
"""Who is in a handshake is no connection of ours yet, and would be cut by a process that ends because it has none."""


class Entrance:
    """The listening socket of one process. `open` begins to accept; `close` ends that and frees the address."""

    def __init__(self, config: Config, make: Callable[[], asyncio.Protocol]) -> None:
        """`make` answers each connection. ConfigError for a certificate that does not do."""
        self._listen = config.listen
        self._mode = int(config.listen_mode, 8)
        self._accepting = Accepting(make)
        self._tls: ssl.SSLContext | None = server_context(config.tls) if config.tls is not None else None
        self._server: asyncio.Server | None = None
        self._unix: UnixListener | None = None
        self.host = ""
        self.port = 0

    @property
    def url(self) -> str:
        """Where clients reach it."""
        path = unix_path(self._listen)
        return f"{UNIX}{path}" if path is not None else web_address(self.host, self.port, tls=self._tls is not None)

    async def open(self, sock: socket.socket | None = None) -> None:
        """Accept from now on, on `sock` where another process has bound it. InputError when there is no such address.

        `sock` is closed with us; its address, a Unix socket's file included, stays with whoever bound it.
        """
        loop = asyncio.get_running_loop()
        path = unix_path(self._listen)
        where: dict[str, Any] = {"sock": sock}
        if sock is None and path is not None:
            self._unix = UnixListener(path, self._mode, backlog=BACKLOG)
            where["sock"] = self._unix.socket
        elif sock is None:
            host, port = split_address(self._listen, "listen")
            where = {"host": host, "port": port}
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
        listen = loop.create_server if path is None else loop.create_unix_server
        try:
            self._server = await listen(self._accepting, **where, **options, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no resolver can be asked for
            raise bind_error(error, self._listen, "--listen") from None
        shared = sock is not None and path is not None
        self._accepting.watch(self._server, at_once=SHARED_AT_ONCE if shared else AT_ONCE, **options)
        if self._unix is not None:
            self._unix.served = True
        if path is None:
            sockname = self._server.sockets[0].getsockname()
            self.host, self.port = sockname[0], sockname[1]

    def withdraw(self) -> float:
        """Accept nothing more, and let handshakes under way end; returns how many seconds to give them."""
        self._accepting.stop()
        if self._server is not None:
            self._server.close()
        return 0.0 if self._tls is None else _HANDSHAKE_UNDER_WAY_S

    def close(self) -> None:
        """Accept nothing more, and drop who is not in yet."""
        self._accepting.close()  # first: with its descriptors the address would not be free
        if self._server is not None:
            self._server.close()
        if self._unix is not None:
            self._unix.close()

    def check(self, config: Config) -> None:
        """ConfigError for a certificate that `renew` would not take."""
        if self._tls is not None and config.tls is not None:
            server_context(config.tls)

    def renew(self, config: Config) -> None:
        """Read the certificate again for the handshakes that come. ConfigError, and no change, where it does not do."""
        if self._tls is not None and config.tls is not None:
            renew(self._tls, config.tls)


def web_address(host: str, port: int, *, tls: bool) -> str:
    """The URL of a port that is bound."""
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def split_address(text: str, place: str) -> tuple[str, int]:
    """`host:port` -> its parts. InputError when it is none."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        port = None
        parts = urlsplit("//")
    if port is None or not parts.hostname:
        raise InputError(f"{text!r} is no address", place=place, remedy="Write HOST:PORT, for example 127.0.0.1:8080.")
    return parts.hostname, port


def bind_error(error: OSError | UnicodeError, address: str, option: str) -> InputError:
    """A port that cannot be had, with what to do about it."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        port = address.rpartition(":")[2]
        return InputError(
            f"port {port} is in use",
            place=address,
            remedy=f"Stop whatever listens there, or choose another with {option} HOST:PORT (port 0 takes a free one).",
        )
    return InputError(
        f"cannot listen there: {getattr(error, 'strerror', None) or error}",
        place=address,
        remedy=f"Choose another with {option} HOST:PORT.",
    )
