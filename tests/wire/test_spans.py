"""Spans posted to the admin port, by real exporters and by those who mean no good; and by gRPC."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from tailrace.gateway.otlp import http
from tailrace.gateway.otlp.span_desk import AT_ONCE, TURN, SpanDesk
from tailrace.measure.otlp_value import OtlpError
from tailrace.model.span import Span
from tests.wire.stand import Stand, run, stand
from tests.wire.test_admin import Admin, admin_of

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
PATH = "/v1/traces"


class Taker:
    """Understands whatever is called `llm_request`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def take(self, spans: Sequence[Span], received_unix_ns: int) -> int:
        assert abs(received_unix_ns - time.time_ns()) < 60e9
        self.spans += spans
        return sum(span.name == "llm_request" for span in spans)


@asynccontextmanager
async def receiver(**config: Any) -> AsyncIterator[tuple[Stand, Admin, SpanDesk, Taker]]:
    taker = Taker()
    desk = SpanDesk(taker)
    async with stand(**config) as s, admin_of(s.gateway, spans=desk) as admin:
        yield s, admin, desk, taker


async def post(admin: Admin, body: bytes, headers: dict[str, str], path: str = PATH) -> tuple[int, bytes, Any]:
    async with admin.session.post(admin.url + path, data=body, headers=headers) as answer:
        return answer.status, await answer.read(), answer.headers


def export(*names: str, size: int = 0) -> ExportTraceServiceRequest:
    now = time.time_ns()
    spans = [
        {
            "trace_id": b"t" * 16,
            "span_id": (number + 1).to_bytes(8, "big"),
            "name": name,
            "start_time_unix_nano": now - 1000,
            "end_time_unix_nano": now,
            "attributes": [{"key": "filling", "value": {"string_value": "x" * size}}] if size else [],
        }
        for number, name in enumerate(names)
    ]
    return ExportTraceServiceRequest(resource_spans=[{"scope_spans": [{"spans": spans}]}])


