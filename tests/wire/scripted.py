"""A scripted engine on a raw socket: each request runs a coroutine that says, byte by byte, what is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def token(text: str = "hi", **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more})


def finish(reason: str = "stop") -> bytes:
    return event({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def usage(prompt: int = 7, completion: int = 2, **more: object) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"id": "chatcmpl-1", "choices": [], "usage": counts, **more})


@dataclass
class Incoming:
    """One request as the engine got it, and its way to answer."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    at: float = field(default_factory=time.monotonic)
    gone_at: float | None = None
    connection: int = 0

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():
            raise ConnectionResetError  # uvloop says RuntimeError
        self.writer.write(data)
        await self.writer.drain()

    async def sse(self, *events: bytes) -> None:
        """Head and events, one chunk each."""
        await self.send(SSE_HEAD + b"".join(map(chunk, events)))

    async def chunks(self, *events: bytes) -> None:
        for data in events:
            await self.send(chunk(data))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def stream(self, tokens: int = 2, *, gap: float = 0.0) -> None:
        """A whole sound stream."""
        await self.send(SSE_HEAD)
        for _ in range(tokens):
            await self.chunks(token())
            await asyncio.sleep(gap)
        await self.chunks(finish(), usage(7, tokens), DONE)
        await self.end()

    async def reply(self, value: object, status: int = 200, *, extra: bytes = b"") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self.send(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
            % (status, extra, len(body), body)
        )

    async def completion(self, text: str = "hello") -> None:
        """A whole sound answer in one piece."""
        await self.reply(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "model": "m",
                "created": 1,
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
            }
        )

    def abort(self) -> None:
        self.writer.transport.abort()

    async def read_body(self) -> AsyncIterator[bytes]:
        """The body as it comes, without its framing."""
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self._line(), 16):
                yield await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readline()
            return
        left = int(self.headers.get("content-length", 0))
        while left:
            data = await self.reader.read(min(left, 1 << 18))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            yield data

    async def _line(self) -> bytes:
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise asyncio.IncompleteReadError(line, None)
        return line

    async def until_gone(self, within: float = 5.0) -> float:
        """Wait until the other side has closed; seconds since the request came."""
        async with asyncio.timeout(within):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass
        self.gone_at = time.monotonic()
        return self.gone_at - self.at


Script = Callable[[Incoming], Awaitable[None]]


class ScriptedEngine:
    """Runs `script` for each request; what is no API call (`/metrics`, `/health`) gets `side`, by path, or a 404."""

    def __init__(
        self,
        script: Script,
        *,
        side: dict[str, bytes | Script] | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        socket_path: str | None = None,
        gathers: bool = True,
    ) -> None:
        """`gathers`: the body is read before the script runs; else the script reads it, as it comes."""
        self._host, self._tls, self._path = host, tls, socket_path
        self.script = script
        self.gathers = gathers
        self.limit = 1 << 24 if gathers else 1 << 18
        self.side: dict[str, bytes | Script] = {} if side is None else side
        self.requests: list[Incoming] = []
        self.connections = 0
        """All there were, those of a gateway's own questions among them."""
        self.open = 0
        self.close_after: Callable[[Incoming], bool] = lambda _: False
        self.errors: list[BaseException] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=self.limit)
            self.url = f"unix:{self._path}"
            return self
        self._server = await asyncio.start_server(self._serve, self._host, 0, limit=self.limit, ssl=self._tls)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"{'http' if self._tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        async with asyncio.timeout(5):
            while self.open:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        if self.errors:
            raise self.errors[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        self._writers.add(writer)
        sock = writer.get_extra_info("socket")
        if self._path is None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                incoming = Incoming(method, target, headers, b"", writer, reader, connection=number)
                if self.gathers:
                    incoming.body = b"".join([data async for data in incoming.read_body()])
                if target in self.side:
                    aside = self.side[target]
                    await (incoming.reply(aside) if isinstance(aside, bytes) else aside(incoming))
                    continue
                if target == "/metrics" or headers.get("user-agent", "").startswith("tailrace-"):
                    # Scraping, and what a gateway asks on its own account.
                    await incoming.reply({}, 404)
                    continue
                self.requests.append(incoming)
                await self.script(incoming)
                if self.close_after(incoming) or writer.transport.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  (handed to the test)
            self.errors.append(error)
        finally:
            self.open -= 1
            self._writers.discard(writer)
            writer.close()


@contextlib.contextmanager
def deaf_listener() -> Iterator[str]:
    """URL of a listener whose backlog is full: connecting to it hangs."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}"
