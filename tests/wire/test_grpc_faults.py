"""gRPC when something goes wrong: clients that leave, engines that die, budgets that end, lanes that are full."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
import time

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.children import child_env, run_tailrace
from tests.kserve_messages import StreamResponse, answer, ask, end, whole
from tests.wire.stand import run

try:
    import grpc

    from tests.wire.grpc_stand import LARGE, Cable, error_of, grpc_stand, read_all, said
except ModuleNotFoundError:  # every test here says that it needs it
    grpc = None

pytestmark = pytest.mark.needs("grpc")

EXPECTED = {
    (OutcomeKind.COMPLETED, Reason.NONE),
    (OutcomeKind.REJECTED, Reason.QUEUE_FULL),
    (OutcomeKind.REJECTED, Reason.PREDICTED_WAIT),
    (OutcomeKind.CANCELLED, Reason.DEADLINE),
    (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT),
    (OutcomeKind.CANCELLED, Reason.CLIENT_WRITE_FAILED),
    # A stream whose engine answers only the first of its requests.
    (OutcomeKind.FAILED, Reason.STREAM_CUT),
}
"""How requests end whose clients, deadlines and engine do what they like."""
ONE = [{"name": "default", "running": 1, "queued": 1}]
AT_ONCE_S = 0.05
"""How soon the engine must be rid of a request whose client left."""


async def silent(call) -> None:
    await call.read()
    await call.hang()


async def one_token(call) -> None:
    await call.read()
    await call.send(answer("r1"))
    await call.hang()


async def ended(coroutine) -> None:
    """Wait for a call that the test itself ends."""
    with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.BaseError, grpc.RpcError):
        await coroutine


# -- clients that leave


@pytest.mark.parametrize("how", ["cancel", "cut"])
@pytest.mark.parametrize("state", ["unary", "prefill", "decode"])
def test_a_client_that_leaves_frees_the_engine_at_once(state: str, how: str) -> None:
    async def test() -> None:
        async with grpc_stand(one_token if state == "decode" else silent) as s:
            cable = Cable(s.address)
            await cable.start()
            channel = grpc.aio.insecure_channel(cable.address, options=LARGE)
            if state == "unary":
                call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(ask())
            else:
                call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
                await call.write(ask(request_id="r1"))
                if state == "decode":
                    await call.read()
            await s.until(lambda: bool(s.engine.calls and s.engine.calls[0].messages))
            await asyncio.sleep(0.02)
            left = time.monotonic()
            if how == "cancel":
                call.cancel()
            else:
                cable.cut()
            await s.until(lambda: s.engine.calls[0].cancelled_at is not None)
            assert s.engine.calls[0].cancelled_at - left < AT_ONCE_S
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
            assert record.died_in == ("decode" if state == "decode" else "prefill")
            await channel.close()
            await cable.close()

    run(test())


def test_a_client_that_leaves_the_queue_was_never_sent() -> None:
    async def test() -> None:
        async with grpc_stand(silent, lanes=ONE) as s:
            first = s.unary()(ask())
            await s.until(lambda: bool(s.engine.calls))
            second = s.unary()(ask())
            await s.until(lambda: s.gateway.lanes.snapshot(0)["default"]["queued"] == 1)
            second.cancel()
            record = await s.record()
            assert (record.reason, record.died_in) == (Reason.CLIENT_DISCONNECT, "queue")
            assert len(s.engine.calls) == 1
            first.cancel()
            await s.record(2)

    run(test())


def test_all_requests_of_a_stream_end_with_it() -> None:
    async def test() -> None:
        async with grpc_stand(one_token) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            await call.write(ask(request_id="r2"))
            await call.read()
            await s.until(lambda: len(s.gateway.in_flight) == 2)
            call.cancel()
            await s.record(2)
            assert {record.reason for record in s.records.all} == {Reason.CLIENT_DISCONNECT}
            assert sorted(record.died_in for record in s.records.all) == ["decode", "prefill"]

    run(test())


def test_a_client_that_leaves_after_the_last_answer_has_it() -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(answer("r1", final=True))
        await call.hang()

    async def test() -> None:
        async with grpc_stand(script) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            await call.read()
            call.cancel()
            assert (await s.record()).outcome == OutcomeKind.COMPLETED
            await s.until(lambda: s.engine.open == 0)

    run(test())


@pytest.mark.parametrize("seed", [7, 8])
def test_many_that_leave_at_any_moment_leave_nothing_behind(caplog, seed: int) -> None:
    """Cancels, resets, deadlines and refusals at moments that nobody chose: one record a request, nothing left, no
    failure of our own."""
    rng = random.Random(seed)

    async def script(call) -> None:
        message = await call.read()
        if rng.random() < 0.15:
            call.status(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
            return
        if "Stream" not in call.method:
            await asyncio.sleep(rng.random() * 0.02)
            await call.send(whole())
            return
        for _ in range(rng.randrange(1, 30)):
            await call.send(answer("r1", text="x" * rng.randrange(1, 5000)), gap=rng.random() * 0.002)
        if message:
            await call.send(end("r1"))

    async def test() -> None:
        async with grpc_stand(script, lanes=[{"name": "default", "running": 8, "queued": 200}]) as s:
            asked = 0

            async def ask_for(call, count: int) -> None:
                nonlocal asked
                for _ in range(count):
                    asked += 1
                    await call.write(ask(request_id="r1"))
                await call.done_writing()
                await read_all(call)

            async def client(number: int) -> None:
                nonlocal asked
                cable = Cable(s.address)
                await cable.start()
                channel = grpc.aio.insecure_channel(cable.address, options=LARGE)
                for _ in range(4):
                    limit = rng.random() * 0.1 if rng.random() < 0.3 else None
                    if number % 3:
                        infer = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
                        call = infer(timeout=limit)
                        task = asyncio.ensure_future(ended(ask_for(call, rng.randrange(1, 4))))
                    else:
                        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(ask(), timeout=limit)
                        task = asyncio.ensure_future(ended(call))
                        asked += 1
                    await asyncio.sleep(rng.random() * 0.05)
                    if rng.random() < 0.6:
                        call.cancel()
                    elif rng.random() < 0.3:
                        cable.cut()
                        task.cancel()
                        break
                    # grpc.aio's own client hangs in a write to a call that failed before it began.
                    await asyncio.wait([task], timeout=3)
                    task.cancel()
                await channel.close()
                await cable.close()

            async with asyncio.TaskGroup() as group:
                for number in range(24):
                    group.create_task(client(number))
            await s.until(lambda: not s.gateway.in_flight and s.engine.open == 0)
            kinds = {(record.outcome, record.reason) for record in s.records.all}
            odd = [
                (record.outcome, record.reason, record.died_in, record.error)
                for record in s.records.all
                if (record.outcome, record.reason) not in EXPECTED
            ]
            assert odd == [], odd
            assert len(kinds) >= 5
            # What the gateway had not read when its call ended has no record.
            assert asked * 0.4 < len(s.records.all) <= asked
            assert len({record.request_id for record in s.records.all}) == len(s.records.all)

    run(test())
    assert [entry for entry in caplog.records if entry.name.startswith("tailrace")] == []


# -- engines that fail


@pytest.mark.parametrize(("state", "died_in"), [("unary", "prefill"), ("prefill", "prefill"), ("decode", "decode")])
def test_an_engine_that_dies_is_unavailable_with_the_stage(state: str, died_in: str) -> None:
    async def test() -> None:
        async with grpc_stand(one_token if state == "decode" else silent) as s:
            if state == "unary":
                task = asyncio.ensure_future(error_of(s.unary()(ask())))
            else:
                call = s.stream()
                await call.write(ask(request_id="r1"))
                if state == "decode":
                    assert await call.read() == answer("r1")
                task = asyncio.ensure_future(error_of(read_all(call)))
            await s.until(lambda: bool(s.engine.calls and s.engine.calls[0].messages))
            await asyncio.sleep(0.02)
            await s.engine.die()
            error = await task
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert f"in stage {died_in}" in error.details()
            assert (said(error, "x-tailrace-reason"), said(error, "x-tailrace-stage")) == ("stream_cut", died_in)
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (OutcomeKind.FAILED, Reason.STREAM_CUT, died_in)

    run(test())


@pytest.mark.parametrize("state", ["unary", "decode"])
def test_a_connection_to_the_engine_that_is_reset(state: str) -> None:
    async def test() -> None:
        async with grpc_stand(one_token) as s:
            cable = Cable(s.engine.address)
            await cable.start()
            async with grpc_stand(one_token, backend={"grpc_url": cable.address}) as front:
                call = front.stream()
                await call.write(ask(request_id="r1"))
                assert await call.read() == answer("r1")
                if state == "unary":
                    task = asyncio.ensure_future(error_of(front.unary()(ask())))
                    await s.until(lambda: len(s.engine.calls) == 2)
                else:
                    task = asyncio.ensure_future(error_of(read_all(call)))
                await asyncio.sleep(0.02)
                cable.cut()
                assert (await task).code() is grpc.StatusCode.UNAVAILABLE
                await front.until(lambda: len(front.records.all) == (2 if state == "unary" else 1))
                assert {record.reason for record in front.records.all} == {Reason.STREAM_CUT}
            await cable.close()

    run(test())


def test_an_engine_that_is_not_there_and_comes_back() -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(whole())

    async def test() -> None:
        async with grpc_stand(script) as s:
            port = int(s.engine.address.rpartition(":")[2])
            await s.engine.die()
            started = time.monotonic()
            error = await error_of(s.unary()(ask()))
            assert time.monotonic() - started < 2
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert said(error, "retry-after") == "1"
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE)
            assert s.gateway.ready()[0] is False
            await s.engine.start(port)
            async with asyncio.timeout(5):
                while True:
                    try:
                        assert await s.unary()(ask()) == whole()
                        break
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.1)
            assert s.records.all[-1].outcome == OutcomeKind.COMPLETED
            assert s.gateway.ready()[0] is True

    run(test())


def test_a_stream_to_an_engine_that_is_not_there() -> None:
    async def test() -> None:
        async with grpc_stand(silent) as s:
            await s.engine.die()
            call = s.stream()
            await call.write(ask(request_id="r1"))
            await call.write(ask(request_id="r2"))
            error = await error_of(read_all(call))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "cannot be reached" in error.details()
            await s.until(lambda: len(s.records.all) >= 1)
            assert {record.reason for record in s.records.all} == {Reason.ENGINE_UNREACHABLE}

    run(test())


def test_an_engine_that_forgets_a_last_answer() -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(answer("r1"))

    async def test() -> None:
        async with grpc_stand(script) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            assert await read_all(call) == [answer("r1")]
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (OutcomeKind.FAILED, Reason.STREAM_CUT, "decode")

    run(test())


# -- time


@pytest.mark.parametrize(
    ("budgets", "script", "reason", "budget", "stage"),
    [
        ({"first_token": "150ms"}, "silent", Reason.FIRST_TOKEN_TIMEOUT, "first_token", "prefill"),
        ({"idle": "150ms"}, "one_token", Reason.IDLE_TIMEOUT, "idle", "decode"),
        ({"total": "200ms"}, "one_token", Reason.TOTAL_TIMEOUT, "total", "decode"),
    ],
)
def test_a_budget_ends_a_stream_and_frees_the_engine(budgets, script, reason, budget, stage) -> None:
    async def test() -> None:
        async with grpc_stand({"silent": silent, "one_token": one_token}[script], budgets=budgets) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            started = time.monotonic()
            error = await error_of(read_all(call))
            assert time.monotonic() - started < 0.8
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert f"the {budget} budget" in error.details()
            assert said(error, "x-tailrace-stage") == stage
            record = await s.record()
            assert (record.outcome, record.reason, record.budget) == (OutcomeKind.TIMED_OUT, reason, budget)
            assert record.died_in == stage
            await s.until(lambda: s.engine.open == 0, within=1.0)

    run(test())


def test_a_budget_ends_a_unary_call() -> None:
    async def test() -> None:
        async with grpc_stand(silent, budgets={"unstreamed_total": "150ms"}) as s:
            error = await error_of(s.unary()(ask()))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            record = await s.record()
            assert (record.reason, record.budget) == (Reason.TOTAL_TIMEOUT, "unstreamed_total")
            await s.until(lambda: s.engine.open == 0, within=1.0)

    run(test())


@pytest.mark.parametrize("how", ["timeout", "header"])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_clients_deadline_goes_upstream_and_only_shortens(streamed: bool, how: str) -> None:
    left: list[float | None] = []

    async def script(call) -> None:
        left.append(call.context.time_remaining())
        await silent(call)

    options = {"timeout": 0.25} if how == "timeout" else {"metadata": (("x-deadline-ms", "250"),)}

    async def test() -> None:
        async with grpc_stand(script) as s:
            started = time.monotonic()
            if streamed:
                call = s.stream(**options)
                await call.write(ask(request_id="r1"))
                error = await error_of(read_all(call))
            else:
                error = await error_of(s.unary()(ask(), **options))
            assert 0.2 < time.monotonic() - started < 0.9
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if streamed and how == "header":
                assert left[0] is None, "a request's own deadline is not its call's"
            else:
                assert left[0] is not None
                assert left[0] <= 0.26  # gRPC rounds what it tells the other side
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.DEADLINE)
            assert record.died_in == "prefill"
            await s.until(lambda: s.engine.open == 0, within=1.0)

    run(test())


def test_a_budget_beside_others_ends_one_request_and_not_the_call() -> None:
    """gRPC cannot cancel one message: the client gets an error for it, what still comes for it is dropped."""

    async def script(call) -> None:
        await call.read()
        await call.read()
        await call.send(*(answer("b", text=f"{n}") for n in range(30)), gap=0.02)
        await call.send(answer("a", text="late"), end("a"), answer("b"), end("b"))
        await call.read()

    async def test() -> None:
        async with grpc_stand(script, budgets={"first_token": "200ms"}) as s:
            call = s.stream()
            await call.write(ask("m", "a"))
            await call.write(ask("m", "b"))
            await call.done_writing()
            got = [StreamResponse.FromString(message) for message in await read_all(call)]
            errors = [message for message in got if message.error_message]
            assert [message.infer_response.id for message in errors] == ["a"]
            assert "first_token" in errors[0].error_message
            assert {message.infer_response.id for message in got if not message.error_message} == {"b"}
            assert len(got) == 32
            await s.record(2)
            a, b = sorted(s.records.all, key=lambda record: record.client_request_id)
            assert (a.outcome, a.reason) == (OutcomeKind.TIMED_OUT, Reason.FIRST_TOKEN_TIMEOUT)
            assert (b.outcome, b.output_tokens) == (OutcomeKind.COMPLETED, 31)

    run(test())


# -- lanes


@pytest.mark.parametrize("streamed", [False, True])
def test_a_full_lane_refuses_with_a_time_to_come_back(streamed: bool) -> None:
    async def test() -> None:
        async with grpc_stand(silent, lanes=[{"name": "default", "running": 1, "queued": 0}]) as s:
            first = s.unary()(ask())
            await s.until(lambda: bool(s.engine.calls))
            if streamed:
                call = s.stream()
                await call.write(ask(request_id="r2"))
                error = await error_of(read_all(call))
            else:
                error = await error_of(s.unary()(ask(request_id="r2")))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert said(error, "x-tailrace-reason") == "queue_full"
            assert said(error, "x-tailrace-lane") == "default"
            assert said(error, "retry-after") == "1"
            assert said(error, "grpc-retry-pushback-ms") == "1000"
            # google.rpc.Status{8, message, details: [Any{RetryInfo{retry_delay{1 s}}}]}
            details = said(error, "grpc-status-details-bin")
            assert details.startswith(b"\x08\x08\x12")
            assert b"type.googleapis.com/google.rpc.RetryInfo" in details
            assert details.endswith(b"\x12\x04\x0a\x02\x08\x01")
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (
                OutcomeKind.REJECTED,
                Reason.QUEUE_FULL,
                "queue",
            )
            assert record.client_request_id == "r2"
            assert said(error, "x-request-id") == record.request_id
            assert len(s.engine.calls) == 1
            first.cancel()
            await s.record(2)

    run(test())


def test_a_wait_in_the_lane_is_queue_time_and_its_budget_ends_it() -> None:
    async def slow(call) -> None:
        await call.read()
        await asyncio.sleep(0.2)
        await call.send(whole())

    async def test() -> None:
        async with grpc_stand(slow, lanes=ONE, budgets={"queue": "2s"}) as s:
            await asyncio.gather(s.unary()(ask()), s.unary()(ask()))
            record = await s.record(2)
            assert 0.15e9 < record.queue_gateway_ns < 0.4e9
        async with grpc_stand(silent, lanes=ONE, budgets={"queue": "100ms"}) as s:
            first = s.unary()(ask())
            await s.until(lambda: bool(s.engine.calls))
            error = await error_of(s.unary()(ask()))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            record = await s.record()
            assert (record.outcome, record.reason, record.budget) == ("timed_out", "queue_timeout", "queue")
            first.cancel()
            await s.record(2)

    run(test())


def test_a_refusal_beside_others_is_an_error_in_the_stream() -> None:
    async def script(call) -> None:
        await call.read()
        await call.send(answer("a"))
        await asyncio.sleep(0.3)
        await call.send(end("a"))
        await call.read()

    async def test() -> None:
        async with grpc_stand(script, lanes=[{"name": "default", "running": 1, "queued": 0}]) as s:
            call = s.stream()
            await call.write(ask("m", "a"))
            assert await call.read() == answer("a")
            await call.write(ask("m", "b"))
            refused = StreamResponse.FromString(await call.read())
            assert (refused.infer_response.id, "full" in refused.error_message) == ("b", True)
            await call.done_writing()
            assert await read_all(call) == []
            await s.record(2)
            assert [record.outcome for record in s.records.all] == [OutcomeKind.REJECTED, OutcomeKind.COMPLETED]
            assert len(s.engine.calls[0].messages) == 1

    run(test())


def test_lanes_match_grpc_by_path_header_and_model() -> None:
    lanes = [
        {"name": "path", "match": {"path": "/inference.GRPCInferenceService/ModelStreamInfer"}},
        {"name": "header", "match": {"header": {"x-class": "bulk"}}},
        {"name": "model", "match": {"model": "big"}},
    ]

    async def script(call) -> None:
        message = await call.read()
        await call.send(answer(final=True) if "Stream" in call.method else message or b"")

    async def test() -> None:
        async with grpc_stand(script, lanes=lanes) as s:
            await s.unary()(ask("big"))
            await s.unary()(ask("small"), metadata=(("x-class", "bulk"),))
            call = s.stream()
            await call.write(ask("big"))
            await call.done_writing()
            await read_all(call)
            await s.record(3)
            assert [record.lane for record in s.records.all] == ["model", "header", "path"]

    run(test())


# -- slow clients


def test_a_client_that_stops_reading_holds_up_the_engine_and_not_the_memory() -> None:
    """Its window fills, then the gateway stops reading, then the engine is held up; the time is the client's."""
    piece = 64 * 1024
    sent = 0

    async def script(call) -> None:
        nonlocal sent
        await call.read()
        for _ in range(2000):  # 128 MB
            await call.send(answer("r1", text=None, size=piece))
            sent += piece
        await call.send(end("r1"))

    async def test() -> None:
        async with grpc_stand(script, budgets={"idle": "300ms"}) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            await call.read()
            seen = -1
            async with asyncio.timeout(5):
                while seen != sent:
                    seen = sent
                    await asyncio.sleep(0.3)
            assert sent < 40e6, "windows and socket buffers of two hops, and no more"
            assert s.gateway.streams()[0]["client_blocked"] is True
            assert len(s.records.all) == 0, "an engine that is held up by the client is not idle"
            await asyncio.sleep(0.5)
            await call.done_writing()
            assert len(await read_all(call)) == 1999
            record = await s.record()
            assert (record.outcome, record.output_tokens) == (OutcomeKind.COMPLETED, 2000)
            assert record.client_blocked_ns > 0.7e9
            assert record.stages()["response"] >= 0.7e9
            assert record.stages()["decode"] < record.e2e_ns - 0.7e9

    run(test())


