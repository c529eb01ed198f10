"""`POST /v1/traces` of the admin port: OTLP over HTTP, in protobuf or JSON, compressed or not.

https://opentelemetry.io/docs/specs/otlp/#otlphttp: 200 with what was not taken (`partial_success`), 400 for what is no
OTLP and must not be sent again, 413 for what is too large, 503 with `Retry-After` for what is to be sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from tailrace.gateway.otlp.span_desk import Reception, SpanDesk
from tailrace.measure.otlp_json import spans_of_json
from tailrace.measure.otlp_value import OtlpError, status_message

PATH: Final = "/v1/traces"
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_CHUNK: Final = 64 * 1024
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 3, 8, 14
"""gRPC's codes, of which a refusal's `Status` has one."""


def add_traces(app: web.Application, desk: SpanDesk, *, body_bytes: Callable[[], int]) -> None:
    """Let `app` take spans; `body_bytes` says how large a post may be, unpacked."""
    app.router.add_post(PATH, _Traces(desk, body_bytes).post)


class _Traces:
    def __init__(self, desk: SpanDesk, body_bytes: Callable[[], int]) -> None:
        self._desk = desk
        self._body_bytes = body_bytes

    async def post(self, request: web.Request) -> web.Response:
        """Take one export."""
        kind = request.content_type
        if self._desk.busy:
            self._desk.counters.refused_posts += 1
            return _refusal(kind, 503, _UNAVAILABLE, "other posts are being worked on", retry_after_s=1)
        most = self._body_bytes()
        if (request.content_length or 0) > most:
            return self._too_large(kind, most)
        try:
            body = await self._read(request, most)
        except (aiohttp.ClientPayloadError, aiohttp.http_exceptions.HttpProcessingError, web.RequestPayloadError):
            self._desk.counters.refused_posts += 1
            return _refusal(kind, 400, _INVALID_ARGUMENT, "the body cannot be unpacked")
        if body is None:
            return self._too_large(kind, most)
        try:
            if kind == PROTOBUF:
                # Here: without a post, nothing of protobuf is loaded.
                from tailrace.measure.otlp_protobuf import reception_message, spans_of_protobuf  # noqa: PLC0415

                taken = await self._desk.work(spans_of_protobuf(body))
                return web.Response(body=reception_message(taken.rejected, taken.why), content_type=PROTOBUF)
            return _reception(await self._desk.work(spans_of_json(body)))
        except OtlpError as error:
            return _refusal(kind, 400, _INVALID_ARGUMENT, str(error))

    @staticmethod
    async def _read(request: web.Request, most: int) -> bytes | None:
        """The body, unpacked by the server as it is read; `None` as soon as it is too large."""
        parts: list[bytes] = []
        size = 0
        while part := await request.content.read(_CHUNK):
            size += len(part)
            if size > most:
                return None
            parts.append(part)
        return b"".join(parts)

    def _too_large(self, kind: str, most: int) -> web.Response:
        self._desk.counters.refused_posts += 1
        return _refusal(
            kind, 413, _RESOURCE_EXHAUSTED, f"the post is larger than {most} bytes: `traces.body_bytes`", close=True
        )


def _reception(taken: Reception) -> web.Response:
    partial = {"partialSuccess": {"rejectedSpans": str(taken.rejected), "errorMessage": taken.why}}
    return web.Response(body=msgspec.json.encode(partial if taken.rejected else {}), content_type=JSON)


def _refusal(
    kind: str, status: int, code: int, text: str, *, retry_after_s: int | None = None, close: bool = False
) -> web.Response:
    """A `google.rpc.Status` in the sender's encoding, as the protocol asks."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if kind == PROTOBUF:
        answer = web.Response(status=status, body=status_message(code, text), content_type=PROTOBUF, headers=headers)
    else:
        body = msgspec.json.encode({"code": code, "message": text})
        answer = web.Response(status=status, body=body, content_type=JSON, headers=headers)
    if close:
        answer.force_close()
    return answer
