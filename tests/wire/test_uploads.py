"""Bodies that go upstream as they come: order, backpressure, cancel, early answers, time, memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.gateway.test_form import KIND, form, part
from tests.silence import wave
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import SSE_HEAD, Incoming, ScriptedEngine, chunk, event
from tests.wire.stand import Stand, run, stand

MS = 1_000_000
AUDIO = "/v1/audio/transcriptions"
ANSWER = {"text": "so it goes", "usage": {"type": "tokens", "input_tokens": 30, "output_tokens": 4, "total_tokens": 34}}
FILES = ["/files/*"]


def head(path: str = AUDIO, *, length: int | None, kind: bytes = KIND, extra: str = "") -> bytes:
    """`length` `None`: chunked."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST {path} HTTP/1.1", "Host: g", f"Content-Type: {kind.decode()}", framing, extra]
    return "\r\n".join([*(line for line in lines if line), "", ""]).encode()


def raw(length: int | None, *, path: str = "/files/x", extra: str = "") -> bytes:
    return head(path, length=length, kind=b"application/octet-stream", extra=extra)


def audio_form(seconds: float = 5.0, *, stream: bool = False, file_first: bool = False) -> bytes:
    fields = [part("model", b"whisper"), part("stream", b"true" if stream else b"false")]
    file = part("file", wave(seconds), filename="a.wav")
    return form(file, *fields) if file_first else form(*fields, file)


async def take(incoming: Incoming) -> int:
    size = 0
    async for data in incoming.read_body():
        size += len(data)
    return size


async def answers_size(incoming: Incoming) -> None:
    await incoming.reply({"size": await take(incoming)})


async def answers_text(incoming: Incoming) -> None:
    await take(incoming)
    await incoming.reply(ANSWER)


async def flood(client: RawClient, size: int, *, piece: int = 1 << 18) -> None:
    """`size` zero bytes, no faster than they are taken."""
    block = bytes(piece)
    with contextlib.suppress(ConnectionError):
        while size:
            await client.send(block[: min(size, piece)])
            size -= min(size, piece)


def reset(client: RawClient) -> None:
    """Leave at once: a FIN would wait behind what the kernel could not deliver yet."""
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.abort()


# -- what goes through


