"""The scripted upstream on real sockets: what it stamps is what a raw client reads."""

import asyncio
import json
import sys
import time

from tailrace.model.thresholds import MS
from tailrace.simserve.scenarios import StepKind, raw_plan
from tailrace.testing import ScriptedUpstream


def request(model="fast", *, path="/v1/chat/completions", tokens=10, stream=True, request_id="r-1"):
    asked = {"model": model, "stream": stream, "max_tokens": tokens, "stream_options": {"include_usage": True}}
    asked |= {"messages": [{"role": "user", "content": "hello there"}]} if "chat" in path else {"prompt": "hello"}
    body = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-request-id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def read_answer(reader):
    """(head, body, reads) of one answer; `reads` are (stamp, bytes) pairs. A cut answer ends with the connection."""
    data, reads = b"", []
    while True:
        piece = await reader.read(65536)
        if not piece:
            break
        reads.append((time.monotonic_ns(), piece))
        data += piece
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            continue
        length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if length and len(rest) >= int(length[0].split(b":")[1]):
            break
        if not length and data.endswith(b"0\r\n\r\n"):
            break
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest, reads


async def ask(upstream, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
    try:
        writer.write(data)
        return await read_answer(reader)
    finally:
        writer.close()


def test_stamps_stand_before_the_bytes_arrive():
    async def scene():
        async with ScriptedUpstream() as upstream:
            _, _, reads = await ask(upstream, request("fast", tokens=12))
            await upstream.settled(1)
            return upstream.truths[0], reads

    truth, reads = asyncio.run(scene())
    assert (truth.ending, truth.tokens, truth.said_tokens, truth.request_id) == ("complete", 12, 12, "r-1")
    for event in truth.token_events():
        number = truth.token_events().index(event)
        arrived = next(stamp for stamp, data in reads if b" t%03d" % number in data)
        assert truth.origin_ns + event.sent_ns <= arrived
        assert event.sent_ns >= event.planned_ns


def test_a_connection_is_kept_and_requests_are_numbered():
    async def scene():
        async with ScriptedUpstream() as upstream:
            reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
            for number in range(3):
                writer.write(request(request_id=f"r-{number}", tokens=2))
                head, body, _ = await read_answer(reader)
                assert head.startswith(b"HTTP/1.1 200")
                assert b"data: [DONE]" in body
            writer.close()
            await upstream.settled(3)
            return [(truth.index, truth.request_id) for truth in upstream.truths]

    assert asyncio.run(scene()) == [(0, "r-0"), (1, "r-1"), (2, "r-2")]


def test_a_cut_stream_has_no_end():
    async def scene():
        async with ScriptedUpstream() as upstream:
            await ask(upstream, request("drop", tokens=30))
            _, body, _ = await ask(upstream, request("drop", tokens=30))
            await upstream.settled(2)
            return upstream.truths[1], body

    truth, body = asyncio.run(scene())
    assert (truth.ending, truth.tokens, truth.said_tokens) == ("cut", 21, None)
    assert b"t020" in body
    assert b"t021" not in body
    assert b"[DONE]" not in body
    assert not body.endswith(b"0\r\n\r\n")


def test_an_event_cut_in_two_is_stamped_with_its_second_half():
    async def scene():
        async with ScriptedUpstream() as upstream:
            await ask(upstream, request("split", tokens=2))
            await upstream.settled(1)
            return upstream.truths[0]

    events = asyncio.run(scene()).token_events()
    assert all(event.sent_ns - event.planned_ns >= 10 * MS for event in events)


def test_a_client_that_leaves_is_noticed():
    async def scene():
        async with ScriptedUpstream() as upstream:
            reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
            writer.write(request("plain", tokens=200))
            await reader.readuntil(b"t001")
            writer.transport.abort()
            await upstream.settled(1)
            return upstream.truths[0]

    truth = asyncio.run(scene())
    assert truth.ending == "client_gone"
    assert truth.tokens < 200


def test_other_answers():
    async def scene():
        async with ScriptedUpstream() as upstream:
            models = await ask(upstream, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            lost = await ask(upstream, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            broken = await ask(upstream, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]")
            garbage = await ask(upstream, b"\x00\x01 nonsense\r\n\r\n")
            whole = await ask(upstream, request("fast", path="/v1/completions", tokens=3, stream=False))
            truth = await ask(upstream, b"GET /truth HTTP/1.1\r\nHost: x\r\n\r\n")
            return models, lost, broken, garbage, whole, truth

    models, lost, broken, garbage, whole, truth = asyncio.run(scene())
    assert len(json.loads(models[1])["data"]) == 22
    assert lost[0].startswith(b"HTTP/1.1 404")
    assert broken[0].startswith(b"HTTP/1.1 400")
    assert garbage[0].startswith(b"HTTP/1.1 400")
    assert json.loads(whole[1])["usage"]["completion_tokens"] == 3
    assert json.loads(truth[1])["said_tokens"] == 3


def test_a_plan_of_raw_bytes():
    async def scene():
        plan = raw_plan([(0, b"data: a"), (5, b"bc\n\n")], cut=True)
        async with ScriptedUpstream(lambda _: plan) as upstream:
            _, body, _ = await ask(upstream, request())
            await upstream.settled(1)
            return body, upstream.truths[0]

    body, truth = asyncio.run(scene())
    assert body == b"7\r\ndata: a\r\n4\r\nbc\n\n\r\n"
    assert [event.kind for event in truth.events] == [StepKind.RAW, StepKind.RAW]
    assert truth.ending == "cut"


def test_it_runs_alone_and_ends_on_a_signal(start_child):
    child = start_child(sys.executable, "-m", "tailrace.simserve.scripted").wait_ready()
    assert child.ready["server"].startswith("tailrace-simulated-truth/")
    assert child.stop() == 0