def test_a_client_that_never_reads_on_is_ended_by_the_total_budget() -> None:
    async def script(call) -> None:
        await call.read()
        while True:
            await call.send(answer("r1", text=None, size=256 * 1024))

    async def test() -> None:
        async with grpc_stand(script, budgets={"total": "700ms"}) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            await call.read()
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT)
            await s.until(lambda: s.engine.open == 0, within=1.0)
            error = await error_of(read_all(call))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    run(test())


# -- shutdown


def test_a_stop_lets_requests_end_and_refuses_new_ones() -> None:
    async def script(call) -> None:
        await call.read()
        await asyncio.sleep(0.3)
        await call.send(whole())

    async def test() -> None:
        async with grpc_stand(script) as s:
            idle = s.stream()
            await idle.wait_for_connection()
            waits = asyncio.ensure_future(error_of(read_all(idle)))
            first = asyncio.ensure_future(ended(s.unary()(ask())))
            await s.until(lambda: bool(s.engine.calls))
            stopping = asyncio.ensure_future(s.gateway.close(2.0))
            await asyncio.sleep(0.05)
            error = await error_of(s.unary()(ask()))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in error.details()
            started = time.monotonic()
            assert await stopping == 0
            assert time.monotonic() - started < 1, "a call without a request holds up no stop"
            await first
            told = await waits
            assert (told.code().name, told.details()) == ("UNAVAILABLE", "the gateway is shutting down")
            assert sorted(record.outcome for record in s.records.all) == ["completed", "rejected"]

    run(test())


