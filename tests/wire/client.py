"""A raw HTTP/1.1 client that sees bytes, not abstractions."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"


def chat_body(*, stream: bool = True, **more: object) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], **more}
    if stream:
        body["stream"] = True
    return json.dumps(body).encode()


def request(
    body: bytes | None = None, *, path: str = CHAT, method: str = "POST", headers: dict[str, str] | None = None
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


@dataclass
class Reply:
    """One answer, with how its body ended."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    end: str = ""
    """`length`, `chunked` (a proper last chunk), `cut` (closed before the end), `eof`, `none`."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """Data of the SSE events."""
        blocks = self.body.decode().split("\n\n")
        return [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]

    @property
    def tokens(self) -> int:
        return sum('"content":"' in data for data in self.events)

    @property
    def error(self) -> dict | None:
        """The error event of a stream."""
        for data in self.events:
            if data.startswith("{") and "error" in json.loads(data):
                return json.loads(data)["error"]
        return None


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(
        cls, url: str, *, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None
    ) -> RawClient:
        if url.startswith("unix:"):
            return cls(*await asyncio.open_unix_connection(url.removeprefix("unix:"), limit=1 << 24))
        parts = urlsplit(url)
        assert parts.hostname is not None
        sock = socket.socket(socket.AF_INET6 if ":" in parts.hostname else socket.AF_INET)
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # With a small reader limit the stream stops reading early: the kernel's buffer is what the test controls.
        limit = 1 << 24 if receive_buffer is None else 1024
        secure = {"ssl": tls, "server_hostname": parts.hostname} if tls is not None else {}
        return cls(*await asyncio.open_connection(sock=sock, limit=limit, **secure))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Reply:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        return Reply(int(lines[0].split()[1]), headers)

    async def next_chunk(self) -> bytes | None:
        """One chunk's data; `None` for the last chunk."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data or None

    async def reply(self, *, head_only: bool = False) -> Reply:
        out = await self.head()
        if head_only or out.status in (204, 304) or out.status < 200:
            out.end = "none"
        elif "content-length" in out.headers:
            try:
                out.body = await self.reader.readexactly(int(out.headers["content-length"]))
                out.end = "length"
            except (asyncio.IncompleteReadError, ConnectionError):
                out.end = "cut"
        elif out.headers.get("transfer-encoding") == "chunked":
            try:
                while (data := await self.next_chunk()) is not None:
                    out.chunks.append((time.monotonic(), data))
                    out.body += data
                out.end = "chunked"
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                out.end = "cut"
        else:
            out.body = await self.reader.read()
            out.end = "eof"
        return out

    async def ask(self, data: bytes, **options: bool) -> Reply:
        await self.send(data)
        return await self.reply(**options)

    async def closed(self, within: float = 2.0) -> bool:
        """Whether the gateway closes the connection, and sends nothing more before."""
        try:
            async with asyncio.timeout(within):
                return await self.reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()
