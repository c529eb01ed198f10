"""A server that says exactly what a test wants, byte by byte, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str = " word", **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"id": "c-1", "choices": [choice], **more}).encode() + b"\n\n"


def last(tokens: int, prompt: int = 10) -> bytes:
    finish = {"id": "c-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    lines = [finish, {"id": "c-1", "choices": [], "usage": usage}]
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in lines) + b"data: [DONE]\n\n"


def whole(status: int, body: bytes | dict, kind: str = "application/json", more: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {len(content)}\r\n\r\n".encode()
        + content
    )


def error(status: int, message: str, **more: Any) -> bytes:
    return whole(status, {"error": {"message": message, "code": status, **more}})


@dataclass
class Call:
    """One request as the server read it, and the socket to answer on."""

    writer: asyncio.StreamWriter
    connection: int
    """Number of its connection, from 0."""
    number: int
    """Number among the calls of its kind, from 0."""
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)
    """Of a JSON request."""
    content: bytes = b""

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
        await self.writer.drain()

    async def answer(self, tokens: int | None = None, gap_s: float = 0.0, first_s: float = 0.0) -> None:
        """A sound stream."""
        count = tokens or self.body.get("max_tokens", 3)
        await self.send(HEAD)
        await asyncio.sleep(first_s)
        for i in range(count):
            if i and gap_s:
                await asyncio.sleep(gap_s)
            await self.send(chunk(token()))
        await self.send(chunk(last(count)), END)

    def close(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Call], Awaitable[None]]


class RawServer:
    """Runs `script` for each measured request; the look before the run gets a sound answer unless `look` is given."""

    def __init__(
        self,
        script: Script,
        *,
        look: Script | None = None,
        models: tuple[str, ...] = ("m",),
        on_get: Script | None = None,
    ) -> None:
        self.script = script
        self.look = look
        self.models = models
        self.on_get = on_get
        self.calls: list[Call] = []
        self.looks: list[Call] = []
        self.gets: list[str] = []
        self.connections = 0
        self.url = ""
        self.stop_listening: Callable[[], None] = lambda: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self.connections = self.connections, self.connections + 1
        try:
            await self.converse(reader, writer, connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            content = await reader.readexactly(int(headers.get("content-length", 0)))
            body = json.loads(content) if content[:1] == b"{" else {}
            call = Call(writer, connection, 0, method, path, headers, body, content)
            if method == "GET":
                self.gets.append(path)
                if self.on_get is not None:
                    await self.on_get(call)
                elif self.look is not None and path.endswith("/models"):
                    await self.look(call)
                elif path.endswith("/models"):
                    await call.send(whole(200, {"data": [{"id": one} for one in self.models]}))
                else:
                    await call.send(whole(404, {"error": "not found"}))
            elif headers.get("x-request-id", "").startswith("tailrace-look"):
                call.number = len(self.looks)
                self.looks.append(call)
                await (self.look or Call.answer)(call)
            else:
                call.number = len(self.calls)
                self.calls.append(call)
                await self.script(call)


@contextlib.contextmanager
def serving(server: RawServer, tls: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    """The server on a free port of the loopback, in a thread, until the block ends."""
    ready, loops = threading.Event(), []

    def thread() -> None:
        async def main() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            tasks: set[asyncio.Task[None]] = set()

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                assert task is not None
                tasks.add(task)
                try:
                    await server.serve(reader, writer)
                finally:
                    tasks.discard(task)

            listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, limit=1 << 22, backlog=4096)
            port = listener.sockets[0].getsockname()[1]
            server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
            server.stop_listening = lambda: loop.call_soon_threadsafe(listener.close)
            loops.append((loop, stop))
            ready.set()
            await stop.wait()
            listener.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.01)  # aborted transports close in the loop's next turns

        asyncio.run(main())

    runner = threading.Thread(target=thread)
    runner.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        runner.join(10)
        assert not runner.is_alive()
