"""A simulated upstream of known truth: a real HTTP server that plays a plan and stamps what it really sent.

It speaks enough HTTP/1.1 for any client (keep-alive, chunked answers, `Expect`), on a raw asyncio protocol, so that a
stamp stands right before its `write`. `GET /truth` (`?model=NAME`) answers what was sent, one JSON line a request
that has ended.

Run alone, `python -m tailrace.simserve.scripted`, it prints a ready line and serves the scenarios until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, Self, cast
from urllib.parse import parse_qsl

import httptools
import msgspec

from tailrace import __version__
from tailrace.model.thresholds import S
from tailrace.simserve import scenarios
from tailrace.simserve.scenarios import Ask, Plan, PlanFor, Step, StepKind
from tailrace.simserve.truth import CLIENT_GONE, COMPLETE, CUT, ERROR, REJECTED, SentEvent, Truth

_SERVER: Final = f"tailrace-simulated-truth/{__version__}"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    429: "Too Many Requests",
    503: "Service Unavailable",
}
_MAX_BODY: Final = 64 * 1024 * 1024


class ScriptedUpstream:
    """Serve plans on a loopback port; `truths` holds one `Truth` a request in the order of arrival.

    `plan_for` maps a request to what is played; by default the scenario that its model names. The server owns its
    connections and their tasks: `close` ends them all.
    """

    def __init__(self, plan_for: PlanFor | None = None, *, seed: int = 0) -> None:
        self._plan_for: PlanFor = plan_for or (lambda ask: scenarios.plan(ask, seed=seed))
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self.truths: list[Truth] = []
        self.open: set[int] = set()
        """Indices of the requests that are being served: their truth is not final."""
        self.port = 0

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> ScriptedUpstream:
        """Listen on the loopback address; port 0 picks a free one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def close(self) -> None:
        """Stop listening, end every connection, wait for their tasks."""
        if self._server is not None:
            self._server.close()
        tasks = [task for connection in list(self._connections) if (task := connection.end()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.clear()

    async def settled(self, count: int, timeout_s: float = 5.0) -> None:
        """Wait until `count` requests have been served to their end (s)."""
        async with asyncio.timeout(timeout_s):
            while len(self.truths) < count or self.open:  # noqa: ASYNC110  (a few times, by tests)
                await asyncio.sleep(0.005)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Connection(asyncio.Protocol):
    """One client connection; requests are served one after the other."""

    def __init__(self, owner: ScriptedUpstream) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[str, str, dict[str, str], bytes, int]] = []
        self._gone = False
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._owner._connections.add(self)  # noqa: SLF001  (the server and its connections are one unit)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._gone = True
        self._owner._connections.discard(self)  # noqa: SLF001
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._answer(400, b"the request could not be parsed", "text/plain")
            if self._transport is not None:
                self._transport.close()

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self._reset()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if len(self._body) + len(body) > _MAX_BODY:
            raise httptools.HttpParserError("body too large")
        self._body += body

    def on_message_complete(self) -> None:
        # The origin of the truth: the last body byte of this request has arrived.
        origin = time.monotonic_ns()
        method = self._parser.get_method().decode("latin-1")
        self._waiting.append((method, self._target.decode("latin-1"), self._headers, bytes(self._body), origin))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())  # owned: `end` cancels and awaits it

    # -- serving

    def end(self) -> asyncio.Task[None] | None:
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _serve(self) -> None:
        while self._waiting and not self._gone:
            method, target, headers, body, origin = self._waiting.pop(0)
            path, _, query = target.partition("?")
            if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
                await self._complete(path, headers, body, origin)
            else:
                self._other(method, path, query)

    def _other(self, method: str, path: str, query: str) -> None:
        if method == "GET" and path == "/v1/models":
            names = [scenarios.MODEL_PREFIX + name for name in scenarios.SCENARIOS]
            data = [{"id": name, "object": "model", "owned_by": "tailrace-simulated"} for name in names]
            self._answer(200, msgspec.json.encode({"object": "list", "data": data}))
        elif method == "GET" and path == "/health":
            self._answer(200, b"{}")
        elif method == "GET" and path == "/truth":
            model = dict(parse_qsl(query)).get("model", "")
            truths = [truth for truth in self._owner.truths if truth.index not in self._owner.open]
            wanted = [truth for truth in truths if model in ("", truth.model)]
            lines = b"".join(msgspec.json.encode(truth) + b"\n" for truth in wanted)
            self._answer(200, lines, "application/x-ndjson")
        else:
            message = f"no {method} {path} here; this is a simulated upstream"
            self._answer(404, msgspec.json.encode({"error": {"message": message, "type": "not_found", "code": 404}}))

    async def _complete(self, path: str, headers: dict[str, str], body: bytes, origin: int) -> None:
        owner = self._owner
        truth = Truth(index=len(owner.truths), request_id=headers.get("x-request-id", ""), origin_ns=origin)
        try:
            asked = msgspec.json.decode(body)
            ask = _read_ask(asked, truth.index, chat=path.endswith("/chat/completions"))
        except (msgspec.DecodeError, RecursionError, TypeError, ValueError, AttributeError) as error:
            message = {"message": f"the body is no completion request: {error}", "type": "invalid_request_error"}
            self._answer(400, msgspec.json.encode({"error": message}))
            return
        plan = owner._plan_for(ask)  # noqa: SLF001
        truth.model, truth.stream, truth.status = ask.model, ask.stream, plan.status
        truth.scenario, truth.said_tokens = plan.scenario, plan.said_tokens
        owner.truths.append(truth)
        owner.open.add(truth.index)
        try:
            await self._play(plan, truth)
        except asyncio.CancelledError:
            if self._gone and truth.ending == COMPLETE:
                truth.ending = CLIENT_GONE
            raise
        finally:
            owner.open.discard(truth.index)

    async def _play(self, plan: Plan, truth: Truth) -> None:
        if plan.status != 200:
            truth.ending = REJECTED
        if plan.body or plan.status != 200:
            await _until(truth.origin_ns + plan.body_at_ns)
            truth.events = [SentEvent(StepKind.CONTENT, truth.said_tokens or 0, plan.body_at_ns, _since(truth))]
            self._answer(plan.status, plan.body)
            return
        transport = self._transport
        assert transport is not None
        transport.write(
            f"HTTP/1.1 200 OK\r\nServer: {_SERVER}\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            f"x-truth-index: {truth.index}\r\nCache-Control: no-cache\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        truth.events = []
        for group in _writes(plan.steps):
            await _until(truth.origin_ns + group[0].at_ns)
            if group[0].kind is StepKind.CUT:
                truth.ending = CUT
                transport.close()  # what is buffered still leaves; the final chunk never comes
                return
            await self._send(group, truth)
        transport.write(b"0\r\n\r\n")

    async def _send(self, group: Sequence[Step], truth: Truth) -> None:
        transport = self._transport
        assert transport is not None
        data = b"".join(step.data for step in group)
        pause_ns = max(step.pause_ns for step in group)
        if pause_ns and len(data) > 1:
            half = len(data) // 2
            transport.write(_chunk(data[:half]))
            await _until(time.monotonic_ns() + pause_ns)
            data = data[half:]
        sent_ns = _since(truth)
        transport.write(_chunk(data))
        for step in group:
            truth.events.append(SentEvent(step.kind, step.tokens, step.at_ns, sent_ns))
            if step.kind is StepKind.ERROR:
                truth.ending = ERROR

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        if self._transport is None or self._transport.is_closing():
            return
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: {_SERVER}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)