@pytest.mark.parametrize("file_first", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_form_arrives_byte_for_byte(chunked: bool, file_first: bool) -> None:
    body = audio_form(file_first=file_first)
    got = bytearray()
    s: Stand

    async def script(incoming: Incoming) -> None:
        assert incoming.headers["content-type"] == KIND.decode()
        sized = "content-length" in incoming.headers
        assert sized is (len(s.engine.requests) > 1 or not chunked)
        got.clear()
        async for data in incoming.read_body():
            got.extend(data)
        await incoming.reply(ANSWER)

    async def test() -> None:
        nonlocal s
        async with stand(script, gathers=False) as s:
            client = await s.client()
            await client.send(head(length=None if chunked else len(body)))
            for at in range(0, len(body), 7001):
                piece = body[at : at + 7001]
                await client.send(chunk(piece) if chunked else piece)
                await asyncio.sleep(0)
            if chunked:
                await client.send(b"0\r\n\r\n")
            assert (await client.reply()).json == ANSWER
            assert bytes(got) == body
            record = await s.record()
            assert (record.outcome, record.model, record.stream) == (OutcomeKind.COMPLETED, "whisper", False)
            assert (record.output_tokens, record.output_tokens_source, record.prompt_tokens) == (4, "usage", 30)
            assert record.audio_seconds == pytest.approx(5.0)
            assert record.prompt_bytes == len(body)
            # The connection serves on, on both sides.
            await client.send(head(length=len(body)) + body)
            assert (await client.reply()).json == ANSWER

    run(test())


def test_the_body_is_upstream_while_it_still_comes() -> None:
    arrived = asyncio.Queue[int]()

    async def script(incoming: Incoming) -> None:
        async for data in incoming.read_body():
            arrived.put_nowait(len(data))
        await incoming.reply({})

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            await client.send(raw(200_000))
            for _ in range(4):
                await client.send(bytes(50_000))
                seen = 0
                async with asyncio.timeout(2):
                    while seen < 50_000:
                        seen += await arrived.get()
            assert (await client.reply()).status == 200

    run(test())


def test_each_chunk_of_a_relayed_body_is_upstream_before_the_next_is_sent() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for data in incoming.read_body():
            await incoming.chunks(data.upper())
        await incoming.end()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            await client.send(raw(None))
            await client.send(chunk(b"a"))
            assert (await client.head()).status == 200
            assert await client.next_chunk() == b"A"
            for letter in (b"b", b"c"):
                await client.send(chunk(letter))
                assert await client.next_chunk() == letter.upper()
            await client.send(b"0\r\n\r\n")
            assert await client.next_chunk() is None
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_small_bodies_are_gathered_and_use_kept_connections() -> None:
    async def test() -> None:
        async with stand(answers_size, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            for _ in range(3):
                await client.send(raw(5000))
                await asyncio.sleep(0.01)
                await client.send(bytes(5000))
                assert (await client.reply()).json == {"size": 5000}
            await s.record(3)
            assert [record.connection_reused for record in s.records.all] == [False, True, True]

    run(test())


@pytest.mark.parametrize("chunked", [False, True])
def test_expect_100_continue(chunked: bool) -> None:
    async def test() -> None:
        async with stand(answers_text, gathers=False) as s:
            body = audio_form()
            client = await s.client()
            await client.send(head(length=None if chunked else len(body), extra="Expect: 100-continue"))
            assert (await client.head()).status == 100
            await client.send(chunk(body) + b"0\r\n\r\n" if chunked else body)
            assert (await client.reply()).json == ANSWER
            assert "expect" not in s.engine.requests[0].headers

    run(test())


def test_no_100_continue_before_a_refusal() -> None:
    async def test() -> None:
        async with stand(gathers=False, limits={"upload_bytes": 1_000_000}) as s:
            client = await s.client()
            reply = await client.ask(head(length=2_000_000, extra="Expect: 100-continue"))
            assert (reply.status, reply.headers["connection"]) == (413, "close")
            assert s.engine.requests == []

    run(test())


# -- lanes


LANES = [
    {"name": "live", "match": {"stream": True}, "running": 1, "queued": 4},
    {"name": "files", "match": {"model": "whisper"}, "running": 1, "queued": 4},
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_forms_fields_choose_its_lane_before_its_file_is_here(stream: bool) -> None:
    async def test() -> None:
        async with stand(answers_text, gathers=False, lanes=LANES) as s:
            body = audio_form(stream=stream)
            client = await s.client()
            await client.send(head(length=len(body)) + body[:3000])
            await s.until(lambda: len(s.engine.requests) == 1)
            lane = s.gateway.lanes.snapshot(0)["live" if stream else "files"]
            assert lane["running"] == 1
            await client.send(body[3000:])
            await client.reply()
            assert (await s.record()).lane == ("live" if stream else "files")

    run(test())


def test_fields_behind_a_large_file_are_known_at_the_end_and_do_not_move_it() -> None:
    async def test() -> None:
        async with stand(answers_text, gathers=False, lanes=LANES) as s:
            body = audio_form(stream=True, file_first=True)
            client = await s.client()
            await client.send(head(length=len(body)) + body)
            await client.reply()
            record = await s.record()
            assert (record.lane, record.model, record.stream) == ("default", "whisper", True)

    run(test())


def test_a_small_form_is_known_whole_wherever_its_fields_are() -> None:
    async def test() -> None:
        async with stand(answers_text, gathers=False, lanes=LANES) as s:
            body = audio_form(0.5, stream=True, file_first=True)
            assert (await s.ask(head(length=len(body)) + body)).status == 200
            record = await s.record()
            assert (record.lane, record.audio_seconds) == ("live", pytest.approx(0.5))

    run(test())


def test_an_upload_waits_in_its_lane_without_being_taken_in() -> None:
    go = asyncio.Event()

    async def script(incoming: Incoming) -> None:
        await take(incoming)
        await go.wait()
        await incoming.reply(ANSWER)

    async def test() -> None:
        async with stand(script, gathers=False, lanes=LANES, budgets={"queue": "10s"}) as s:
            body = audio_form(200)  # 6.4 MB
            first, second = await s.client(), await s.client()
            await first.send(head(length=len(body)) + body)
            await s.until(lambda: len(s.engine.requests) == 1)
            sending = asyncio.ensure_future(second.send(head(length=len(body)) + body))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["files"]["queued"] == 1)
            await asyncio.sleep(0.1)
            waiting = next(e for e in s.gateway.in_flight.values() if e.phase.value == "queue")
            assert waiting.upload is not None
            assert waiting.upload.size < 600_000
            go.set()
            await sending
            assert [(await client.reply()).json for client in (first, second)] == [ANSWER, ANSWER]
            record = await s.record(2)
            assert record.queue_gateway_ns is not None
            assert record.queue_gateway_ns > 90 * MS

    run(test())


def test_a_client_that_leaves_the_queue_is_never_sent_and_frees_its_place() -> None:
    go = asyncio.Event()

    async def script(incoming: Incoming) -> None:
        await take(incoming)
        await go.wait()
        await incoming.reply(ANSWER)

    async def test() -> None:
        async with stand(script, gathers=False, lanes=LANES, budgets={"queue": "10s"}) as s:
            body = audio_form(200)
            first, second = await s.client(), await s.client()
            await first.send(head(length=len(body)) + body)
            await s.until(lambda: len(s.engine.requests) == 1)
            sending = asyncio.ensure_future(flood_bytes(second, head(length=len(body)) + body))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["files"]["queued"] == 1)
            await asyncio.sleep(0.05)  # it is paused by now: its end cannot be read
            sending.cancel()
            left = time.monotonic()
            reset(second)
            await s.until(lambda: s.gateway.lanes.snapshot(0)["files"]["queued"] == 0)
            assert time.monotonic() - left < 0.05
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (
                OutcomeKind.CANCELLED,
                Reason.CLIENT_DISCONNECT,
                "queue",
            )
            go.set()
            assert (await first.reply()).json == ANSWER
            assert len(s.engine.requests) == 1

    run(test())


async def flood_bytes(client: RawClient, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        await client.send(data)


# -- the account


def test_upload_time_is_ingress_and_sent_is_its_last_byte() -> None:
    async def script(incoming: Incoming) -> None:
        await take(incoming)
        await incoming.send(SSE_HEAD)
        await asyncio.sleep(0.1)
        await incoming.chunks(event({"type": "transcript.text.delta", "delta": "so"}))
        await incoming.chunks(event({"type": "transcript.text.done", "text": "so"}))
        await incoming.end()

    async def test() -> None:
        async with stand(script, gathers=False, slow={"ttft": "450ms"}) as s:
            body = audio_form(stream=True)
            client = await s.client()
            await client.send(head(length=len(body)))
            for at in range(0, len(body), 40_000):
                await client.send(body[at : at + 40_000])
                await asyncio.sleep(0.12)
            assert (await client.reply()).status == 200
            record = await s.record()
            assert record.ingress_ns is not None
            assert record.ingress_ns > 150 * MS
            assert record.queue_ns is not None
            assert record.queue_ns < 100 * MS
            assert record.ttft_upstream_ns is not None
            assert 95 * MS < record.ttft_upstream_ns < 300 * MS
            assert record.ttft_ns is not None
            assert record.ttft_ns > record.ttft_upstream_ns + 150 * MS
            assert record.ttft_ns > 450 * MS
            assert "ttft" not in record.slow  # the client's line was slow, not the answer

    run(test())


def test_budgets_begin_when_the_body_is_upstream() -> None:
    async def test() -> None:
        budgets = {"unstreamed_total": "300ms", "total": "300ms"}
        async with stand(answers_text, gathers=False, budgets=budgets) as s:
            body = audio_form()
            client = await s.client()
            await client.send(head(length=len(body)))
            for at in range(0, len(body), 20_000):
                await client.send(body[at : at + 20_000])
                await asyncio.sleep(0.06)
            assert (await client.reply()).json == ANSWER

    run(test())


def test_a_first_token_budget_holds_behind_an_upload() -> None:
    async def script(incoming: Incoming) -> None:
        await take(incoming)
        await incoming.send(SSE_HEAD)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, gathers=False, budgets={"first_token": "200ms"}) as s:
            body = audio_form(stream=True)
            reply = await s.ask(head(length=len(body)) + body)
            assert reply.error is not None
            assert reply.error["reason"] == "first_token_timeout"
            assert (await s.record()).reason is Reason.FIRST_TOKEN_TIMEOUT

    run(test())


# -- backpressure and memory


def test_an_engine_that_does_not_read_stops_the_client() -> None:
    go = asyncio.Event()

    async def script(incoming: Incoming) -> None:
        incoming.writer.transport.pause_reading()
        await go.wait()
        incoming.writer.transport.resume_reading()
        await answers_size(incoming)

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            size = 64_000_000
            client = await s.client()
            await client.send(raw(size))
            sending = asyncio.ensure_future(flood(client, size))
            await asyncio.sleep(0.3)
            (exchange,) = s.gateway.in_flight.values()
            assert exchange.upload is not None
            taken = exchange.upload.size
            assert taken < 16_000_000  # what the kernel's buffers hold, here and there
            await asyncio.sleep(0.1)
            assert exchange.upload.size == taken
            go.set()
            await sending
            assert (await client.reply()).json == {"size": size}

    run(test())


def test_a_client_that_leaves_while_the_engine_does_not_read_is_noticed() -> None:
    async def script(incoming: Incoming) -> None:
        incoming.writer.transport.pause_reading()
        await asyncio.sleep(0.4)
        incoming.writer.transport.resume_reading()
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            await client.send(raw(64_000_000))
            sending = asyncio.ensure_future(flood(client, 64_000_000))
            await asyncio.sleep(0.2)
            sending.cancel()
            left = time.monotonic()
            reset(client)
            record = await s.record()
            assert time.monotonic() - left < 0.05
            assert (record.outcome, record.died_in) == (OutcomeKind.CANCELLED, "ingress")

    run(test())


GATEWAY = """
import asyncio, json, sys, uvloop
from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
class Sink:
    def put(self, record): return True
async def main():
    gateway = Gateway(config_from(json.loads(sys.argv[1])), Sink())
    await gateway.start()
    print(gateway.url, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await gateway.close(0.1)
uvloop.run(main())
"""


@contextlib.asynccontextmanager
async def apart(passthrough: list[str]) -> AsyncIterator[tuple[int, str, list[int]]]:
    """A gateway in a process of its own, behind an engine that counts: (pid, its url, sizes of bodies)."""
    sizes: list[int] = []

    async def script(incoming: Incoming) -> None:
        size = 0
        async for data in incoming.read_body():
            size += len(data)
            await asyncio.sleep(0)
        sizes.append(size)
        await incoming.reply({"size": size})

    async with ScriptedEngine(script, gathers=False) as engine:
        config = {"listen": "127.0.0.1:0", "backends": [{"url": engine.url}], "passthrough": passthrough}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            GATEWAY,
            json.dumps(config),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            url = (await process.stdout.readline()).decode().strip()
            yield process.pid, url, sizes
        finally:
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(5):
                await process.wait()


def peak_kb(pid: int) -> int:
    """The largest resident size so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM")


def test_200_megabytes_leave_no_trace_in_memory() -> None:
    async def test() -> None:
        async with apart(FILES) as (pid, url, sizes):
            for size in (2_000_000, 200_000_000):
                client = await RawClient.connect(url)
                before = peak_kb(pid)
                await client.send(raw(size))
                await flood(client, size)
                assert (await client.reply()).json == {"size": size}
                client.close()
            grown = peak_kb(pid) - before
            assert sizes == [2_000_000, 200_000_000]
            assert grown < 4_000, grown

    run(test())


def test_fifty_slow_uploads_are_bounded() -> None:
    async def one(url: str) -> None:
        client = await RawClient.connect(url)
        size = 1_000_000
        await client.send(raw(size))
        for at in range(0, size, 20_000):
            await client.send(bytes(min(20_000, size - at)))
            await asyncio.sleep(0.02)
        assert (await client.reply()).json == {"size": size}
        client.close()

    async def test() -> None:
        async with apart(FILES) as (pid, url, sizes):
            await one(url)
            before = peak_kb(pid)
            await asyncio.gather(*(one(url) for _ in range(50)))
            assert sizes == [1_000_000] * 51
            assert peak_kb(pid) - before < 12_000

    run(test())


# -- ends


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("path", [AUDIO, "/files/x"])
def test_cancel_while_uploading_reaches_the_engine_at_once(path: str, how: str) -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await take(incoming)
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            body = audio_form()
            await client.send(head(path, length=len(body)) + body[:100_000])
            await s.until(lambda: len(s.engine.requests) == 1)
            await asyncio.sleep(0.05)
            left = time.monotonic()
            if how == "reset":
                reset(client)
            else:
                client.close()
            await s.until(lambda: bool(gone))
            assert gone[0] - left < 0.05
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
            assert record.died_in == "ingress"

    run(test())


@pytest.mark.parametrize("status", [401, 413])
@pytest.mark.parametrize("closes", [False, True])
def test_an_early_refusal_is_relayed_at_once(status: int, closes: bool) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reader.readexactly(50_000)
        extra = b"Connection: close\r\n" if closes else b""
        await incoming.reply({"error": {"message": "no", "type": "x"}}, status, extra=extra)
        if closes:
            incoming.writer.close()
        else:
            await incoming.until_gone()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            began = time.monotonic()
            await client.send(raw(30_000_000) + bytes(60_000))
            reply = await client.reply()
            assert time.monotonic() - began < 0.5
            assert (reply.status, reply.json["error"]["message"]) == (status, "no")
            assert reply.headers["connection"] == "close"
            await flood(client, 2_000_000)  # what was on its way is taken and thrown away, not reset
            assert await client.closed()
            record = await s.record()
            assert (record.outcome, record.http_status) == (OutcomeKind.REJECTED, status)
            assert not s.gateway.backends.first.pool.idle

    run(test())


def test_an_answer_that_does_not_need_the_whole_body_ends_the_upload() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reader.readexactly(50_000)
        await incoming.reply({"enough": True})
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            await client.send(raw(30_000_000) + bytes(60_000))
            reply = await client.reply()
            assert (reply.status, reply.json) == (200, {"enough": True})
            assert await client.closed()
            record = await s.record()
            assert (record.outcome, record.prompt_bytes) == (OutcomeKind.COMPLETED, 60_000)
            assert not s.gateway.backends.first.pool.idle

    run(test())


@pytest.mark.parametrize("whole", [False, True])
def test_the_limit_of_json_bodies_is_not_that_of_uploads(whole: bool) -> None:
    async def test() -> None:
        async with stand(answers_size, gathers=False, passthrough=FILES, limits={"body_bytes": 1000}) as s:
            client = await s.client()
            await client.send(raw(None) + (chunk(bytes(5000)) + b"0\r\n\r\n" if whole else b""))
            if not whole:
                await asyncio.sleep(0.02)
                await client.send(chunk(bytes(5000)) + b"0\r\n\r\n")
            assert (await client.reply()).json == {"size": 5000}

    run(test())


def test_an_early_refusal_survives_a_client_that_sends_on() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reader.readexactly(50_000)
        await incoming.reply({"error": {"message": "too large"}}, 413, extra=b"Connection: close\r\n")
        incoming.writer.close()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            for count in range(1, 11):
                client = await s.client()
                sending = asyncio.ensure_future(flood_bytes(client, raw(20_000_000) + bytes(20_000_000)))
                reply = await client.reply()
                assert reply.status == 413, reply.body
                sending.cancel()
                client.abort()
                await s.record(count)

    run(test())


def test_an_early_refusal_is_read_before_a_write_could_lose_it() -> None:
    """The engine has answered and reset the connection, and the client's next bytes are read before that is."""
    got, answered, go = threading.Event(), threading.Event(), threading.Event()

    def engine(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(1000)
        got.set()
        go.wait()
        connection.sendall(b"HTTP/1.1 413 X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        connection.close()  # with bytes unread: a reset
        answered.set()

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
            served = pool.submit(engine, listener)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            backend = {"url": url, "metrics_url": "http://127.0.0.1:9/metrics"}
            async with stand(passthrough=FILES, backends=[backend]) as s:
                client = await s.client()
                sock = client.writer.get_extra_info("socket")
                await client.send(raw(2_000_000) + bytes(100_000))
                await asyncio.to_thread(got.wait)
                os.write(sock.fileno(), bytes(50_000))  # readable first, while the event loop does not look
                go.set()
                answered.wait()
                assert (await client.reply()).status == 413
                await asyncio.wrap_future(served)

    run(test())


def test_an_engine_that_dies_in_an_upload_is_a_502_and_nothing_is_sent_twice() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reader.readexactly(100_000)
        incoming.abort()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            await client.send(raw(300_000) + bytes(200_000))
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (502, "close")
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (
                OutcomeKind.FAILED,
                Reason.STREAM_CUT,
                "ingress",
            )
            assert (len(s.engine.requests), record.attempts, record.retries) == (1, 1, 0)

    run(test())


def test_a_stalled_upload_is_408_and_its_engine_is_let_go() -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await take(incoming)
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script, gathers=False, limits={"upload_stall": "200ms"}) as s:
            body = audio_form()
            client = await s.client()
            began = time.monotonic()
            await client.send(head(length=len(body)) + body[:100_000])
            reply = await client.reply()
            assert reply.status == 408
            assert 0.15 < time.monotonic() - began < 1
            await s.until(lambda: bool(gone))
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (
                OutcomeKind.REJECTED,
                Reason.BAD_REQUEST,
                "ingress",
            )

    run(test())


def test_an_upload_that_trickles_for_ever_is_408() -> None:
    async def test() -> None:
        async with stand(answers_size, gathers=False, passthrough=FILES, limits={"upload_total": "300ms"}) as s:
            client = await s.client()
            await client.send(raw(10_000_000))
            trickle = asyncio.ensure_future(_trickle(client))
            assert (await client.reply()).status == 408
            trickle.cancel()

    async def _trickle(client: RawClient) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await client.send(b"x")
                await asyncio.sleep(0.02)

    run(test())


def test_an_engine_that_takes_nothing_for_too_long_is_504() -> None:
    async def script(incoming: Incoming) -> None:
        incoming.writer.transport.pause_reading()
        await asyncio.sleep(0.8)

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES, limits={"upload_stall": "200ms"}) as s:
            client = await s.client()
            sending = asyncio.ensure_future(flood_bytes(client, raw(64_000_000) + bytes(64_000_000)))
            reply = await client.reply()
            assert reply.status == 504
            sending.cancel()
            record = await s.record()
            assert (record.outcome, record.budget) == (OutcomeKind.TIMED_OUT, "upload_stall")
            client.abort()

    run(test())


def test_a_deadline_ends_an_upload() -> None:
    async def test() -> None:
        async with stand(answers_text, gathers=False) as s:
            body = audio_form()
            client = await s.client()
            await client.send(head(length=len(body), extra="X-Deadline-Ms: 200") + body[:100_000])
            assert (await client.reply()).status == 504
            assert (await s.record()).reason is Reason.DEADLINE

    run(test())


@pytest.mark.parametrize("path", [AUDIO, "/files/x"])
def test_a_chunked_body_that_grows_too_large_is_413(path: str) -> None:
    async def script(incoming: Incoming) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await take(incoming)

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES, limits={"upload_bytes": 300_000}) as s:
            client = await s.client()
            await client.send(head(path, length=None) + chunk(bytes(200_000)))
            await s.until(lambda: len(s.engine.requests) == 1)
            await client.send(chunk(bytes(200_000)))
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (413, "close")
            await s.until(lambda: s.engine.open == 1)  # only the one that reads metrics

    run(test())


