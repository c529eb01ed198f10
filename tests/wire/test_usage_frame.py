"""The gateway asks for usage on its own account, and takes out again what the client did not ask for."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, chunk, finish, token, usage
from tests.wire.stand import run, stand


def test_usage_is_asked_for_and_cut_out_again() -> None:
    async def test() -> None:
        async with stand() as s:
            reply = await s.ask(request(chat_body()))
            assert s.engine.requests[0].json["stream_options"] == {"include_usage": True}
            assert reply.body == token() * 2 + finish() + DONE
            record = await s.record()
            assert (record.prompt_tokens, record.output_tokens_source) == (7, "usage")

    run(test())


@pytest.mark.parametrize("options", [{"include_usage": False}, {}, {"continuous_usage_stats": False}])
def test_the_clients_other_stream_options_are_kept(options: dict) -> None:
    async def test() -> None:
        async with stand() as s:
            reply = await s.ask(request(chat_body(stream_options=options, seed=3)))
            seen = s.engine.requests[0].json
            assert seen["stream_options"] == {**options, "include_usage": True}
            assert seen["seed"] == 3
            assert usage(7, 2) not in reply.body

    run(test())


def test_what_the_client_asked_for_it_gets() -> None:
    async def test() -> None:
        async with stand() as s:
            body = chat_body(stream_options={"include_usage": True})
            reply = await s.ask(request(body))
            assert s.engine.requests[0].body == body
            assert usage(7, 2) in reply.body

    run(test())


def test_an_answer_in_one_piece_is_not_touched() -> None:
    async def script(incoming: Incoming) -> None:
        assert "stream_options" not in incoming.json
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            assert "usage" in (await s.ask(request(chat_body(stream=False)))).json

    run(test())


@pytest.mark.parametrize("step", [1, 2, 7, 40, 10_000])
def test_the_frame_is_cut_however_the_bytes_are_split(step: int) -> None:
    whole = token('a "usage" in text') + finish() + usage() + DONE

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for start in range(0, len(whole), step):
            await incoming.send(chunk(whole[start : start + step]))
            if start % 64 == 0:
                await asyncio.sleep(0)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body == token('a "usage" in text') + finish() + DONE
            assert (await s.record()).output_tokens == 2

    run(test())


def test_usage_inside_a_token_frame_stays() -> None:
    both = token(usage={"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8})

    async def script(incoming: Incoming) -> None:
        await incoming.sse(both, finish(), usage(7, 1), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            assert (await s.ask(request(chat_body()))).body == both + finish() + DONE

    run(test())


def test_bodies_of_every_spelling_are_extended_and_stay_json() -> None:
    async def test() -> None:
        async with stand() as s:
            spellings = [
                b'{"stream":true,"model":"m","messages":[]}',
                b' \n\t{ "stream" : true }',
                b'{"stream":true,"model":"\\u00e9 \\"stream_options\\"","messages":[{"role":"user","content":"{"}]}',
                b'{"stream":true,"stream_options":null,"model":"m"}',
            ]
            for count, body in enumerate(spellings):
                assert (await s.ask(request(body))).status == 200
                seen = s.engine.requests[count].json
                wanted = json.loads(body)
                wanted["stream_options"] = {"include_usage": True}
                assert seen == wanted

    run(test())
