"""The record keeps what a request was foretold to wait, whether it then waited or was refused."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.client import chat_body, request
from tests.wire.stand import run, stand
from tests.wire.test_foresight import Held, lane


def test_the_record_has_the_wait_that_its_client_was_told() -> None:
    async def test() -> None:
        async with stand(Held(0.3), lanes=[lane(queued=1)]) as s:
            for _ in range(3):
                await s.ask(request(chat_body(stream=False)))
            at_once = s.records.all[-1]
            assert at_once.predicted_wait_ns is None
            first, queued, refused = [await s.client() for _ in range(3)]
            for client in (first, queued):
                await client.send(request(chat_body(stream=False)))
            await s.until(lambda: len(s.gateway.in_flight) == 2)
            await refused.send(request(chat_body(stream=False)))
            told = (await refused.reply()).json["error"]["predicted_wait_ms"]
            await asyncio.gather(first.reply(), queued.reply())
            await s.until(lambda: len(s.records.all) == 6)
            by_status = {record.http_status: record for record in s.records.all[3:] if record.predicted_wait_ns}
            assert set(by_status) == {200, 429}
            assert by_status[429].predicted_wait_ns / 1e6 == pytest.approx(told, abs=0.01)
            waited = by_status[200]
            assert waited.queue_gateway_ns > 100e6
            assert 0 < waited.predicted_wait_ns < 10 * waited.queue_gateway_ns

    run(test())