def test_a_drained_engine_gets_no_new_call_and_ends_the_old_one() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def script(call) -> None:
            while await call.read() is not None:
                await go.wait()
                await call.send(whole())

        async with grpc_stand(script) as s:
            old = s.stream()
            await old.write(ask(request_id="old"))
            await s.until(lambda: bool(s.engine.calls))
            s.gateway.backends.first.engine.drain(on=True)
            for _ in range(2):
                error = await error_of(s.unary()(ask()))
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert "takes no new requests" in error.details()
            go.set()
            assert await old.read() != grpc.aio.EOF
            await old.write(ask(request_id="second of the same call"))
            await old.done_writing()
            await read_all(old)
            s.gateway.backends.first.engine.drain(on=False)
            await ended(s.unary()(ask()))
            assert len(s.engine.calls) == 2
            reasons = sorted(record.reason for record in s.records.all)
            assert reasons == ["", "", "no_backend", "no_backend", "no_backend"]

    run(test())


def test_a_stop_ends_what_does_not_end() -> None:
    async def test() -> None:
        async with grpc_stand(one_token) as s:
            call = s.stream()
            await call.write(ask(request_id="r1"))
            await call.read()
            task = asyncio.ensure_future(error_of(read_all(call)))
            await asyncio.sleep(0)
            assert await s.gateway.close(0.1) == 1
            error = await task
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in error.details()
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.SHUTDOWN)

    run(test())


