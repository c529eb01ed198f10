"""Ids: ours is unique, whatever clients send; vLLM for one takes two requests of one id and cannot tell them apart."""

from __future__ import annotations

import asyncio

from tests.wire.client import chat_body, request
from tests.wire.scripted import Incoming
from tests.wire.stand import run, stand


def test_duplicate_request_id() -> None:
    both = asyncio.Event()
    seen: list[str] = []

    async def script(incoming: Incoming) -> None:
        seen.append(incoming.headers["x-request-id"])
        if len(seen) == 2:
            both.set()
        await both.wait()
        await incoming.stream()

    async def test() -> None:
        async with stand(script) as s:
            ask = request(chat_body(), headers={"x-request-id": "the-same"})
            replies = await asyncio.gather(s.ask(ask), s.ask(ask))
            assert {reply.status for reply in replies} == {200}
            assert len(set(seen)) == 2, "both were with the engine at once, under ids of their own"
            assert "the-same" not in seen
            await s.record(2)
            assert {record.request_id for record in s.records.all} == set(seen)
            assert {record.client_request_id for record in s.records.all} == {"the-same"}

    run(test())
