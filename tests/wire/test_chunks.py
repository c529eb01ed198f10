"""The engine's chunks as they are cut, spelled and joined by servers: what the client reads is the same."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.model.outcome import OutcomeKind
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, finish, token
from tests.wire.stand import run, stand

TOKENS = [token(f"word {index} ") for index in range(12)]
WHOLE = b"".join(TOKENS) + finish() + DONE
_PAUSE = 0.002


def _spelled(event: bytes, how: str) -> bytes:
    size = len(event)
    head = {
        "lower": b"%x",
        "upper": b"%X",
        "zeros": b"000%x",
        "extension": b"%x;name=value",
    }[how] % size
    return b"%b\r\n%b\r\n" % (head, event)


@pytest.mark.parametrize("how", ["lower", "upper", "zeros", "extension"])
def test_however_a_chunk_size_is_spelled(how: str) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for event in (*TOKENS, finish(), DONE):
            await incoming.send(_spelled(event, how))
            await asyncio.sleep(_PAUSE)
        await incoming.end()

    _expect_whole(script)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 60, -1, -2, -3])
def test_a_chunk_that_comes_in_two_reads(cut: int) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for event in (*TOKENS, finish(), DONE):
            chunk = _spelled(event, "lower")
            for part in (chunk[:cut], chunk[cut:]):
                await incoming.send(part)
                await asyncio.sleep(_PAUSE)
        await incoming.end()

    _expect_whole(script)


def test_two_chunks_in_one_read_and_one_event_in_two_chunks() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await incoming.send(_spelled(TOKENS[0], "lower") + _spelled(TOKENS[1], "lower"))
        await asyncio.sleep(_PAUSE)
        for event in (*TOKENS[2:], finish(), DONE):
            await incoming.send(_spelled(event[:8], "lower"))
            await asyncio.sleep(_PAUSE)
            await incoming.send(_spelled(event[8:], "lower"))
            await asyncio.sleep(_PAUSE)
        await incoming.end()

    _expect_whole(script)


def test_the_last_chunk_may_lie_in_the_read_of_another_or_come_alone() -> None:
    async def together(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for event in (*TOKENS, finish()):
            await incoming.send(_spelled(event, "lower"))
            await asyncio.sleep(_PAUSE)
        await incoming.send(_spelled(DONE, "lower") + b"0\r\n\r\n")

    async def alone(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for event in (*TOKENS, finish(), DONE):
            await incoming.send(_spelled(event, "lower"))
            await asyncio.sleep(_PAUSE)
        await incoming.send(b"0\r\n\r\n")

    _expect_whole(together)
    _expect_whole(alone)


def test_a_chunk_whose_size_lies_is_no_answer() -> None:
    """One byte more than announced: the stream is cut, and nothing of the surplus is relayed as a token."""

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for event in TOKENS[:4]:
            await incoming.send(_spelled(event, "lower"))
            await asyncio.sleep(_PAUSE)
        event = TOKENS[4]
        await incoming.send(b"%x\r\n%b\r\n" % (len(event) - 1, event))
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body.startswith(b"".join(TOKENS[:4]))
            assert b'"error"' in reply.body
            assert b"[DONE]" not in reply.body
            assert (await s.record()).outcome is OutcomeKind.FAILED

    run(test())


def _expect_whole(script: object) -> None:
    async def test() -> None:
        async with stand(script) as s:  # type: ignore[arg-type]
            client = await s.client()
            for count in (1, 2):  # the second request finds the connection in order
                reply = await client.ask(request(chat_body()))
                assert reply.body == WHOLE
                record = await s.record(count)
                assert record.outcome is OutcomeKind.COMPLETED
                assert record.chunk_gap_count == len(TOKENS) - 1
                assert record.e2e_ns < 1_500_000_000, "the end of the message was not seen"
            assert {incoming.connection for incoming in s.engine.requests} == {s.engine.requests[0].connection}
            client.close()

    run(test())
