"""What a supervisor and its workers say to each other, and the socket pair over which they say it.

A worker's end closes when the worker dies, however it dies, and so does the supervisor's: each notices the other's end
at once, without a signal, a file or a port that somebody else could open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from tailrace.export.prometheus import MetricsSnapshot
from tailrace.gateway.cancels import Cancel
from tailrace.gateway.config import Config
from tailrace.gateway.config_values import Duration
from tailrace.gateway.engine_link import EngineNews
from tailrace.govern.shared_state import Order, Report
from tailrace.model.record import RequestRecord

PROTOCOL: Final = 5
"""Changes with any message: a supervisor that outlived an upgrade must not misread a worker of the new version."""
_LENGTH: Final = 4
_MOST_UNREAD: Final = 16 * 1024 * 1024
"""Bytes that may wait for the other side before records for live followers are left out."""


class Counts(msgspec.Struct, kw_only=True):
    """Everything that a worker has counted."""

    metrics: MetricsSnapshot = msgspec.field(default_factory=MetricsSnapshot)
    counters: dict[str, int] = {}
    store: dict[str, int] = {}
    store_error: str = ""


# -- to a worker


class Begin(msgspec.Struct, tag=True):
    """Build the gateway, and serve."""

    config: bytes
    protocol: int = 0


class Grant(msgspec.Struct, tag=True):
    """The keeper's orders."""

    orders: list[Order]


class News(msgspec.Struct, tag=True):
    """What the supervisor has learnt of an engine."""

    backend: str
    news: EngineNews


class Ask(msgspec.Struct, tag=True):
    """A question that wants an answer with the same number."""

    number: int
    what: str
    config: bytes = b""
    request_id: str = ""
    backend: str = ""
    addresses: list[tuple[str, str, str]] = []


class Follow(msgspec.Struct, tag=True):
    """Send every finished record, or stop doing so."""

    on: bool


class Retire(msgspec.Struct, tag=True):
    """Another worker has taken over: serve what is here to its end."""

    within_s: float


class Stop(msgspec.Struct, tag=True):
    """End: drain as the configuration says, or at once."""

    hurry: bool = False


# -- to the supervisor


class Built(msgspec.Struct, tag=True):
    """The parts are there; leases may come."""


class Ready(msgspec.Struct, tag=True):
    """The data port is served."""


class CannotStart(msgspec.Struct, tag=True):
    """Why there will be no worker."""

    message: str
    place: str = ""
    remedy: str = ""


class Lack(msgspec.Struct, tag=True):
    """Reports for the keeper."""

    reports: list[Report]


class Answer(msgspec.Struct, tag=True):
    """The answer to a question; `error` is a sentence where there is none."""

    number: int
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    place: str = ""
    remedy: str = ""


class Ended(msgspec.Struct, tag=True):
    """Finished requests, for those who follow them."""

    records: list[RequestRecord]
    missed: int = 0


class Cancelled(msgspec.Struct, tag=True):
    """A request was cancelled that had reached the engine."""

    cancel: Cancel


class Unreachable(msgspec.Struct, tag=True):
    """A request found nobody at the engine's address."""

    backend: str


class Counted(msgspec.Struct, tag=True):
    """The counts so far; the last ones of a worker that ends say so."""

    counts: Counts
    cut: int = 0
    last: bool = False


ToWorker = Begin | Grant | News | Ask | Follow | Retire | Stop
ToSupervisor = Built | Ready | CannotStart | Lack | Answer | Ended | Cancelled | Unreachable | Counted

_encode: Final = msgspec.msgpack.Encoder().encode


def encode_config(config: Config) -> bytes:
    """A configuration with its durations in nanoseconds: exact, unlike the file's spelling."""
    return msgspec.msgpack.encode(config, enc_hook=int)


def decode_config(data: bytes) -> Config:
    """What `encode_config` made."""
    return msgspec.msgpack.decode(data, type=Config, dec_hook=lambda _, value: Duration(value))


class Link(asyncio.Protocol):
    """One end: whole messages in, whole messages out. Everything happens in the loop's thread."""

    def __init__(self, expected: Any, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        """`expected`: the union of the messages that may come."""
        self._decode = msgspec.msgpack.Decoder(expected).decode
        self._on_message = on_message
        self._on_end = on_end
        self._pending = bytearray()
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()

    def send(self, message: ToWorker | ToSupervisor) -> None:
        """Never waits; nothing happens when the other side is gone."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            body = _encode(message)
            transport.write(len(body).to_bytes(_LENGTH, "big") + body)

    @property
    def busy(self) -> bool:
        """Whether the other side does not read."""
        return self._transport is None or self._transport.get_write_buffer_size() > _MOST_UNREAD

    def close(self) -> None:
        """Send what is written, then close."""
        if self._transport is not None:
            self._transport.close()

    async def drained(self, within_s: float = 1.0) -> None:
        """Close, and wait until the last message is with the kernel."""
        self.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._closed.wait()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other side is there."""
        # uvloop's transports have the methods and not the base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes: hand out the messages that are whole."""
        pending = self._pending
        pending += data
        at = 0
        while len(pending) - at >= _LENGTH:
            end = at + _LENGTH + int.from_bytes(pending[at : at + _LENGTH], "big")
            if len(pending) < end:
                break
            body = bytes(pending[at + _LENGTH : end])
            at = end
            self._on_message(self._decode(body))
        del pending[:at]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The other side is gone."""
        self._transport = None
        self._closed.set()
        self._on_end()