def test_a_body_that_stops_being_http_is_400_and_its_engine_is_let_go() -> None:
    async def script(incoming: Incoming) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await take(incoming)

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            await client.send(raw(None) + chunk(bytes(100_000)))
            await s.until(lambda: len(s.engine.requests) == 1)
            await client.send(b"zz\r\n")
            assert (await client.reply()).status == 400
            assert await client.closed()
            assert (await s.record()).outcome is OutcomeKind.REJECTED

    run(test())


def test_nobody_at_the_engines_address_is_a_503_without_the_body() -> None:
    async def test() -> None:
        async with stand(gathers=False, passthrough=FILES, backends=[{"url": "http://127.0.0.1:9"}]) as s:
            client = await s.client()
            reply = await client.ask(raw(30_000_000, extra="Expect: 100-continue"))
            assert (reply.status, reply.headers["connection"]) == (503, "close")
            assert (await s.record()).reason is Reason.ENGINE_UNREACHABLE

    run(test())


def test_a_shutdown_tells_an_upload() -> None:
    async def test() -> None:
        async with stand(answers_text, gathers=False) as s:
            body = audio_form()
            client = await s.client()
            await client.send(head(length=len(body)) + body[:100_000])
            await s.until(lambda: len(s.engine.requests) == 1)
            await s.gateway.close(0.05)
            assert (await client.reply()).status == 503
            assert (await s.record()).reason is Reason.SHUTDOWN

    run(test())


