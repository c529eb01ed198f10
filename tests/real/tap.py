"""A recording tap: a raw TCP proxy that stamps every read, to stand between the gateway and a real engine.

It shares no code with what it checks: requests are told apart by turns of direction, heads by blank lines, tokens by a
pattern over the raw bytes. It runs in a process of its own: among the threads of sixteen clients its stamps would tell
the interpreter's lock, several milliseconds late, and not the wire.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import uvloop

TOKEN = re.compile(rb'"(?:content|text)":"(?!")')
"""A delta with text. Roles come as `"content":null`, empty ones as `"content":""`."""


@dataclass
class Exchange:
    """One request and its answer, as the wire showed them; monotonic nanoseconds."""

    request: bytes = b""
    request_ns: int = 0
    """The last bytes of the request had been read."""
    answer: bytes = b""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(stamp, bytes of the answer so far) of every read."""

    @property
    def request_id(self) -> str:
        found = re.search(rb"\r\nx-request-id: *([^\r]+)\r\n", self.request, re.IGNORECASE)
        return found[1].decode() if found else ""

    def _when(self, position: int) -> int:
        return next(stamp for stamp, size in self.reads if size >= position)

    @property
    def end_ns(self) -> int:
        """The stamp of the last read."""
        return self.reads[-1][0] if self.reads else self.request_ns

    @property
    def headers_ns(self) -> int:
        """Request read -> the status line had been read."""
        return self._when(self.answer.index(b"\r\n\r\n") + 4) - self.request_ns

    @property
    def first_token_ns(self) -> int:
        """Request read -> the read that completed the first event with text."""
        found = TOKEN.search(self.answer)
        assert found, self.answer[:2000]
        return self._when(self.answer.index(b"\n\n", found.end()) + 2) - self.request_ns

    @property
    def timings(self) -> dict[str, float]:
        """llama.cpp's own timings, from the last frame that has them."""
        found = re.findall(rb'"timings":(\{[^}]*\})', self.answer)
        return dict(json.loads(found[-1])) if found else {}


class Tap:
    """The tap's process, and what it has recorded."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""

    def __enter__(self) -> Self:
        command = [sys.executable, str(Path(__file__).resolve()), self.target]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.url = json.loads(self._line())["url"]
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        self._child.communicate(timeout=10)

    def _line(self) -> bytes:
        assert self._child.stdout is not None
        return self._child.stdout.readline()

    def exchanges(self) -> list[Exchange]:
        """All requests so far, in the order in which they began."""
        assert self._child.stdin is not None
        self._child.stdin.write(b"tell\n")
        self._child.stdin.flush()
        return [
            Exchange(one["request"].encode("latin-1"), one["request_ns"], one["answer"].encode("latin-1"), one["reads"])
            for one in json.loads(self._line())
        ]

    def by_id(self) -> dict[str, Exchange]:
        return {exchange.request_id: exchange for exchange in self.exchanges() if exchange.request_id}


class _Recorder:
    """Inside the tap's process: listens on a loopback port and forwards to one address."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.exchanges: list[Exchange] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Client(self), "127.0.0.1", 0)
        print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
        asked = asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), asked.set)
        while True:
            await asked.wait()
            asked.clear()
            if not sys.stdin.buffer.raw.read(64):
                return
            print(json.dumps([self._told(exchange) for exchange in self.exchanges]), flush=True)

    @staticmethod
    def _told(exchange: Exchange) -> dict[str, object]:
        return {
            "request": exchange.request.decode("latin-1"),
            "request_ns": exchange.request_ns,
            "answer": exchange.answer.decode("latin-1"),
            "reads": exchange.reads,
        }


class _Side(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, tap: _Recorder) -> None:
        self.tap = tap
        self.peer: _Side | None = None

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.close()

    def pause_writing(self):
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self):
        if self.peer is not None:
            self.peer.transport.resume_reading()


class _Client(_Side):
    """The gateway's side. A request after an answer begins a new exchange: the gateway does not pipeline."""

    def __init__(self, tap: _Recorder) -> None:
        super().__init__(tap)
        self.waiting: list[bytes] = []
        self.exchange: Exchange | None = None

    def connection_made(self, transport):
        super().connection_made(transport)
        self.connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self):
        loop = asyncio.get_running_loop()
        try:
            _, peer = await loop.create_connection(lambda: _Engine(self), self.tap.host, self.tap.port)
        except OSError:
            self.transport.abort()
            return
        self.peer = peer
        if self.transport.is_closing():
            peer.transport.close()
        for data in self.waiting:
            peer.transport.write(data)
        self.waiting.clear()

    def data_received(self, data):
        stamp = time.monotonic_ns()
        if self.exchange is None or self.exchange.answer:
            self.exchange = Exchange()
            self.tap.exchanges.append(self.exchange)
        self.exchange.request += data
        self.exchange.request_ns = stamp
        if self.peer is None:
            self.waiting.append(data)
        else:
            self.peer.transport.write(data)


class _Engine(_Side):
    """The engine's side."""

    def __init__(self, client: _Client) -> None:
        super().__init__(client.tap)
        self.peer = client

    def data_received(self, data):
        stamp = time.monotonic_ns()
        self.peer.transport.write(data)
        exchange = self.peer.exchange
        if exchange is not None:
            exchange.answer += data
            exchange.reads.append((stamp, len(exchange.answer)))


if __name__ == "__main__":
    uvloop.run(_Recorder(sys.argv[1]).run())