def test_a_port_in_use_is_named(tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "c.yaml").write_text(
            f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ngrpc_listen: 127.0.0.1:{port}\n"
            f'backends: [{{url: "http://127.0.0.1:9", grpc_url: "127.0.0.1:9"}}]\nrecords: {{dir: "{tmp_path}/d"}}\n'
        )
        done = run_tailrace("serve", "-c", str(tmp_path / "c.yaml"))
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
    assert "grpc_listen" in done.stderr
    assert "Traceback" not in done.stderr


# -- what is not configured costs nothing


def test_without_grpc_listen_nothing_of_grpc_is_loaded() -> None:
    code = (
        "import sys, asyncio\n"
        "from tailrace.gateway.config import config_from\n"
        "from tailrace.gateway.gateway import Gateway\n"
        "import tailrace.app.serve\n"
        "class Sink:\n"
        "    def put(self, record): return True\n"
        "async def main():\n"
        "    backend = {'url': 'http://127.0.0.1:9'}\n"
        "    gateway = Gateway(config_from({'listen': '127.0.0.1:0', 'backends': [backend]}), Sink())\n"
        "    await gateway.start()\n"
        "    await gateway.close(0)\n"
        "asyncio.run(main())\n"
        "print(*[name for name in sys.modules if name.startswith(('grpc', 'tailrace.gateway.rpc'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=child_env(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