def test_an_upload_behind_another_request_waits_unread_and_then_goes() -> None:
    go = asyncio.Event()

    async def script(incoming: Incoming) -> None:
        if incoming.target == "/files/x":
            await answers_size(incoming)
            return
        await take(incoming)
        await go.wait()
        await incoming.completion()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            size = 8_000_000
            client = await s.client()
            sending = asyncio.ensure_future(
                client.send(
                    request(chat_body(stream=False)) + raw(size) + bytes(size) + request(chat_body(stream=False))
                )
            )
            await s.until(lambda: len(s.engine.requests) == 1)
            await asyncio.sleep(0.1)
            upload = next(e.upload for e in s.gateway.in_flight.values() if e.upload is not None)
            assert upload.size < 600_000
            go.set()
            await sending
            assert [(await client.reply()).status for _ in range(3)] == [200, 200, 200]
            assert len(s.records.all) == 3

    run(test())


def test_the_first_request_of_a_connection_is_missed_when_its_client_leaves_an_unread_upload_behind_it() -> None:
    async def script(incoming: Incoming) -> None:
        await take(incoming)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES) as s:
            client = await s.client()
            data = request(chat_body()) + raw(8_000_000) + bytes(8_000_000)
            sending = asyncio.ensure_future(flood_bytes(client, data))
            await s.until(lambda: len(s.engine.requests) == 1)
            await asyncio.sleep(0.1)
            sending.cancel()
            left = time.monotonic()
            reset(client)
            await s.record(2)
            assert time.monotonic() - left < 0.05
            assert s.engine.requests[0].target == "/v1/chat/completions"

    run(test())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_many_uploads_nothing_is_left(seed: int) -> None:
    """Engines that answer early, stall or die, clients that leave: one sound record each, and empty tables."""
    dice = random.Random(seed)
    budgets = {"queue": "5s", "total": "5s", "unstreamed_total": "5s", "first_token": "2s", "idle": "1s"}
    lanes = [{"name": "default", "running": 6, "queued": 100}]

    async def script(incoming: Incoming) -> None:
        what = dice.random()
        if what < 0.15:
            await incoming.reply({"error": {"message": "early"}}, dice.choice([401, 413, 503]))
            incoming.writer.close()
        elif what < 0.25:
            incoming.abort()
        elif what < 0.4:
            incoming.writer.transport.pause_reading()
            await asyncio.sleep(dice.uniform(0.01, 0.3))
            incoming.writer.transport.resume_reading()
            await answers_text(incoming)
        elif what < 0.5:
            await incoming.reply({"enough": 1}, extra=b"Connection: close\r\n")
            incoming.writer.close()
        else:
            await answers_text(incoming)

    async def one(s: Stand) -> None:
        client = await s.client()
        body = audio_form(dice.choice([0.1, 2.5, 30, 100]), file_first=dice.random() < 0.5)
        chunked = dice.random() < 0.5
        path = dice.choice([AUDIO, "/files/x"])
        leaves_at = dice.randrange(len(body)) if dice.random() < 0.25 else len(body)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await client.send(head(path, length=None if chunked else len(body)))
            at = 0
            while at < leaves_at:
                piece = body[at : min(at + dice.randrange(1, 400_000), leaves_at)]
                at += len(piece)
                await client.send(chunk(piece) if chunked else piece)
                await asyncio.sleep(dice.choice([0, 0, 0.002]))
            if leaves_at < len(body):
                reset(client) if dice.random() < 0.5 else client.close()
                return
            if chunked:
                await client.send(b"0\r\n\r\n")
            async with asyncio.timeout(8):
                await client.reply()

    async def test() -> None:
        async with stand(script, gathers=False, passthrough=FILES, lanes=lanes, budgets=budgets) as s:
            await asyncio.gather(*(one(s) for _ in range(60)))
            async with asyncio.timeout(5):
                while s.gateway.in_flight:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert len(s.records.all) == 60

    run(test())
