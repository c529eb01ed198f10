"""The connections to one target: kept alive, the most recently used one first."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic_ns
from typing import NamedTuple

from tailrace.model.errors import TargetError
from tailrace.probe.connection import Connection, Inbox


class Address(NamedTuple):
    """Where to connect. `addresses` are resolved once, so that no request pays for a name lookup."""

    host: str
    port: int
    addresses: tuple[tuple[int, str], ...]
    """(address family, numeric address), in the order in which the resolver gave them."""
    tls: ssl.SSLContext | None = None


class ConnectError(Exception):
    """No connection could be opened; the text says why."""


async def resolve(host: str, port: int, tls: ssl.SSLContext | None) -> Address:
    """Look the name up once. Raises `TargetError` when it does not resolve."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=1)  # SOCK_STREAM
    except (OSError, UnicodeError) as error:
        raise TargetError(
            f"the name {host!r} does not resolve ({error})", remedy="Check the spelling, or use a numeric address"
        ) from None
    unique = dict.fromkeys((int(family), str(where[0])) for family, _, _, _, where in found)
    return Address(host, port, tuple(unique), tls)


class ConnectionPool:
    """Opens connections, lends them out and takes them back; never waits and never queues."""

    def __init__(self, address: Address, *, connect_timeout_s: float = 10.0, reuse: bool = True) -> None:
        self.address = address
        self._reuse = reuse
        self.opened = 0
        self.inbox = Inbox(asyncio.get_running_loop())
        self._timeout_s = connect_timeout_s
        self._addresses = list(address.addresses)
        """The one that worked last comes first: `localhost` may mean an address at which nobody listens."""
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    @property
    def open_now(self) -> int:
        """Connections that are open."""
        return len(self._all)

    def take(self) -> Connection | None:
        """An idle connection, or `None`."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
        return None

    async def open(self) -> Connection:
        """A new connection. Raises `ConnectError`."""
        loop = asyncio.get_running_loop()
        address = self.address
        errors: list[str] = []
        for place, (family, numeric) in enumerate(list(self._addresses)):
            try:
                async with asyncio.timeout(self._timeout_s):
                    _, connection = await loop.create_connection(
                        lambda: Connection(self.inbox, self),
                        numeric,
                        address.port,
                        family=family,
                        ssl=address.tls,
                        server_hostname=address.host if address.tls else None,
                    )
            except TimeoutError:
                errors.append(f"no connection within {self._timeout_s:g} s")
            except ssl.SSLError as error:
                errors.append(f"TLS failed: {error.reason or error}")
            except OSError as error:
                errors.append(error.strerror or str(error))
            else:
                self.opened += 1
                self._all.add(connection)
                if place:
                    self._addresses.remove((family, numeric))
                    self._addresses.insert(0, (family, numeric))
                return connection
        raise ConnectError("; ".join(dict.fromkeys(errors)) or "no address")

    def give_back(self, connection: Connection) -> None:
        """Take a connection that can be used again."""
        if self._reuse:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self, connection: Connection) -> None:
        """Drop a connection that cannot."""
        self._all.discard(connection)

    def close(self) -> None:
        """Close everything at once."""
        self._idle.clear()
        for connection in list(self._all):
            connection.abandon()


class Answer(NamedTuple):
    """A whole reply to a simple request."""

    status: int
    headers: dict[str, str]
    body: bytes
    at_ns: int
    """Monotonic time at which its last byte was read."""
    cut: str = ""
    """Why the body is not whole, where it is not."""


class _Collector:
    known = None

    def __init__(self, limit: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.at_ns = 0
        self.problem = ""
        self._limit = limit

    def on_first_byte(self, stamp: int) -> None:
        """Nothing to do: only the whole reply counts here."""

    def on_head(self, status: int, headers: dict[str, str], stamp: int) -> None:
        self.status, self.headers, self.at_ns = status, headers, stamp

    def on_body(self, data: bytes, stamp: int) -> None:
        self.at_ns = stamp
        self.body += data
        if len(self.body) > self._limit:
            self.on_lost(stamp, f"the answer is longer than {self._limit} bytes")

    def on_end(self, stamp: int) -> None:
        self.at_ns = stamp
        if not self.done.done():
            self.done.set_result(None)

    def on_lost(self, stamp: int, why: str, *, garbled: bool = False) -> None:
        del garbled  # either way there is no more of it
        self.problem = why
        self.on_end(stamp)


async def ask(pool: ConnectionPool, payload: bytes, *, timeout_s: float, limit: int = 64 << 20) -> Answer:
    """Send one simple request and read its reply, whole or as far as it came. Raises `ConnectError`."""
    while True:
        kept = pool.take()
        connection = kept or await pool.open()
        collector = _Collector(limit)
        connection.send(payload, collector)
        try:
            async with asyncio.timeout(timeout_s):
                await collector.done
        except TimeoutError:
            connection.abandon()
            raise ConnectError(f"no answer within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            connection.abandon()
            raise
        if collector.status:
            at_ns = collector.at_ns or monotonic_ns()
            return Answer(collector.status, collector.headers, bytes(collector.body), at_ns, collector.problem)
        if kept is None:
            raise ConnectError(collector.problem)
        # A kept-alive connection that the server closed meanwhile: ask again, in the end on a new one.
