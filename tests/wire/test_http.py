"""HTTP/1.1 as a proxy must speak it: framing, order, limits, and what must never be forwarded."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import Incoming, chunk
from tests.wire.stand import Stand, run, stand

POST = b"POST /v1/chat/completions HTTP/1.1\r\n"


async def _refused(s: Stand, data: bytes, status: int, *, closes: bool = True) -> None:
    client = await s.client()
    reply = await client.ask(data)
    assert reply.status == status, reply.body
    assert reply.json["error"]["message"]
    if closes:
        assert reply.headers["connection"] == "close"
        assert await client.closed()
    client.close()
    assert s.engine.requests == []


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: 2\r\n\r\n{}",
        POST + b"Host: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Host: a\r\nhOST: a\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Host: a/b\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Host: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        POST + b"Host: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Host: a\r\nContent-Length: 2, 2\r\n\r\n{}",
        POST + b"Host: a\r\nContent-Length: +2\r\n\r\n{}",
        POST + b"Host: a\r\nContent-Length: 2\r\nX-A: b\r\n folded\r\n\r\n{}",
        POST + b"Host : a\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Host: a\r\nX-A: \x00\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        POST + b"Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"FOO /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_a_request_that_two_readers_could_read_differently_is_refused(head: bytes) -> None:
    async def test() -> None:
        async with stand() as s:
            await _refused(s, head, 400)
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.BAD_REQUEST)

    run(test())


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"identity", b"xchunked", b"chunked, identity"])
def test_transfer_codings_other_than_chunked_are_refused(coding: bytes) -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            reply = await client.ask(POST + b"Host: a\r\nTransfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n")
            assert reply.status in (400, 501)
            assert await client.closed()
            client.close()
            assert s.engine.requests == []

    run(test())


def test_a_smuggled_request_behind_a_refused_one_is_never_read() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            evil = request(chat_body(), path="/v1/completions")
            await client.send(
                POST + b"Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + evil
            )
            assert (await client.reply()).status == 400
            assert await client.closed()
            client.close()
            assert s.engine.requests == []
            assert len(s.records.all) == 1

    run(test())


def test_keep_alive_carries_many_requests() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            for _ in range(5):
                assert (await client.ask(request(chat_body()))).end == "chunked"
            client.close()
            await s.record(5)
            assert len({incoming.connection for incoming in s.engine.requests}) == 1
            assert [record.connection_reused for record in s.records.all] == [False, True, True, True, True]

    run(test())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def script(incoming: Incoming) -> None:
        number = incoming.json["n"]
        await asyncio.sleep(0.05 if number == 1 else 0)
        await incoming.reply({"number": number})

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(b"".join(request(chat_body(stream=False, n=n)) for n in range(1, 6)))
            assert [(await client.reply()).json["number"] for _ in range(5)] == [1, 2, 3, 4, 5]
            client.close()

    run(test())


def test_a_refused_request_in_the_middle_of_a_pipeline_keeps_its_place() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.05)
        await incoming.reply({"ok": True})

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            good = request(chat_body(stream=False))
            await client.send(good + request(path="/nowhere", method="GET") + good + b"GARBAGE\r\n\r\n")
            assert [(await client.reply()).status for _ in range(4)] == [200, 404, 200, 400]
            assert await client.closed()
            client.close()

    run(test())


def test_hundreds_of_pipelined_refusals_are_all_answered() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            await client.send(request(path="/nowhere", method="GET") * 1500)
            for _ in range(1500):
                assert (await client.reply()).status == 404
            client.close()
            await s.record(1500)

    run(test())


def test_a_long_pipeline_is_not_taken_for_a_long_head() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            whole = request(path="/nowhere", method="GET") * 6000
            await asyncio.gather(client.send(whole), _read(client, 6000))

    async def _read(client: RawClient, count: int) -> None:
        for _ in range(count):
            assert (await client.reply()).status == 404

    run(test())


def test_a_request_that_comes_a_byte_at_a_time() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            data = request(chat_body(), headers={"X-Request-Id": "slow"})
            for index in range(len(data)):
                await client.send(data[index : index + 1])
                await asyncio.sleep(0)
            assert (await client.reply()).headers["x-client-request-id"] == "slow"
            record = await s.record()
            assert record.ingress_ns is not None
            assert record.ingress_ns > 1e6  # from the first byte, not from the handler

    run(test())


def test_connection_close_is_obeyed_and_what_follows_is_ignored() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            last = request(chat_body(), headers={"Connection": "close"})
            await client.send(last + request(chat_body()))
            reply = await client.reply()
            assert (reply.status, reply.end) == (200, "chunked")
            assert reply.headers["connection"] == "close"
            assert await client.closed()
            client.close()
            assert len(s.engine.requests) == 1

    run(test())


def test_expect_100_continue_is_answered_before_the_body() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            body = chat_body()
            head, _, _ = request(body, headers={"Expect": "100-continue"}).partition(b"\r\n\r\n")
            await client.send(head + b"\r\n\r\n")
            assert (await client.head()).status == 100
            reply = await client.ask(body)
            assert reply.status == 200
            assert "expect" not in s.engine.requests[0].headers
            client.close()

    run(test())


def test_expect_is_refused_without_a_body_being_sent() -> None:
    async def test() -> None:
        async with stand(limits={"body_bytes": 100}) as s:
            client = await s.client()
            reply = await client.ask(POST + b"Host: a\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
            assert reply.status == 413
            assert await client.closed()
            client.close()
            await _refused(s, POST + b"Host: a\r\nContent-Length: 2\r\nExpect: tea\r\n\r\n", 417)

    run(test())


def test_limits_answer_with_their_own_status() -> None:
    async def test() -> None:
        async with stand(limits={"header_bytes": 2000, "body_bytes": 3000}) as s:
            await _refused(s, POST + b"Host: a\r\nX-Long: " + b"x" * 3000, 431)
            await _refused(s, POST + b"Host: a\r\n" + b"A: b\r\n" * 250, 431)
            await _refused(s, b"GET /" + b"x" * 3000, 431)
            await _refused(s, POST + b"Host: a\r\nContent-Length: 5000\r\n\r\n", 413)
            chunked = POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            await _refused(s, chunked + chunk(b"x" * 2000) + chunk(b"x" * 2000), 413)

    run(test())


def test_a_long_target_is_414() -> None:
    async def test() -> None:
        async with stand() as s:
            await _refused(s, b"GET /v1/models?" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414)

    run(test())


def test_endless_trailers_are_refused() -> None:
    async def test() -> None:
        async with stand() as s:
            data = POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
            await _refused(s, data + b"A: b\r\n" * 300, 431)

    run(test())


def test_a_refusal_survives_an_upload_that_is_still_coming() -> None:
    async def test() -> None:
        async with stand(limits={"body_bytes": 1_000_000}) as s:
            client = await s.client()
            await client.send(POST + b"Host: a\r\nContent-Length: 30000000\r\n\r\n")
            for _ in range(20):
                client.writer.write(b"x" * 100_000)
                await asyncio.sleep(0)
            reply = await client.reply()
            assert reply.status == 413
            assert reply.end == "length"
            client.close()

    run(test())


def test_unknown_paths_are_404_and_keep_the_connection() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            for path in ("/", "/healthy", "/v1", "/metrics", "/v1/chat/completions/x"):
                reply = await client.ask(request(b"{}", path=path))
                assert reply.status == 404
                assert reply.json["error"]["code"] == "bad_request"
            assert (await client.ask(request(chat_body()))).status == 200
            client.close()

    run(test())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/sleep", 403),
        ("/v1/load_lora_adapter", 403),
        ("/flush_cache?x=1", 403),
        ("/abort_request/", 403),
        ("/SLEEP", 403),
        ("/%73leep", 403),
        ("/update_weights_from_disk", 403),
        ("/slots/0?action=save", 403),
        ("/v2/repository/models/m/unload", 403),
        ("/knobs", 403),
        ("//sleep", 400),
        ("/v1/../sleep", 400),
        ("/v1/%2e%2e/sleep", 400),
        ("/v1/x%2f..%2fsleep", 400),
        ("/.\\sleep", 400),
    ],
)
def test_the_engines_administration_is_never_reached(path: str, status: int) -> None:
    async def test() -> None:
        async with stand(passthrough=["/*"]) as s:
            reply = await s.ask(request(b"{}", path=path))
            assert reply.status == status
            assert s.engine.requests == []

    run(test())


def test_passthrough_relays_and_times_and_does_not_read() -> None:
    async def script(incoming: Incoming) -> None:
        assert incoming.target == "/tokenize?x=1"
        assert incoming.body == b"not json"
        await incoming.reply(b'{"count": 3}')

    async def test() -> None:
        async with stand(script, passthrough=["/tokenize", "/extra/*"]) as s:
            reply = await s.ask(request(b"not json", path="/tokenize?x=1"))
            assert reply.json == {"count": 3}
            record = await s.record()
            assert (record.endpoint, record.lane, record.output_tokens) == ("/tokenize", "passthrough", None)
            assert (await s.ask(request(b"{}", path="/extras"))).status == 404

    run(test())


def test_methods_that_a_path_does_not_have() -> None:
    async def test() -> None:
        async with stand() as s:
            assert (await s.ask(request(method="GET"))).status == 405
            assert (await s.ask(request(method="OPTIONS", path="/v1/models"))).status == 405

    run(test())


def test_an_absolute_target_means_its_path() -> None:
    async def test() -> None:
        async with stand() as s:
            assert (await s.ask(request(chat_body(), path="http://gateway/v1/chat/completions"))).status == 200
            assert s.engine.requests[0].target == "/v1/chat/completions"

    run(test())


def test_an_offer_of_h2c_is_declined_and_its_body_is_not_lost() -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}

    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            for piece in (10_000, 30):
                data = request(chat_body(), headers=offer) + request(chat_body())
                for start in range(0, len(data), piece):
                    await client.send(data[start : start + piece])
                    await asyncio.sleep(0.001)
                assert [(await client.reply()).status for _ in range(2)] == [200, 200]
            assert all(incoming.json["model"] == "m" for incoming in s.engine.requests)
            assert "upgrade" not in s.engine.requests[0].headers
            client.close()

    run(test())


def test_what_follows_an_offer_of_h2c_keeps_its_own_status() -> None:
    offer = request(chat_body(stream=False), headers={"Connection": "Upgrade", "Upgrade": "h2c"})

    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            await client.send(offer + b"GET /v1/models\r\n\r\n")
            assert [(await client.reply()).status for _ in range(2)] == [200, 505]

    run(test())


def test_connect_and_websocket_are_declined() -> None:
    async def test() -> None:
        async with stand() as s:
            await _refused(s, b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405)
            socket = b"GET /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            await _refused(s, socket, 405, closes=False)

    run(test())


def test_a_body_that_is_no_json_never_reaches_the_engine() -> None:
    async def test() -> None:
        async with stand() as s:
            for body in (b"", b"{", b"[1]", b'{"model": "\xff"}', b"hello"):
                reply = await s.ask(request(body))
                assert reply.status == 400
                assert reply.json["error"]["type"] == "invalid_request_error"
            assert s.engine.requests == []

    run(test())


def test_a_head_that_does_not_get_on_is_408() -> None:
    async def test() -> None:
        async with stand(limits={"header_stall": "100ms"}) as s:
            client = await s.client()
            began = time.monotonic()
            reply = await client.ask(POST + b"Host: a\r\n")
            assert reply.status == 408
            assert time.monotonic() - began < 3
            client.close()

    run(test())


def test_an_upload_that_does_not_get_on_is_408() -> None:
    async def test() -> None:
        async with stand(limits={"upload_stall": "100ms"}) as s:
            client = await s.client()
            reply = await client.ask(POST + b"Host: a\r\nContent-Length: 100\r\n\r\nabc")
            assert reply.status == 408
            client.close()
            assert (await s.record()).died_in == "ingress"

    run(test())


def test_too_many_connections_get_503() -> None:
    async def test() -> None:
        async with stand(limits={"connections": 2}) as s:
            first, second = await s.client(), await s.client()
            await s.until(lambda: len(s.gateway.connections) == 2)
            third = await s.client()
            assert (await third.head()).status == 503
            assert await third.closed()
            assert (await first.ask(request(chat_body()))).status == 200
            for client in (first, second, third):
                client.close()

    run(test())
