"""The edges under whatever hypothesis thinks of: bytes at random, and bytes that are nearly right."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.client import chat_body, request
from tests.wire.fuzz.client_edge import client_edge
from tests.wire.fuzz.engine_edge import PART, engine_edge
from tests.wire.fuzz.stream_edge import stream_edge
from tests.wire.scripted import Incoming, token
from tests.wire.stand import run, stand
from tests.wire.test_engine_framing import DOUBTFUL, SOUND
from tests.wire.test_smuggling import ACCEPTED, REFUSED

PLAN = st.binary(max_size=40)
NOISE = st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b";", b"0", b"\r\n\r\n", b"\xff"]) | st.binary(
    max_size=8
)


def mutated(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """One to four of the seeds in a row, a few of their bytes replaced, cut out or doubled."""

    def change(whole: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for at, size, noise in edits:
            start = at % (len(whole) + 1)
            whole = whole[:start] + noise + whole[start + size :]
        return whole

    edits = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 6), NOISE), max_size=4)
    return st.builds(change, st.lists(st.sampled_from(seeds), min_size=1, max_size=4).map(b"".join), edits)


REQUESTS = [
    *(data for data, _ in REFUSED.values()),
    *ACCEPTED.values(),
    request(b"{}", path="/x"),
    request(method="GET", path="/nowhere"),
    request(b"{}", path="/x", headers={"Expect": "100-continue"}),
    request(b"{}", path="/x", headers={"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}),
    request(b"{}", path="/x", headers={"Connection": "close"}),
]
EVENTS = [
    token(),
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b": comment\n\n",
    b"event: message_start\r\ndata: {}\r\n\r\n",
    b'data: {"error":{"message":"no"}}\n\n',
    b"data: [DONE]\n\n",
    b"\xef\xbb\xbfid: 1\rdata: x\r\r",
]


@given(mutated(REQUESTS) | st.binary(max_size=200), PLAN)
@settings(max_examples=300)
def test_the_clients_edge(data: bytes, plan: bytes) -> None:
    client_edge(data, plan)


@given(mutated([one + PART for one in (*SOUND.values(), *DOUBTFUL.values())]) | st.binary(max_size=200), PLAN)
@settings(max_examples=300)
def test_the_engines_edge(data: bytes, plan: bytes) -> None:
    engine_edge(data, plan)


@given(mutated(EVENTS) | st.binary(max_size=200), PLAN)
@settings(max_examples=300)
def test_the_streams_edge(data: bytes, plan: bytes) -> None:
    stream_edge(data, plan)


def test_no_answer_goes_to_another_request() -> None:
    """Clients that pipeline, drip, leave and stay, over one pool: whoever gets an answer gets his own."""
    dice = random.Random(7)

    async def script(incoming: Incoming) -> None:
        mark = incoming.json["mark"]
        await asyncio.sleep(dice.random() * 0.01)
        fate = dice.random()
        if fate < 0.1:
            incoming.abort()
        elif fate < 0.2:
            await incoming.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}")
            incoming.abort()
        elif incoming.json.get("stream"):
            await incoming.sse(token(mark), token(mark))
            await asyncio.sleep(dice.random() * 0.01)
            await incoming.chunks(b"data: [DONE]\n\n")
            await incoming.end()
        else:
            await incoming.reply({"mark": mark})

    async def client(number: int) -> int:
        got = 0
        for turn in range(4):
            one = await s.client()
            marks = [f"<{number}.{turn}.{index}>" for index in range(dice.randint(1, 4))]
            data = b"".join(request(chat_body(stream=dice.random() < 0.5, mark=mark)) for mark in marks)
            step = dice.choice([1, 50, 100_000]) if number % 5 == 0 else 100_000
            for start in range(0, len(data), step):
                one.writer.write(data[start : start + step])
                if step < 100:
                    await asyncio.sleep(0)
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.02)
                one.abort()
                continue
            try:
                for mark in marks:
                    body = (await one.reply()).body.decode()
                    assert "<" not in body.replace(mark, "")
                    got += mark in body
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            one.abort()
        return got

    async def test() -> None:
        nonlocal s
        async with stand(script) as s:
            got = await asyncio.gather(*(client(number) for number in range(40)))
            assert sum(got) > 100
            await s.until(lambda: not s.gateway.in_flight)
            for incoming in s.engine.requests:
                assert incoming.body.count(b"<") == 1

    s = None
    run(test())
