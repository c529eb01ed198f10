"""Streams that stand still or trickle in the middle: told once, counted, pressed on the ladder, ended where asked."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tailrace.govern.stream_guard import StreamWatch
from tailrace.model.gap_event import GapEvent
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, finish, token
from tests.wire.stand import run, stand
from tests.wire.test_admin import admin_of


def lane(action: str, limit: str = "200ms") -> list[dict[str, object]]:
    return [{"name": "chat", "gap": {"limit": limit, "action": action}}]


async def _pausing(incoming: Incoming) -> None:
    await incoming.sse(token(), token())
    await asyncio.sleep(0.6)
    await incoming.chunks(token(), finish(), DONE)
    await incoming.end()


@pytest.mark.parametrize("action", ["warn", "degrade"])
def test_a_gap_is_an_event_while_the_stream_lives(action: str) -> None:
    heard: list[GapEvent] = []

    async def test() -> None:
        degradation = {"enabled": True, "signals": {"gaps_per_s": {"enter": 0.1, "leave": 0.01}}}
        async with (
            stand(_pausing, lanes=lane(action), degradation=degradation, backend={"name": "a"}) as s,
            admin_of(s.gateway) as admin,
        ):
            s.gateway.gaps.listeners.append(heard.append)
            asked = asyncio.ensure_future(s.ask(request(chat_body())))
            await s.until(lambda: bool(heard))
            assert not asked.done()
            assert (await asked).body.endswith(DONE)
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            (event,) = heard
            assert (event.request_id, event.lane, event.backend, event.action) == (
                record.request_id, "chat", "a", action,
            )  # fmt: skip
            assert 200e6 <= event.gap_ns < 600e6
            view = (await admin.get("/degradation"))[1]["degradation"][0]
            assert view["gaps"]["total"] == {"chat": {action: 1}}
            assert view["gaps"]["recent"][0]["request_id"] == record.request_id
            ladder = s.gateway.degradation
            assert ladder is not None
            # Only where the lane says so does it press.
            await s.until(lambda: (ladder.ladder.step > 0) == (action == "degrade"))
            if action == "degrade":
                assert ladder.ladder.events[0].signal == "gaps_per_s"

    run(test())


def test_abort_ends_it_with_the_stage_and_the_budget() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        assert await incoming.until_gone() < 1.5

    async def test() -> None:
        async with stand(script, lanes=lane("abort")) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.tokens == 2
            assert reply.end == "chunked"
            assert b"[DONE]" not in reply.body
            assert reply.error is not None
            assert (reply.error["reason"], reply.error["stage"]) == ("gap_limit", "decode")
            assert reply.error["message"] == "the gap budget of 0.2 s is over in stage decode"
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.GAP_LIMIT)
            assert (record.budget, record.died_in, record.output_tokens) == ("gap", "decode", 2)

    run(test())


def test_a_gap_that_ended_between_two_sweeps_is_told_and_ends_nothing() -> None:
    heard: list[GapEvent] = []

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(6):
            await incoming.chunks(token())
            await asyncio.sleep(0.205)
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script, lanes=lane("abort", "190ms")) as s:
            s.gateway.gaps.listeners.append(heard.append)
            reply = await s.ask(request(chat_body()))
            record = await s.record()
            # The sweep comes every 50 ms: some are seen while they last, which ends the stream, the others are told.
            assert heard
            assert all(event.gap_ns >= 190e6 for event in heard)
            ended = record.reason is Reason.GAP_LIMIT
            assert ended or (record.outcome is OutcomeKind.COMPLETED and reply.body.endswith(DONE))
            if not ended:
                assert len(heard) == 5

    run(test())


def test_a_trickle_is_ended_though_it_never_stands_still() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(100):
            await incoming.chunks(token())
            await asyncio.sleep(0.3)

    async def test() -> None:
        pace = [{"name": "chat", "pace": {"min_tokens_per_s": 10, "window": "1s"}}]
        async with stand(script, lanes=pace) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.error is not None
            assert reply.error["reason"] == "slow_stream"
            assert reply.error["message"] == (
                "the stream brought fewer than the 10 tokens/s over 1 s that its lane demands, in stage decode"
            )
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.SLOW_STREAM)
            assert (record.budget, record.died_in) == ("pace", "decode")
            assert 1e9 < record.e2e_ns < 2.5e9

    run(test())


def test_a_brisk_stream_is_left_alone() -> None:
    async def test() -> None:
        demands = [{"name": "chat", "gap": {"limit": "1s", "action": "abort"}, "pace": {"min_tokens_per_s": 1}}]
        async with stand(lambda incoming: incoming.stream(40, gap=0.03), lanes=demands) as s:
            assert (await s.ask(request(chat_body()))).tokens == 40
            assert (await s.record()).outcome is OutcomeKind.COMPLETED
            assert not s.gateway.gaps.counts

    run(test())


def test_nothing_of_a_watched_request_waits_for_the_collector() -> None:
    async def test() -> None:
        async with stand(_pausing, lanes=lane("warn")) as s:
            gc.collect()
            gc.disable()
            try:
                assert (await s.ask(request(chat_body()))).status == 200
                await s.record()
                await s.until(lambda: not any(isinstance(one, StreamWatch) for one in gc.get_objects()), within=2)
            finally:
                gc.enable()

    run(test())


def test_an_answer_in_one_piece_has_no_gaps() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.5)
        await incoming.completion()

    async def test() -> None:
        async with stand(script, lanes=lane("abort")) as s:
            assert (await s.ask(request(chat_body(stream=False)))).status == 200

    run(test())
