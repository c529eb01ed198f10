"""A bounded pool of keep-alive connections to one engine: reused last in first out, dropped before the engine would."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from time import monotonic_ns
from typing import Final, Protocol

from tailrace.gateway.address import EngineAddress
from tailrace.gateway.upstream import UpstreamConnection

log = logging.getLogger(__name__)

_TLS_GOODBYE_S: Final = 2.0
"""How long an engine has to answer our close_notify."""
_TURNS_TO_CLOSE: Final = 10
MAX_IDLE: Final = 256
"""Idle connections kept; the engine keeps a socket and a task for each."""


class Seeker(Protocol):
    """Who waits for a connection."""

    def upstream_connected(self, connection: UpstreamConnection, started: int, now: int) -> None:
        """A fresh connection is there; `started` is when connecting began."""

    def upstream_free(self, connection: UpstreamConnection, now: int) -> None:
        """Another request has given its connection back, and it is our turn."""

    def upstream_unreachable(self, error: str, now: int) -> None:
        """Nobody answered, or not in time."""


class UpstreamPool:
    """Connections to one engine: reused last in first out, dropped before the engine would drop them."""

    def __init__(
        self,
        address: EngineAddress,
        *,
        connect_timeout_ns: int,
        keep_alive_ns: int,
        limit: int = 8192,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`tls` where the address asks for it; `server_name`: the name that its certificate is judged by."""
        assert (tls is not None) == address.tls
        self.address = address
        self.tls = tls
        self.server_name = server_name
        self.authority: bytes = address.authority.encode("ascii")
        self.prefix: bytes = address.prefix.encode("ascii")
        """Path of the base URL, before every target."""
        self.connect_timeout_ns = connect_timeout_ns
        self.keep_alive_ns = keep_alive_ns
        self.limit = limit
        self.idle: deque[UpstreamConnection] = deque()
        self.open: set[UpstreamConnection] = set()
        self.line: dict[Seeker, None] = {}
        """Who waits for a connection because no more may be opened, the longest waiting first."""
        self.opened_total = 0
        self.reused_total = 0
        self._connecting: dict[Seeker, asyncio.Task[None]] = {}
        self._closing = False

    def take(self, now: int) -> UpstreamConnection | None:
        """An idle connection that is surely younger than the engine's keep-alive, or `None`."""
        while self.idle:
            connection = self.idle.pop()
            transport = connection.transport
            if transport is not None and not transport.is_closing() and not self._too_old(connection, now):
                self.reused_total += 1
                return connection
            connection.abort()
        return None

    def full(self) -> bool:
        """Whether no further connection may be opened."""
        return len(self.open) + len(self._connecting) >= self.limit

    def connect(self, seeker: Seeker) -> None:
        """Open a connection for `seeker`, which is told of the result; `forget` takes the wish back."""
        task = asyncio.create_task(self._connect(seeker))  # noqa: TID251  (owned: `forget` and `close` cancel it)
        self._connecting[seeker] = task
        task.add_done_callback(lambda done: self._connected(seeker, done))

    def _connected(self, seeker: Seeker, done: asyncio.Task[None]) -> None:
        if self._connecting.get(seeker) is done:
            del self._connecting[seeker]
        self._next_in_line()

    def stand_in_line(self, seeker: Seeker) -> None:
        """Wait for a connection; `seeker` is told when it is its turn, and `forget` takes the wish back."""
        self.line[seeker] = None

    def forget(self, seeker: Seeker) -> None:
        """The seeker no longer wants the connection that it waits for, or that is being opened for it."""
        self.line.pop(seeker, None)
        task = self._connecting.pop(seeker, None)
        if task is not None:
            task.cancel()

    def _next_in_line(self) -> None:
        """There may be room for one more connection: the first in line has it opened."""
        if self.line and not self._closing and not self.full():
            seeker = next(iter(self.line))
            del self.line[seeker]
            self.connect(seeker)

    async def _connect(self, seeker: Seeker) -> None:
        started = monotonic_ns()
        error = ""
        connection: UpstreamConnection | None = None
        try:
            async with asyncio.timeout(self.connect_timeout_ns / 1e9):
                connection = await self._open()
        except TimeoutError:
            error = f"no connection within {self.connect_timeout_ns / 1e6:.0f} ms"
        except ssl.SSLCertVerificationError as failure:
            error = f"its certificate is not accepted: {failure.verify_message}"
        except OSError as failure:  # ssl.SSLError is one
            error = failure.strerror or str(failure)
        except Exception as failure:
            # Whatever it is, the seeker must hear of it: it would wait for its whole budget.
            log.exception("connecting to %s failed", self.address.place)
            error = f"{type(failure).__name__}: {failure}"
        if connection is not None and (connection.transport is None or connection.transport.is_closing()):
            connection, error = None, "the connection was closed at once"
        current = asyncio.current_task()
        wanted = self._connecting.get(seeker) is current
        if wanted:
            del self._connecting[seeker]
        if connection is None:
            if wanted:
                seeker.upstream_unreachable(f"{self.address.place}: {error}", monotonic_ns())
        elif wanted:
            seeker.upstream_connected(connection, started, monotonic_ns())
        else:
            connection.abort()

    async def _open(self) -> UpstreamConnection:
        loop, address = asyncio.get_running_loop(), self.address
        made: list[UpstreamConnection] = []
        ready = False

        def make() -> UpstreamConnection:
            made.append(UpstreamConnection(self))
            return made[-1]

        try:
            if address.socket:
                await loop.create_unix_connection(make, address.socket)
            elif self.tls is None:
                await loop.create_connection(make, address.host, address.port)
            else:
                await loop.create_connection(
                    make,
                    address.host,
                    address.port,
                    ssl=self.tls,
                    server_hostname=self.server_name or address.host,
                    ssl_shutdown_timeout=_TLS_GOODBYE_S,
                )
            ready = True
        finally:
            if not ready:
                # Given up at the last moment, uvloop closes the socket and tells its protocol nothing.
                for connection in made:
                    connection.abort()
                    self.closed(connection)
        return made[-1]

    def opened(self, connection: UpstreamConnection) -> None:
        """A connection is made."""
        self.opened_total += 1
        self.open.add(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.open.discard(connection)
        if connection.receiver is None:
            with contextlib.suppress(ValueError):  # it was in use or already taken out
                self.idle.remove(connection)
        self._next_in_line()

    def release(self, connection: UpstreamConnection, now: int) -> None:
        """A request has its whole answer; the next may use the connection."""
        if self._closing or len(self.idle) >= MAX_IDLE:
            connection.abort()
            return
        if self.line:
            seeker = next(iter(self.line))
            del self.line[seeker]
            self.reused_total += 1
            seeker.upstream_free(connection, now)
            return
        connection.idle_since = now
        self.idle.append(connection)

    def sweep(self, now: int) -> None:
        """Close what has been idle too long; the oldest lie at the left."""
        while self.idle and self._too_old(self.idle[0], now):
            self.idle.popleft().abort()

    def _too_old(self, connection: UpstreamConnection, now: int) -> bool:
        limit = self.keep_alive_ns
        if connection.keep_alive_ns is not None:
            limit = min(limit, connection.keep_alive_ns)
        return now - connection.idle_since > limit

    async def close(self) -> None:
        """Close everything and wait for the connecting tasks."""
        self._closing = True
        tasks = list(self._connecting.values())
        self._connecting.clear()
        for task in tasks:
            task.cancel()
        for connection in list(self.open):
            connection.abort()
        self.idle.clear()
        for _ in range(_TURNS_TO_CLOSE):  # TLS takes some turns of the loop to say that it is gone
            if self.open:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