def _read_ask(asked: dict[str, Any], index: int, *, chat: bool) -> Ask:
    texts = [message.get("content", "") for message in asked["messages"]] if chat else [asked["prompt"]]
    return Ask(
        index=index,
        model=str(asked.get("model", "plain")),
        max_tokens=int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16),
        stream=bool(asked.get("stream", False)),
        chat=chat,
        include_usage=bool((asked.get("stream_options") or {}).get("include_usage", False)),
        prompt_tokens=max(1, sum(len(str(text)) for text in texts) // 4),
    )


def _writes(steps: Sequence[Step]) -> list[list[Step]]:
    groups: list[list[Step]] = []
    for step in steps:
        if step.joined and groups:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _since(truth: Truth) -> int:
    return time.monotonic_ns() - truth.origin_ns


async def _until(at_ns: int) -> None:
    """Sleep until a monotonic time; returns at once when it has passed."""
    left = at_ns - time.monotonic_ns()
    if left > 0:
        await asyncio.sleep(left / S)


async def _run(port: int, seed: int) -> None:
    upstream = await ScriptedUpstream(seed=seed).start(port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    ready = {"ready": True, "url": upstream.url, "pid": os.getpid(), "server": _SERVER}
    sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
    sys.stdout.flush()
    await stop.wait()
    await upstream.close()


def main() -> None:
    """Entry point of `python -m tailrace.simserve.scripted`."""
    parser = argparse.ArgumentParser(description="A simulated upstream of known truth.")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(_run(options.port, options.seed))


if __name__ == "__main__":
    main()
