"""An HTTP server that keeps what is posted to it, and an ASGI server around an application under test."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn


class Receiver(http.server.ThreadingHTTPServer):
    """Answers every POST with `status`, and keeps path, headers and JSON body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.delay_s = 0.0
        self.posts: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    def spans(self) -> list[dict[str, Any]]:
        """Every span so far, its attributes as a plain dict."""
        return [
            {**span, "attributes": plain(span["attributes"])}
            for _, _, body in self.posts
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def roots(self) -> list[dict[str, Any]]:
        return [span for span in self.spans() if "tailrace.request_id" in span["attributes"]]


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        one["key"]: int(one["value"]["intValue"]) if "intValue" in one["value"] else next(iter(one["value"].values()))
        for one in attributes
    }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        time.sleep(self.server.delay_s)
        if self.server.status == 200:
            self.server.posts.append(
                (self.path, {name.lower(): value for name, value in self.headers.items()}, json.loads(body))
            )
        self.send_response(self.server.status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.asynccontextmanager
async def asgi_server(app: Any, *, lifespan: str = "off") -> AsyncIterator[str]:
    """The application behind uvicorn on a free port."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, lifespan=lifespan, log_level="critical", timeout_graceful_shutdown=1)
    )
    server.capture_signals = contextlib.nullcontext  # the test's own signals stay the test's
    serving = asyncio.ensure_future(server.serve())
    try:
        while not server.started:
            assert not serving.done(), serving
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
