"""`POST /v1/traces` of the admin port: OTLP over HTTP, in protobuf or JSON, compressed or not.

https://opentelemetry.io/docs/specs/otlp/#otlphttp: 200 with what was not taken (`partial_success`), 400 for what is no
OTLP and must not be sent again, 413 for what is too large, 503 with `Retry-After` for what is to be sent again.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from tailrace.gateway.otlp.span_desk import BusyError, Reception, SpanDesk
from tailrace.gateway.otlp.unpack import ENCODINGS, TooLargeError, UnpackError, unpacked
from tailrace.measure.otlp_json import spans_of_json
from tailrace.measure.otlp_value import OtlpError, status_message

PATH: Final = "/v1/traces"
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_READER: Final = "tailrace.measure.otlp_protobuf"
READ_S: Final = 10.0
"""How long a body may take: it holds one of the desk's few places. Exporters give up after ten seconds as well."""
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 3, 8, 14
"""gRPC's codes, of which a refusal's `Status` has one."""


class _RefusedError(Exception):
    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(text)
        self.status, self.code, self.text = status, code, text


class TracesHandler:
    """Takes posts for a desk; `body_bytes` says how large one may be, unpacked."""

    def __init__(self, desk: SpanDesk, body_bytes: Callable[[], int]) -> None:
        self._desk = desk
        self._body_bytes = body_bytes

    async def post(self, request: web.Request) -> web.Response:
        """Take one export."""
        kind = request.content_type
        try:
            with self._desk.place():
                return await self._take(kind, await self._read(request))
        except BusyError:
            return _refusal(kind, _RefusedError(503, _UNAVAILABLE, "other posts are being worked on"))
        except _RefusedError as refused:
            self._desk.counters.refused_posts += 1
            return _refusal(kind, refused)
        except OtlpError as error:
            return _refusal(kind, _RefusedError(400, _INVALID_ARGUMENT, str(error)))

    async def _take(self, kind: str, body: bytes) -> web.Response:
        if kind != PROTOBUF:
            return _reception(await self._desk.work(spans_of_json(body)))
        # Here: without a post, nothing of protobuf is loaded. And in a thread: in the loop that relays, loading it was
        # half a second in which no stream went on.
        if _READER not in sys.modules:
            await asyncio.to_thread(importlib.import_module, _READER)
        from tailrace.measure.otlp_protobuf import reception_message, spans_of_protobuf  # noqa: PLC0415

        taken = await self._desk.work(spans_of_protobuf(body))
        return web.Response(body=reception_message(taken.rejected, taken.why), content_type=PROTOBUF)

    async def _read(self, request: web.Request) -> bytes:
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ENCODINGS:
            raise _RefusedError(415, _INVALID_ARGUMENT, "send it with gzip, deflate or without compression")
        most = self._body_bytes()
        try:
            async with asyncio.timeout(READ_S):
                return await unpacked(request.content.iter_any(), encoding, most, request.content_length or 0)
        except TooLargeError:
            text = f"the post is larger than {most} bytes: `traces.body_bytes`"
            raise _RefusedError(413, _RESOURCE_EXHAUSTED, text) from None
        except UnpackError as error:
            raise _RefusedError(400, _INVALID_ARGUMENT, f"the body cannot be unpacked: {error}") from None
        except TimeoutError:
            raise _RefusedError(408, _UNAVAILABLE, f"the body did not come within {READ_S:g} s") from None


def _reception(taken: Reception) -> web.Response:
    partial = {"partialSuccess": {"rejectedSpans": str(taken.rejected), "errorMessage": taken.why}}
    return web.Response(body=msgspec.json.encode(partial if taken.rejected else {}), content_type=JSON)


def _refusal(kind: str, refused: _RefusedError) -> web.Response:
    """A `google.rpc.Status` in the sender's encoding, as the protocol asks."""
    headers = {"Retry-After": "1"} if refused.status == 503 else {}
    if kind == PROTOBUF:
        body = status_message(refused.code, refused.text)
    else:
        body = msgspec.json.encode({"code": refused.code, "message": refused.text})
    answer = web.Response(status=refused.status, body=body, content_type=kind, headers=headers)
    if refused.status in (408, 413):
        answer.force_close()  # the rest of the body is not read
    return answer
