"""Every way in which time runs out: the client and the record are told the same stage and the same budget."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tailrace.model.outcome import OutcomeKind
from tests.wire.client import chat_body, request
from tests.wire.scripted import SSE_HEAD, Incoming, token
from tests.wire.stand import run, stand

LONG = {"queue": "9s", "first_token": "9s", "idle": "9s", "total": "15s", "unstreamed_total": "15s"}
DEADLINE = {"X-Deadline-Ms": "300"}


async def silent(incoming: Incoming) -> None:
    await incoming.until_gone()


async def two_tokens_and_silence(incoming: Incoming) -> None:
    await incoming.sse(token(), token())
    await incoming.until_gone()


async def trickle(incoming: Incoming) -> None:
    await incoming.send(SSE_HEAD)
    for _ in range(60):
        await incoming.chunks(token())
        await asyncio.sleep(0.1)


class Case(NamedTuple):
    """What is asked of which lane, and what must be said of it."""

    name: str
    script: Any
    lane: dict[str, Any]
    budget: str
    stage: str
    reason: str
    outcome: OutcomeKind = OutcomeKind.TIMED_OUT
    status: int = 200
    """200: the end came after the head had left, as an error event."""
    stream: bool = True
    headers: Mapping[str, str] = MappingProxyType({})
    taken: bool = False
    """The lane's one place is taken by another request."""


def budgets(**changes: str) -> dict[str, Any]:
    return {"budgets": {**LONG, **changes}}


CANCELLED = OutcomeKind.CANCELLED
CASES = [
    Case("queue", silent, budgets(queue="300ms"), "queue", "queue", "queue_timeout", status=429, taken=True),
    Case("total-in-queue", silent, budgets(total="300ms"), "total", "queue", "total_timeout", status=504, taken=True),
    Case(
        "deadline-in-queue", silent, budgets(), "deadline", "queue", "deadline",
        outcome=CANCELLED, status=504, headers=DEADLINE, taken=True,
    ),
    Case(
        "first-token", silent, budgets(first_token="300ms"), "first_token", "prefill", "first_token_timeout", status=504
    ),
    Case("total-in-prefill", silent, budgets(total="300ms"), "total", "prefill", "total_timeout", status=504),
    Case(
        "deadline-in-prefill", silent, budgets(), "deadline", "prefill", "deadline",
        outcome=CANCELLED, status=504, headers=DEADLINE,
    ),
    Case(
        "unstreamed", silent, budgets(unstreamed_total="300ms"), "unstreamed_total", "prefill", "total_timeout",
        status=504, stream=False,
    ),
    Case(
        "deadline-unstreamed", silent, budgets(), "deadline", "prefill", "deadline",
        outcome=CANCELLED, status=504, stream=False, headers=DEADLINE,
    ),
    Case("idle", two_tokens_and_silence, budgets(idle="300ms"), "idle", "decode", "idle_timeout"),
    Case("total-in-decode", trickle, budgets(total="500ms"), "total", "decode", "total_timeout"),
    Case(
        "deadline-in-decode", trickle, budgets(), "deadline", "decode", "deadline", outcome=CANCELLED, headers=DEADLINE
    ),
    Case(
        "gap", two_tokens_and_silence, {**budgets(), "gap": {"limit": "300ms", "action": "abort"}},
        "gap", "decode", "gap_limit",
    ),
    Case(
        "pace", trickle, {**budgets(), "pace": {"min_tokens_per_s": 50, "window": "1s"}},
        "pace", "decode", "slow_stream",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_says_where_and_why(case: Case) -> None:
    """The budgets are a lane's own; the gateway's would not end it for a long time."""

    async def test() -> None:
        first = {"match": {"header": {"x-lane": "mine"}}, "running": 1, **case.lane}
        lanes = [{"name": "mine", **first}]
        async with stand(case.script, lanes=lanes, budgets=LONG) as s:
            blocker = await s.client()
            if case.taken:
                # Nothing but its client ends it.
                await blocker.send(request(chat_body(stream=False), headers={"X-Lane": "mine"}))
                await s.until(lambda: len(s.engine.requests) == 1)
            headers = {"X-Lane": "mine", **case.headers}
            reply = await s.ask(request(chat_body(stream=case.stream), headers=headers))
            assert reply.status == case.status
            error = reply.error if case.status == 200 else reply.json["error"]
            assert error is not None
            assert (error["reason"], error["stage"]) == (case.reason, case.stage)
            assert f"in stage {case.stage}" in error["message"]
            if case.status == 429:
                assert int(reply.headers["retry-after"]) >= 1
            if case.status == 200:
                assert reply.end == "chunked"
                assert b"[DONE]" not in reply.body
            record = await s.record()
            assert (record.outcome, record.reason.value) == (case.outcome, case.reason)
            assert (record.budget, record.died_in, record.lane) == (case.budget, case.stage, "mine")
            assert record.error == error["message"]
            assert record.e2e_ns < 3e9

    run(test())


def test_a_deadline_cannot_lengthen_any_budget() -> None:
    async def test() -> None:
        async with stand(silent, budgets={**LONG, "first_token": "300ms"}) as s:
            reply = await s.ask(request(chat_body(), headers={"X-Deadline-Ms": "8000"}))
            assert reply.json["error"]["reason"] == "first_token_timeout"

    run(test())


def test_who_is_late_when_his_turn_comes_is_never_sent() -> None:
    """The engine sees one request: the deadline of the second passes while it waits for the first."""

    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.5)
        await incoming.completion()

    async def test() -> None:
        lanes = [{"name": "default", "running": 1}]
        async with stand(script, lanes=lanes, budgets=LONG) as s:
            first = asyncio.ensure_future(s.ask(request(chat_body(stream=False))))
            await s.until(lambda: len(s.engine.requests) == 1)
            late = await s.ask(request(chat_body(stream=False), headers={"X-Deadline-Ms": "250"}))
            assert late.json["error"]["stage"] == "queue"
            assert (await first).status == 200
            await asyncio.sleep(0.1)
            assert len(s.engine.requests) == 1

    run(test())


def test_triton_is_told_how_long_the_client_still_waits() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"model_name": "echo", "outputs": []})

    async def test() -> None:
        async with stand(script, backend={"engine": "triton"}) as s:
            body = b'{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":[1.0]}]}'
            path = "/v2/models/echo/infer"
            await s.ask(request(body, path=path, headers={"X-Deadline-Ms": "4000"}))
            await s.ask(request(body, path=path))
            told, untold = s.engine.requests
            assert 3_000_000 < told.json["parameters"]["timeout"] <= 4_000_000
            assert untold.body == body

    run(test())


def test_answers_in_one_piece_have_thirty_seconds_unless_told_otherwise() -> None:
    async def test() -> None:
        async with stand(silent) as s:
            asked = asyncio.ensure_future(s.ask(request(chat_body(stream=False))))
            await s.until(lambda: len(s.engine.requests) == 1)
            (exchange,) = s.gateway.in_flight.values()
            assert exchange.clock.total_at() - exchange.received == 30_000_000_000
            asked.cancel()

    run(test())
