"""WebSocket ends for tests: raw ones that see every byte, and an aiohttp server in the engine's place."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.wire.client import RawClient, Reply
from tests.wire.scripted import Incoming
from tests.wire.stand import Stand

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY = base64.b64encode(b"sixteen bytes ok").decode()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bytes = b"", reserved: int = 0) -> bytes:
    """One frame, written here by the RFC and not by the code under test."""
    size = len(payload)
    head = bytes([(0x80 if fin else 0) | reserved | opcode])
    bit = 0x80 if mask else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += bytes([bit | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([bit | 127]) + size.to_bytes(8, "big")
    if mask:
        whole = mask * (size // 4 + 1)
        payload = (int.from_bytes(payload, "big") ^ int.from_bytes(whole[:size], "big")).to_bytes(size, "big")
    return head + mask + payload


def closing(code: int, reason: str = "") -> bytes:
    """The payload of a Close frame."""
    return code.to_bytes(2, "big") + reason.encode()


def offer(path: str = "/v1/realtime", **more: str) -> bytes:
    """A sound handshake. `more`: headers with `_` for `-`; an empty value leaves one out."""
    headers = {
        "Host": "gateway",
        "Connection": "keep-alive, Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode()


def switched(key: str, extra: bytes = b"") -> bytes:
    """The 101 to a key."""
    accept = base64.b64encode(hashlib.sha1(key.encode() + GUID).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: %b\r\n%b\r\n" % (accept, extra)
    )


class Socket:
    """One end of a session after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, masks: bool) -> None:
        self.reader, self.writer, self._masks = reader, writer, masks

    def frame(self, opcode: int, payload: bytes = b"", **more: Any) -> bytes:
        return frame(opcode, payload, mask=os.urandom(4) if self._masks else b"", **more)

    async def send(self, opcode: int, payload: bytes = b"", **more: Any) -> None:
        await self.raw(self.frame(opcode, payload, **more))

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def next(self, within: float = 5.0) -> tuple[int, bytes]:
        """The next frame: its first byte, its payload. IncompleteReadError or ConnectionError when there is none."""
        async with asyncio.timeout(within):
            first, second = await self.reader.readexactly(2)
            assert bool(second & 0x80) is not self._masks
            size = second & 0x7F
            if size > 125:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
            mask = await self.reader.readexactly(4) if second & 0x80 else b""
            payload = await self.reader.readexactly(size)
        if mask:
            payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        return first, payload

    async def closed(self, within: float = 5.0) -> tuple[int, str]:
        """Code and reason of the Close frame that comes next."""
        first, payload = await self.next(within)
        assert first == 0x80 | CLOSE, (first, payload)
        return (int.from_bytes(payload[:2], "big"), payload[2:].decode()) if payload else (1005, "")

    async def ended(self, within: float = 3.0) -> bool:
        """Whether the connection ends, with nothing more on it."""
        try:
            async with asyncio.timeout(within):
                return await self.reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def kill(self) -> None:
        self.writer.transport.abort()


async def dial(s: Stand, path: str = "/v1/realtime", **more: str) -> tuple[Socket, Reply, RawClient]:
    """A raw client whose handshake was taken up."""
    client = await s.client()
    await client.send(offer(path, **more))
    reply = await client.head()
    assert reply.status == 101, reply
    return Socket(client.reader, client.writer, masks=True), reply, client


async def agree(incoming: Incoming, extra: bytes = b"", behind: bytes = b"") -> Socket:
    """The scripted engine takes the offer up; `behind` goes out in the same write."""
    await incoming.send(switched(incoming.headers["sec-websocket-key"], extra) + behind)
    return Socket(incoming.reader, incoming.writer, masks=False)


class Engines:
    """Raw engine ends, in the order in which they were dialled; each lives until its test lets it go."""

    def __init__(self, extra: bytes = b"") -> None:
        self.sockets: asyncio.Queue[Socket] = asyncio.Queue()
        self._extra = extra

    async def script(self, incoming: Incoming) -> None:
        self.sockets.put_nowait(await agree(incoming, self._extra))
        while not incoming.writer.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def next(self) -> Socket:
        async with asyncio.timeout(5):
            return await self.sockets.get()


@asynccontextmanager
async def aiohttp_engine(
    handler: Callable[[web.WebSocketResponse, web.Request], Awaitable[None]], **options: Any
) -> AsyncIterator[str]:
    """URL of a real WebSocket server. `options` are those of its `WebSocketResponse`."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(**{"max_msg_size": 0, **options})
        await socket.prepare(request)
        await handler(socket, request)
        return socket

    app = web.Application()
    app.router.add_get("/v1/realtime", serve)
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def echo(socket: web.WebSocketResponse, _: web.Request) -> None:
    """Send back whatever comes, as it came."""
    async for message in socket:
        if message.type.name == "TEXT":
            await socket.send_str(message.data)
        else:
            await socket.send_bytes(message.data)
