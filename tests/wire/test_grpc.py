"""Triton's gRPC through the gateway: what crosses, what is measured, what is refused."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.kserve_messages import SERVICE, StreamResponse, answer, ask, end, wants_end, whole
from tests.wire.stand import run

try:
    import grpc

    from tests.wire.grpc_stand import error_of, grpc_stand, read_all, said
except ModuleNotFoundError:  # every test here says that it needs it
    grpc = None

pytestmark = pytest.mark.needs("grpc")

INFER = SERVICE + "ModelInfer"
STREAM_INFER = SERVICE + "ModelStreamInfer"


async def one_answer(call) -> None:
    message = await call.read()
    await call.send(whole("r1") if call.method == INFER else message)


async def three_tokens(call) -> None:
    """As a decoupled model: the bare end mark only for those who ask."""
    while (message := await call.read()) is not None:
        await call.send(*(answer("r1", text=f"t{n}") for n in range(3)), gap=0.02)
        if wants_end(message):
            await call.send(end("r1"))


def test_one_request_one_answer_one_record() -> None:
    async def test() -> None:
        async with grpc_stand(one_answer) as s:
            message = ask("resnet", "r1", text="sixteen letters!", max_tokens=7)
            call = s.unary()(message, metadata=(("x-api", "k"), ("authorization", "Bearer u"), ("b-bin", b"\0\xff")))
            assert await call == whole("r1")
            got = s.engine.calls[0]
            assert got.messages == [message]
            assert got.metadata["x-api"] == "k"
            assert got.metadata["authorization"] == "Bearer u"
            assert got.metadata["b-bin"] == b"\0\xff"
            record = await s.record()
            assert got.metadata["x-request-id"] == record.request_id
            trailing = dict(await call.trailing_metadata())
            assert trailing["x-request-id"] == record.request_id
            assert trailing["x-tailrace-lane"] == "default"
            assert trailing["x-client-request-id"] == "r1"
            assert trailing["server-timing"].startswith("ingress;dur=")
            assert (record.outcome, record.model, record.endpoint) == (OutcomeKind.COMPLETED, "resnet", INFER)
            assert (record.client_request_id, record.lane, record.stream) == ("r1", "default", False)
            assert (record.prompt_tokens, record.max_tokens) == (4, 7)
            assert record.prompt_bytes == len(message)
            assert record.ttft_ns is None
            assert record.gateway_overhead_ns > 0
            assert {"ingress", "queue", "response"} <= set(record.stages())

    run(test())


def test_a_trace_is_continued_and_a_key_of_the_configuration_wins() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"

    async def test() -> None:
        async with grpc_stand(one_answer, backend={"api_key": "secret"}) as s:
            parent = f"00-{trace}-b7ad6b7169203331-01"
            metadata = (("traceparent", parent), ("x-request-id", "mine"), ("authorization", "Bearer theirs"))
            await s.unary()(ask(), metadata=metadata)
            got = s.engine.calls[0].metadata
            version, trace_id, span, flags = got["traceparent"].split("-")
            assert (version, trace_id, flags) == ("00", trace, "01")
            assert span != "b7ad6b7169203331"
            assert got["authorization"] == "Bearer secret"
            record = await s.record()
            assert (record.trace_id, record.parent_id) == (trace, "b7ad6b7169203331")
            assert record.client_request_id == "mine"
            assert got["x-request-id"] == record.request_id != "mine"

    run(test())


def test_an_id_that_is_trusted_is_kept() -> None:
    async def test() -> None:
        async with grpc_stand(one_answer, trust_request_id=True) as s:
            await s.unary()(ask(), metadata=(("x-request-id", "mine"),))
            assert (await s.record()).request_id == s.engine.calls[0].metadata["x-request-id"] == "mine"

    run(test())


@pytest.mark.parametrize("asked", [False, True])
def test_a_stream_is_measured_by_its_answers_and_ended_by_the_end_mark(asked: bool) -> None:
    flags = {"triton_enable_empty_final_response": True} if asked else {}

    async def test() -> None:
        async with grpc_stand(three_tokens) as s:
            call = s.stream()
            await call.write(ask("llm", "r1", **flags))
            got = [await call.read() for _ in range(4 if asked else 3)]
            # The record is there while the call is still open: the end mark ended the request.
            record = await s.record()
            await call.done_writing()
            got += await read_all(call)
            expected = [answer("r1", text=f"t{n}") for n in range(3)] + ([end("r1")] if asked else [])
            assert got == expected
            assert wants_end(s.engine.calls[0].messages[0])
            initial = dict(await call.initial_metadata())
            assert initial["x-request-id"] == record.request_id == s.engine.calls[0].metadata["x-request-id"]
            assert (record.outcome, record.endpoint, record.model) == (OutcomeKind.COMPLETED, STREAM_INFER, "llm")
            assert (record.output_tokens, record.output_tokens_source) == (3, "chunks")
            assert record.chunk_gap_count == 2
            assert 15e6 < record.tpot_ns < 60e6
            assert record.ttft_ns < record.e2e_ns
            assert record.died_in == ""
            assert record.stages()["decode"] > 30e6
            assert len(record.timeline.token_stamps()) == 3

    run(test())


def test_requests_of_one_stream_have_records_of_their_own() -> None:
    async def script(call) -> None:
        first, second = await call.read(), await call.read()
        assert first
        assert second
        await call.send(answer("a"), answer("b"), answer("b"), end("b"), answer("a"), answer("a"), end("a"), gap=0.01)
        await call.read()

    async def test() -> None:
        async with grpc_stand(script) as s:
            call = s.stream(metadata=(("x-session-id", "s1"),))
            await call.write(ask("m1", "a"))
            await call.write(ask("m2", "b"))
            assert len([await call.read() for _ in range(5)]) == 5
            await s.record(2)
            await call.done_writing()
            assert await read_all(call) == []
            a, b = sorted(s.records.all, key=lambda record: record.client_request_id)
            assert (a.model, a.output_tokens, b.model, b.output_tokens) == ("m1", 3, "m2", 2)
            assert b.request_id == f"{a.request_id}-2"
            assert a.trace_id == b.trace_id
            assert {a.session_id, b.session_id} == {"s1"}
            assert b.e2e_ns < a.e2e_ns

    run(test())


def test_a_wait_between_requests_belongs_to_none() -> None:
    async def test() -> None:
        async with grpc_stand(three_tokens) as s:
            call = s.stream()
            await call.wait_for_connection()
            await asyncio.sleep(0.3)
            for count in (1, 2):
                await call.write(ask("m", "r1"))
                for _ in range(3):
                    await call.read()
                assert (await s.record(count)).e2e_ns < 0.25e9
                assert not s.gateway.in_flight
                await asyncio.sleep(0.3)
            await call.done_writing()
            assert await read_all(call) == []

    run(test())


def test_a_model_that_is_not_decoupled_ends_with_its_only_answer() -> None:
    async def script(call) -> None:
        while await call.read() is not None:
            await call.send(answer("r1", final=True, text=None, size=64))

    async def test() -> None:
        async with grpc_stand(script) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            assert await call.read() == answer("r1", final=True, text=None, size=64)
            record = await s.record()
            assert (record.outcome, record.output_tokens) == (OutcomeKind.COMPLETED, 1)
            call.cancel()

    run(test())


def test_without_end_marks_the_end_of_the_call_is_the_end() -> None:
    """An engine of another make: it is not asked for marks, and silence is not called idleness."""

    async def script(call) -> None:
        await call.read()
        await call.send(answer("r1", final=None), answer("r1", final=None), gap=0.02)
        await asyncio.sleep(0.4)

    async def test() -> None:
        budgets = {"idle": "100ms"}
        async with grpc_stand(script, backend={"engine": "openai"}, budgets=budgets) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            await call.done_writing()
            assert len(await read_all(call)) == 2
            record = await s.record()
            assert (record.outcome, record.output_tokens) == (OutcomeKind.COMPLETED, 2)
            assert not wants_end(s.engine.calls[0].messages[0])

    run(test())


@pytest.mark.parametrize(
    ("text", "outcome", "reason", "died_in"),
    [
        ("Request for unknown model: 'm' is not found", "rejected", "unknown_model", "ingress"),
        ("in ensemble 'm', boom", "failed", "engine_error", "decode"),
        ("[request id: r1] Exceeds maximum queue size", "rejected", "queue_full", "queue"),
    ],
)
def test_an_error_inside_a_stream_ends_its_request_only(text, outcome, reason, died_in) -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(answer("r1", error=text))
        await three_tokens(call)

    async def test() -> None:
        async with grpc_stand(script, backend={"engine": "triton"}) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            assert StreamResponse.FromString(await call.read()).error_message == text
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in, record.error) == (outcome, reason, died_in, text)
            await call.write(ask(request_id="r1"))
            await call.done_writing()
            assert len(await read_all(call)) == 3
            assert (await s.record(2)).outcome == OutcomeKind.COMPLETED

    run(test())


@pytest.mark.parametrize(
    ("code", "details", "outcome", "reason"),
    [
        ("NOT_FOUND", "Request for unknown model: 'm' is not found", "rejected", "unknown_model"),
        ("INVALID_ARGUMENT", "unexpected shape for input 'x'", "rejected", "bad_request"),
        ("UNAVAILABLE", "[request id: 1] Exceeds maximum queue size", "rejected", "queue_full"),
        ("UNAVAILABLE", "Request timeout expired", "timed_out", "engine_queue_timeout"),
        ("INTERNAL", "model failed", "failed", "engine_error"),
        ("CANCELLED", "cancelled by the server", "failed", "engine_abort_unknown"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_the_engines_own_status_reaches_the_client_as_it_is(code, details, outcome, reason, streamed) -> None:
    async def script(call) -> None:
        await call.read()
        call.context.set_trailing_metadata((("x-why", "because"),))
        call.status(grpc.StatusCode[code], details)

    async def test() -> None:
        async with grpc_stand(script, backend={"engine": "triton"}) as s:
            if streamed:
                call = s.stream()
                await call.write(ask())
                error = await error_of(read_all(call))
            else:
                error = await error_of(s.unary()(ask()))
            assert (error.code().name, error.details()) == (code, details)
            assert said(error, "x-why") == "because"
            record = await s.record()
            assert said(error, "x-request-id") == record.request_id
            assert (record.outcome, record.reason, record.error) == (outcome, reason, details)

    run(test())


def test_administration_is_refused_and_unknown_methods_are_unimplemented() -> None:
    async def test() -> None:
        async with grpc_stand(one_answer, passthrough=["/inference.*", "/my.Service/*"]) as s:
            denied = ("RepositoryIndex", "RepositoryModelLoad", "TraceSetting", "LogSettings")
            denied += ("SystemSharedMemoryRegister", "CudaSharedMemoryStatus", "RepositoryModelUnload")
            for count, name in enumerate(denied, 1):
                error = await error_of(s.unary(name)(b""))
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED
                record = await s.record(count)
                assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.BAD_REQUEST)
                assert record.endpoint == ""
            error = await error_of(s.unary("Nothing", "/other.Service/")(b""))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "passthrough" in error.details()
            assert s.engine.calls == []

    run(test())


def test_what_is_listed_passes_whatever_its_shape() -> None:
    async def script(call) -> None:
        while (message := await call.read()) is not None:
            await call.send(message, message + b"!")

    async def test() -> None:
        async with grpc_stand(script, passthrough=["/my.Service/*"]) as s:
            call = s.stream("Chat", "/my.Service/")
            await call.write(b"one")
            assert [await call.read(), await call.read()] == [b"one", b"one!"]
            await call.write(b"two")
            await call.done_writing()
            assert await read_all(call) == [b"two", b"two!"]
            record = await s.record()
            assert (record.outcome, record.endpoint, record.lane) == ("completed", "/my.Service/*", "passthrough")
            assert record.prompt_bytes == 6

    run(test())


def test_questions_about_models_are_relayed_and_timed() -> None:
    async def test() -> None:
        async with grpc_stand(one_answer) as s:
            for count, name in enumerate(("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"), 1):
                assert await s.unary(name)(name.encode()) == name.encode()
                record = await s.record(count)
                assert (record.endpoint, record.lane, record.outcome) == (SERVICE + name, "passthrough", "completed")

    run(test())


@pytest.mark.parametrize(
    ("service", "name", "no"),
    [(SERVICE, "ServerReady", b""), (SERVICE, "ServerLive", b""), ("/grpc.health.v1.Health/", "Check", b"\x08\x02")],
)
def test_health_is_the_engines_and_no_without_it(service, name, no) -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(b"\x08\x01")

    async def test() -> None:
        async with grpc_stand(script) as s:
            assert await s.unary(name, service)(b"") == b"\x08\x01"
            await s.engine.die()
            assert await s.unary(name, service)(b"") == no
            record = await s.record(2)
            assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE)

    run(test())


def test_a_message_that_is_none_is_refused() -> None:
    async def test() -> None:
        async with grpc_stand(one_answer) as s:
            error = await error_of(s.unary()(b"\xff\xff"))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (await s.record()).reason == Reason.BAD_REQUEST
            call = s.stream()
            await call.write(b"\xff\xff")
            error = await error_of(read_all(call))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (await s.record(2)).reason == Reason.BAD_REQUEST
            assert s.engine.calls == []

    run(test())


def test_messages_have_a_bound_in_both_directions() -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(whole(text=None, size=3_000_000))

    async def test() -> None:
        async with grpc_stand(script, limits={"grpc_message_bytes": 1_000_000}) as s:
            error = await error_of(s.unary()(ask(text="x" * 2_000_000)))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await s.record()).reason == Reason.BAD_REQUEST
            assert s.engine.calls == []
            error = await error_of(s.unary()(ask()))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "limits.grpc_message_bytes" in error.details()
            record = await s.record(2)
            assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.PROTOCOL_ERROR)

    run(test())


def test_a_large_tensor_passes_both_ways() -> None:
    size = 24 * 1024 * 1024

    async def script(call) -> None:
        await call.read()
        await call.send(whole(text=None, size=size))

    async def test() -> None:
        async with grpc_stand(script) as s:
            message = ask(text="x" * size)
            assert len(await s.unary()(message)) > size
            assert s.engine.calls[0].messages == [message]
            assert (await s.record()).prompt_bytes == len(message)

    run(test())


def test_requests_in_flight_are_shown() -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(answer("r1"))
        await call.hang()

    async def test() -> None:
        async with grpc_stand(script) as s:
            call = s.stream()
            await call.write(ask("llm", "r1", max_tokens=3))
            await call.read()
            await s.until(lambda: bool(s.gateway.streams()) and s.gateway.streams()[0]["stage"] == "decode")
            [view] = s.gateway.streams()
            assert (view["model"], view["endpoint"], view["tokens"]) == ("llm", STREAM_INFER, 1)
            assert (view["stream"], view["client_request_id"], view["lane"]) == (True, "r1", "default")
            assert view["ttft_ms"] > 0
            assert view["client_blocked"] is False
            started = time.monotonic()
            call.cancel()
            await s.record()
            assert time.monotonic() - started < 1
            assert s.gateway.streams() == []

    run(test())


def test_its_work_is_counted_to_its_engine_while_it_is_there() -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(answer("r1"))
        await call.hang()

    async def test() -> None:
        async with grpc_stand(script) as s:
            call = s.stream()
            await call.write(ask("llm", "r1", text="sixteen letters!", max_tokens=3))
            await call.read()
            backend = s.gateway.backends.grpc
            assert (backend.requests, backend.tokens) == (1, 7)
            call.cancel()
            await s.record()
            assert (backend.requests, backend.tokens) == (0, 0)

    run(test())