def as_json(*names: str) -> bytes:
    spans = [
        {"traceId": "ab" * 16, "spanId": f"{at + 1:016x}", "name": name, "endTimeUnixNano": str(time.time_ns())}
        for at, name in enumerate(names)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def test_both_encodings_plain_and_compressed() -> None:
    async def test() -> None:
        async with receiver() as (_, admin, desk, taker):
            proto, text = export("llm_request", "other").SerializeToString(), as_json("llm_request", "other")
            for body, kind in ((proto, PROTOBUF), (text, JSON)):
                for encoding, packed in (("", body), ("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
                    headers = {**kind, "Content-Encoding": encoding} if encoding else kind
                    status, answer, got = await post(admin, packed, headers)
                    assert status == 200
                    assert got["Content-Type"].startswith(kind["Content-Type"])
                    assert answer == (b"" if kind is PROTOBUF else b"{}")
            assert [span.name for span in taker.spans] == ["llm_request", "other"] * 6
            view = desk.view()
            assert (view["received"], view["understood"], view["not_understood"], view["late"]) == (12, 6, 6, 0)
            _, health = await admin.get("/healthz")
            assert health["spans"]["received"] == 12

    run(test())


def test_the_standard_exporter_posts_a_trace_that_hangs_below_our_span() -> None:
    """OpenTelemetry's own SDK and exporter, as vLLM uses them: protobuf, gzip, a parent from a `traceparent`."""

    async def test() -> None:
        async with receiver() as (_, admin, _desk, taker):

            def send() -> SpanExportResult:
                exporter = OTLPSpanExporter(endpoint=admin.url + PATH, compression=Compression.Gzip)
                provider = TracerProvider(resource=Resource.create({"service.name": "engine"}))
                provider.add_span_processor(SimpleSpanProcessor(exporter))
                tracer = provider.get_tracer("vllm.tracing.otel")
                above = SpanContext(0xAB << 64, 0xCD, is_remote=True, trace_flags=TraceFlags(1))
                span = tracer.start_span(
                    "llm_request",
                    context=set_span_in_context(NonRecordingSpan(above)),
                    kind=SpanKind.SERVER,
                    attributes={"gen_ai.latency.time_in_queue": 0.25, "gen_ai.request.n": 1},
                )
                span.add_event("seen", {"at": [1, 2]})
                span.end()
                return exporter.export([span])

            assert await asyncio.to_thread(send) is SpanExportResult.SUCCESS
            span = taker.spans[0]
            assert (span.trace_id, span.parent_span_id) == (f"{0xAB << 64:032x}", f"{0xCD:016x}")
            assert span.attributes == {"gen_ai.latency.time_in_queue": 0.25, "gen_ai.request.n": 1}
            assert span.events[0].attributes == {"at": [1, 2]}
            assert (span.scope, span.kind, span.resource["service.name"]) == ("vllm.tracing.otel", 2, "engine")

    run(test())


def test_only_what_a_browser_cannot_send_across_origins_is_taken() -> None:
    async def test() -> None:
        async with receiver() as (_, admin, desk, taker):
            body = export("llm_request").SerializeToString()
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
                status, _, _ = await post(admin, body, {"Content-Type": kind} if kind else {"Content-Type": "x/y"})
                assert status == 415
            # Protobuf is for this path alone.
            status, _, _ = await post(admin, b"{}", PROTOBUF, path="/lanes")
            assert status == 415
            # A preflight, without which no browser sends the other kind, is not granted.
            async with admin.session.options(
                admin.url + PATH,
                headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
            ) as answer:
                assert answer.status == 405
                assert not [name for name in answer.headers if name.lower().startswith("access-control")]
            # A rebound name.
            status, _, _ = await post(admin, body, {**PROTOBUF, "Host": "evil.example"})
            assert status == 403
            assert taker.spans == []
            assert desk.counters.posts == 0

    run(test())


def test_a_token_is_needed_where_there_is_one() -> None:
    async def test() -> None:
        async with receiver(admin_token="secret") as (_, admin, _desk, taker):
            body = export("llm_request").SerializeToString()
            for header in ({}, {"Authorization": "Bearer wrong"}):
                status, _, _ = await post(admin, body, {**PROTOBUF, **header})
                assert status == 401
            status, _, _ = await post(admin, body, {**PROTOBUF, "Authorization": "Bearer secret"})
            assert status == 200
            assert len(taker.spans) == 1

    run(test())


def test_what_is_no_otlp_is_refused_for_good() -> None:
    async def test() -> None:
        async with receiver() as (_, admin, desk, _taker):
            for body, headers in (
                (b"\x0a\xff\xff\xff", PROTOBUF),
                (b"{", JSON),
                (b"[1]", JSON),
                (b"\x1f\x8b broken", {**PROTOBUF, "Content-Encoding": "gzip"}),
                (gzip.compress(as_json("a"))[:-12], {**JSON, "Content-Encoding": "gzip"}),
                (gzip.compress(as_json("a")) + b"more", {**JSON, "Content-Encoding": "gzip"}),
            ):
                status, answer, got = await post(admin, body, headers)
                assert status == 400, (body, answer)
                assert "Retry-After" not in got
            status, _, _ = await post(admin, as_json("a"), {**JSON, "Content-Encoding": "br"})
            assert status == 415
            assert desk.counters.refused_posts == 7
            status, _, _ = await post(admin, gzip.compress(b"{}"), {**JSON, "Content-Encoding": "gzip"}, path="/config")
            assert status == 415
            assert (await admin.get("/healthz"))[0] == 200

    run(test())


def test_unsound_spans_are_told_and_the_others_taken() -> None:
    async def test() -> None:
        async with receiver() as (_, admin, desk, taker):
            bad = export("a", "b", "llm_request")
            bad.resource_spans[0].scope_spans[0].spans[1].trace_id = b""
            status, answer, _ = await post(admin, bad.SerializeToString(), PROTOBUF)
            assert status == 200
            said = ExportTraceServiceResponse.FromString(answer).partial_success
            assert said.rejected_spans == 1
            assert "trace id" in said.error_message
            assert [span.name for span in taker.spans] == ["a", "llm_request"]
            text = json.loads(as_json("a", "b"))
            text["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"] = "zz"
            _, answer, _ = await post(admin, json.dumps(text).encode(), JSON)
            assert json.loads(answer)["partialSuccess"]["rejectedSpans"] == "1"
            assert desk.view()["malformed"] == 2

    run(test())


def test_too_large_is_refused_before_it_is_held() -> None:
    async def test() -> None:
        async with receiver(traces={"share": 0.0, "body_bytes": 10_000}) as (_, admin, desk, taker):
            large = export("llm_request", size=20_000).SerializeToString()
            status, answer, _ = await post(admin, large, PROTOBUF)
            assert status == 413
            assert b"traces.body_bytes" in answer
            # A bomb: 50 MB of zeros in 50 kB, refused when it has unpacked to the bound.
            packed = gzip.compress(bytes(50_000_000))
            assert len(packed) < 60_000
            bomb = gzip.compress(large)
            assert len(bomb) < 10_000
            for body in (bomb, packed):
                status, _, _ = await post(admin, body, {**PROTOBUF, "Content-Encoding": "gzip"})
                assert status == 413
            assert taker.spans == []
            assert desk.counters.refused_posts == 3
            status, _, _ = await post(admin, export("llm_request").SerializeToString(), PROTOBUF)
            assert status == 200

    run(test())


def test_posts_are_worked_on_in_turns_and_too_many_come_again_later() -> None:
    async def test() -> None:
        turns = 0

        def spans() -> Iterator[Span]:
            for number in range(10 * TURN):
                yield Span(trace_id="a" * 32, span_id=f"{number:016x}", name="n", start_unix_ns=0, end_unix_ns=0)

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async with receiver() as (_, admin, desk, taker):
            counting = asyncio.ensure_future(count())
            await desk.work(spans())
            counting.cancel()
            assert turns >= 9
            assert len(taker.spans) == 10 * TURN
            assert desk.counters.late == 10 * TURN
            body = export("llm_request").SerializeToString()
            with ExitStack() as places:
                for _ in range(AT_ONCE):
                    places.enter_context(desk.place())
                status, _, got = await post(admin, body, PROTOBUF)
                assert (status, got["Retry-After"]) == (503, "1")
                assert desk.counters.refused_posts == 1
            assert (await post(admin, body, PROTOBUF))[0] == 200

    run(test())


def test_whoever_else_is_in_the_loop_gets_a_turn_between_a_few_spans() -> None:
    """Counted, not timed: while two thousand spans are worked on, the loop comes round some eighty times."""

    async def test() -> None:
        async with receiver() as (_, admin, desk, _taker):
            body = export(*["llm_request"] * 2000, size=100).SerializeToString()
            met: set[int] = set()

            async def beside() -> None:
                while True:
                    await asyncio.sleep(0)
                    met.add(desk.counters.received)

            watching = asyncio.ensure_future(beside())
            status, _, _ = await post(admin, body, PROTOBUF)
            watching.cancel()
            assert status == 200
            assert desk.counters.received == 2000
            assert len(met) >= 2000 // TURN

    run(test())


def test_a_malformed_end_is_an_error_though_spans_before_it_were_taken() -> None:
    async def test() -> None:
        def spans() -> Iterator[Span | OtlpError]:
            yield Span(trace_id="a" * 32, span_id="b" * 16, name="n", start_unix_ns=0, end_unix_ns=0)
            yield OtlpError("one is wrong")
            raise OtlpError("the message ends inside a field")

        desk = SpanDesk(Taker())
        with pytest.raises(OtlpError):
            await desk.work(spans())
        assert desk.counters.refused_posts == 1

    run(test())


def test_a_body_that_does_not_come_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_S", 0.2)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)
        yield b"}"

    async def test() -> None:
        async with receiver() as (_, admin, _desk, _taker):
            posts = [admin.session.post(admin.url + PATH, data=slow(), headers=JSON) for _ in range(AT_ONCE)]
            for answer in await asyncio.gather(*posts):
                assert answer.status == 408
                answer.close()
            assert (await post(admin, as_json("llm_request"), JSON))[0] == 200

    run(test())


@pytest.mark.needs("grpc")
def test_by_grpc_with_and_without_its_token() -> None:
    import grpc
    from grpc import aio

    from tailrace.gateway.otlp.grpc_port import METHOD, GrpcSpans
    from tailrace.model.errors import InputError

    async def test() -> None:
        taker = Taker()
        desk = SpanDesk(taker)
        port = GrpcSpans(desk, body_bytes=10_000, token="secret")
        await port.start(("127.0.0.1", 0))
        host, _, number = port.address.rpartition(":")
        again = GrpcSpans(desk, body_bytes=10_000, token=None)
        with pytest.raises(InputError) as refused:
            await again.start((host, int(number)))
        assert "traces.grpc_listen" in str(refused.value)
        token = (("authorization", "Bearer secret"),)
        async with aio.insecure_channel(port.address) as channel:
            call = channel.unary_unary(METHOD)
            body = export("llm_request", "other").SerializeToString()
            assert await call(body, metadata=token, compression=grpc.Compression.Gzip) == b""
            assert [span.name for span in taker.spans] == ["llm_request", "other"]
            bad = export("a")
            bad.resource_spans[0].scope_spans[0].spans[0].span_id = b"1"
            answer = ExportTraceServiceResponse.FromString(await call(bad.SerializeToString(), metadata=token))
            assert answer.partial_success.rejected_spans == 1
            for data, metadata, code in (
                (body, (), grpc.StatusCode.UNAUTHENTICATED),
                (body, (("authorization", "Bearer x"),), grpc.StatusCode.UNAUTHENTICATED),
                (b"\x0a\xff", token, grpc.StatusCode.INVALID_ARGUMENT),
                (export("a", size=20_000).SerializeToString(), token, grpc.StatusCode.RESOURCE_EXHAUSTED),
            ):
                with pytest.raises(aio.AioRpcError) as failed:
                    await call(data, metadata=metadata)
                assert failed.value.code() is code
            with pytest.raises(aio.AioRpcError) as failed:
                await channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")(body)
            assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await port.close()

    run(test())


def test_takers_that_share_a_span_understand_it_once() -> None:
    async def test() -> None:
        desk = SpanDesk(Taker(), Taker())
        now = time.time_ns()
        one = Span(trace_id="a" * 32, span_id="b" * 16, name="llm_request", start_unix_ns=now, end_unix_ns=now)
        await desk.work(iter([one]))
        assert (desk.view()["understood"], desk.view()["late"]) == (1, 0)

    run(test())
