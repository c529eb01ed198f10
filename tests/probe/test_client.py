"""The connection and the pacer by themselves: any split of the bytes is the same reply; no wait ends early."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from time import monotonic_ns

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.thresholds import MS
from tailrace.probe.connection import Connection, Inbox
from tailrace.probe.pacing import Pacer
from tests.probe.raw_server import END, HEAD, chunk, last, token


class Home:
    def __init__(self) -> None:
        self.log: list[str] = []

    def give_back(self, connection: Connection) -> None:
        self.log.append("kept")

    def forget(self, connection: Connection) -> None:
        self.log.append("dropped")


class Log:
    known = None

    def __init__(self) -> None:
        self.events: list[tuple] = []
        self.body = b""
        self.stamps: list[int] = []

    def on_first_byte(self, stamp: int) -> None:
        self.events.append(("first",))

    def on_head(self, status: int, headers: dict[str, str], stamp: int) -> None:
        self.events.append(("head", status, tuple(sorted(headers.items()))))

    def on_body(self, data: bytes, stamp: int) -> None:
        self.body += data
        self.stamps.append(stamp)

    def on_end(self, stamp: int) -> None:
        self.events.append(("end", len(self.body)))

    def on_lost(self, stamp: int, why: str, *, garbled: bool = False) -> None:
        self.events.append(("lost", garbled))


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.sent += b"<abort>"


def replay(stream: bytes, cuts: list[int], *, eof: bool) -> tuple[list[tuple], bytes, list[str]]:
    """What a receiver sees of `stream` when it arrives cut at `cuts`."""
    home, log = Home(), Log()
    loop = asyncio.new_event_loop()
    try:
        connection = Connection(Inbox(loop), home)
        connection.connection_made(Wire())
        connection.send(b"GET / HTTP/1.1\r\n\r\n", log)
        edges = [0, *sorted(cuts), len(stream)]
        for i, (a, b) in enumerate(pairwise(edges)):
            if a < b:
                connection.parse(i + 1, stream[a:b])
        if eof and not connection.lost:
            connection.lost = True
            connection.ended(99)
    finally:
        loop.close()
    assert log.stamps == sorted(log.stamps)
    return log.events, log.body, home.log


REPLIES = [
    HEAD + chunk(token()) + chunk(token("ü")) + chunk(last(2)) + END,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello",
    b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n" + token() + last(1),
    b"HTTP/1.0 200 OK\r\n\r\nbody to the end",
    HEAD + chunk(token()),
    HEAD + chunk(token()) + b"zz\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"no http at all\r\n\r\n",
]


@given(stream=st.sampled_from(REPLIES), data=st.data())
@settings(max_examples=200)
def test_any_split_of_the_bytes_is_the_same_reply(stream: bytes, data):
    cuts = data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=12, unique=True))
    assert replay(stream, cuts, eof=True) == replay(stream, [], eof=True)


@given(st.binary(max_size=300))
def test_any_bytes_end_in_one_end_or_one_loss(stream: bytes):
    events, _, _ = replay(b"HTTP/1.1 200 OK\r\n" + stream, [], eof=True)
    assert sum(event[0] in ("end", "lost") for event in events) == 1


def test_repeated_headers_are_joined():
    events, body, home = replay(REPLIES[1], [], eof=False)
    assert events == [("first",), ("head", 200, (("content-length", "5"), ("x-a", "1, 2"))), ("end", 5)]
    assert (body, home) == (b"hello", ["kept"])


@given(st.lists(st.integers(0, 6_000_000), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_a_wait_never_ends_early(waits: list[int]):
    async def main() -> None:
        pacer = Pacer()
        for wait in waits:
            due = monotonic_ns() + wait
            assert await pacer.until(due)
            assert monotonic_ns() >= due

    uvloop.run(main())


def test_a_stop_ends_every_wait():
    async def main() -> None:
        pacer = Pacer()
        asyncio.get_running_loop().call_later(0.02, pacer.stop)
        began = monotonic_ns()
        assert not await pacer.until(None)
        assert not await pacer.until(monotonic_ns() + 10**12)
        assert monotonic_ns() - began < 500 * MS

    uvloop.run(main())


def test_reads_are_stamped_before_any_is_parsed():
    async def main() -> None:
        order: list[str] = []
        inbox = Inbox(asyncio.get_running_loop())

        class Slow(Log):
            def on_body(self, data: bytes, stamp: int) -> None:
                order.append("parsed")
                super().on_body(data, stamp)

        logs, connections = [Slow(), Slow()], []
        for log in logs:
            connection = Connection(inbox, Home())
            connection.connection_made(Wire())
            connection.send(b"x", log)
            connections.append(connection)
        for connection in connections:
            connection.data_received(HEAD + chunk(token()))
            order.append("read")
        after = monotonic_ns()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["read", "read", "parsed", "parsed"]
        assert all(log.stamps[0] <= after for log in logs)

    uvloop.run(main())
