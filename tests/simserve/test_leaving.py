"""Clients that leave: their slot and their blocks come back, whether they were running, queued or not streaming."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.simserve.serving import CHAT, chat, run, streamed, until


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_running_frees_the_slot(stream):
    async def scenario(server, session):
        body = streamed(max_tokens=5000) if stream else chat(max_tokens=5000, ignore_eos=True)
        task = asyncio.ensure_future(session.post(CHAT, json=body))
        await until(lambda: server.engine.running == 1 and server.engine.kv.free < server.engine.kv.total)
        if stream:
            (await task).close()
        else:
            task.cancel()
        await until(lambda: server.engine.running == 0)
        assert server.engine.kv.free == server.engine.kv.total
        assert not server.driver.live
        assert server.engine.counters.aborted == 1

    run(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_queued_leaves_the_queue(stream):
    async def scenario(server, session):
        running = await session.post(CHAT, json=streamed(max_tokens=5000))
        await until(lambda: server.engine.running == 1)
        body = streamed() if stream else chat()
        queued = asyncio.ensure_future(session.post(CHAT, json=body))
        await until(lambda: server.engine.waiting == 1)
        if stream:
            (await queued).close()
        else:
            queued.cancel()
        await until(lambda: server.engine.waiting == 0)
        assert server.engine.running == 1
        running.close()
        await until(lambda: server.engine.running == 0)

    run(scenario, max_num_seqs=1)


def test_a_leaver_is_in_no_histogram():
    async def scenario(server, session):
        response = await session.post(CHAT, json=streamed(max_tokens=5000))
        await until(lambda: server.engine.running == 1)
        response.close()
        await until(lambda: server.engine.running == 0)
        async with session.get("/metrics") as answer:
            text = await answer.text()
        assert 'finished_reason="abort"' in text
        assert "vllm:e2e_request_latency_seconds_count" in text
        for line in text.splitlines():
            if "request_success_total{" in line or "e2e_request_latency_seconds_count" in line:
                assert line.endswith(" 0.0")

    run(scenario)


def test_a_slow_reader_delays_nobody_and_gets_merged_events():
    async def scenario(server, session):
        port = int(server.url.rsplit(":", 1)[1])
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=slow, limit=1024)
        options = {"include_usage": True, "continuous_usage_stats": True}
        raw = json.dumps(streamed(max_tokens=30_000, stream_options=options)).encode()
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (CHAT.encode(), len(raw), raw)
        )
        await until(lambda: server.engine.counters.finished == 1, 15)
        async with session.post(CHAT, json=chat(max_tokens=3)) as response:
            assert response.status == 200
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += await asyncio.wait_for(reader.read(65536), 5)
        writer.close()
        assert b'"completion_tokens":30000' in answer
        words = answer.count(b'"delta":{"content":" ')
        assert words < 30_000

    run(scenario, time_scale=2000.0, max_model_len=65_536)
