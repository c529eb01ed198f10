"""Several engines, some of which fail: retries, breakers, affinity, slow ones, and a reload that changes the set."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from tailrace.gateway.config import config_from, to_plain
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import RawClient, Reply, chat_body, request
from tests.wire.scripted import SSE_HEAD, Incoming, Script, ScriptedEngine, event, token
from tests.wire.stand import Stand, run, stand
from tests.wire.test_admin import admin_of
from tests.wire.test_backends import several

PROMPT = "You are a careful assistant. " * 60
"""More than the 256 tokens of a prompt's head."""


async def _fine(incoming: Incoming) -> None:
    if incoming.json.get("stream"):
        await incoming.stream()
    else:
        await incoming.completion()


def _failing(status: int, *, first: int = 1 << 30, extra: bytes = b"") -> Script:
    served = 0

    async def script(incoming: Incoming) -> None:
        nonlocal served
        served += 1
        if served <= first:
            await incoming.reply({"error": {"message": "no"}}, status, extra=extra)
        else:
            await _fine(incoming)

    return script


def _with(engines: Sequence[ScriptedEngine], *scripts: Script) -> None:
    for engine, script in zip(engines, scripts, strict=True):
        engine.script = script


def _counts(engines: Sequence[ScriptedEngine]) -> list[int]:
    return [len(engine.requests) for engine in engines]


async def _many(
    s: Stand, count: int, *, at_once: int = 8, body: bytes | None = None, every: float = 0.0
) -> list[Reply]:
    """`count` requests over some connections, `every` so many seconds on each."""
    left, replies = count, []

    async def one() -> None:
        nonlocal left
        client = await s.client()
        while left > 0:
            left -= 1
            replies.append(await client.ask(request(body or chat_body(stream=False))))
            await asyncio.sleep(every)
        client.close()

    await asyncio.gather(*(one() for _ in range(at_once)))
    return replies


# -- retries


def test_the_place_of_a_request_follows_it_to_the_engine_that_serves_it() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def waits(incoming: Incoming) -> None:
            await go.wait()
            await _fine(incoming)

        async with several(2, _failing(500), engine_room={}) as (s, engines):
            engines[1].script = waits
            s.gateway.backends.named("b").standing.tokens = 1_000_000  # the first attempt goes to `a`
            asked = asyncio.create_task(s.ask(request(chat_body(stream=False))))
            await s.until(lambda: len(engines[1].requests) == 1)
            held = s.gateway.lanes.admission._rooms._in_flight
            assert held == {"a": 0, "b": 1}
            go.set()
            assert (await asked).status == 200
            await s.record()
            assert held == {"a": 0, "b": 0}
            s.gateway.backends.named("b").standing.tokens -= 1_000_000

    run(test())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_one_error_is_made_good_by_another_engine(status: int, *, stream: bool) -> None:
    async def test() -> None:
        async with several(2, _failing(status, first=1)) as (s, engines):
            reply = await s.ask(request(chat_body(stream=stream)))
            assert (reply.status, sum(_counts(engines))) == (200, 2)
            record = await s.record()
            assert (record.outcome, record.attempts, record.retries) == (OutcomeKind.COMPLETED, 2, 1)
            assert 0 < record.retry_wait_ns <= record.queue_ns
            served = next(engine for engine in engines if engine.url == s.gateway.backends.named(record.backend).url)
            assert served.requests[-1].at == max(one.at for engine in engines for one in engine.requests)

    run(test())


def test_an_error_as_the_first_event_of_a_stream_is_made_good_too() -> None:
    served = 0

    async def script(incoming: Incoming) -> None:
        nonlocal served
        served += 1
        if served == 1:
            await incoming.sse(event({"error": {"message": "currently busy and cannot accept", "code": 503}}))
            await incoming.end()
        else:
            await incoming.stream()

    async def test() -> None:
        async with several(2, script) as (s, engines):
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.tokens, sum(_counts(engines))) == (200, 2, 2)
            assert b"busy" not in reply.body
            record = await s.record()
            assert (record.outcome, record.attempts, record.output_tokens) == (OutcomeKind.COMPLETED, 2, 2)

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_all_500(*, stream: bool) -> None:
    """At most three attempts, each at another engine, within two seconds."""

    async def test() -> None:
        async with several(4, _failing(500)) as (s, engines):
            began = time.monotonic()
            reply = await s.ask(request(chat_body(stream=stream)))
            assert time.monotonic() - began <= 2
            assert (reply.status, reply.json["error"]["message"]) == (500, "no")
            assert sorted(_counts(engines)) == [0, 1, 1, 1]
            assert (await s.record()).attempts == 3

    run(test())


def test_all_429_reach_the_client_with_their_retry_after_and_nobody_is_asked_twice() -> None:
    async def test() -> None:
        async with several(2, _failing(429, extra=b"Retry-After: 7\r\n")) as (s, engines):
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, reply.headers["retry-after"]) == (429, "7")
            assert _counts(engines) == [1, 1]
            assert (await s.record()).outcome is OutcomeKind.REJECTED

    run(test())


def test_a_retry_after_that_fits_is_waited_for() -> None:
    async def test() -> None:
        answering = _failing(429, first=1, extra=b"Retry-After: 1\r\n")
        async with stand(answering, retry={"same_backend": True}) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, len(s.engine.requests)) == (200, 2)
            first, second = (incoming.at for incoming in s.engine.requests)
            assert 1.0 <= second - first < 1.5
            record = await s.record()
            assert (record.attempts, record.retries) == (2, 1)
            assert record.retry_wait_ns >= 1e9

    run(test())


def test_one_that_does_not_fit_is_passed_on_at_once() -> None:
    async def test() -> None:
        async with stand(_failing(503, extra=b"Retry-After: 7\r\n"), retry={"same_backend": True}) as s:
            began = time.monotonic()
            reply = await s.ask(request(chat_body(stream=False)))
            assert time.monotonic() - began < 1
            assert (reply.status, reply.headers["retry-after"], len(s.engine.requests)) == (503, "7", 1)

    run(test())


def test_an_engine_that_says_when_to_come_back_gets_nothing_until_then() -> None:
    async def test() -> None:
        async with several(2, _fine) as (s, engines):
            _with(engines, _failing(503, first=1, extra=b"Retry-After: 1\r\n"), _fine)
            while not engines[0].requests:
                assert (await s.ask(request(chat_body(stream=False)))).status == 200
            asked = time.monotonic()
            await _many(s, 40)
            assert time.monotonic() - asked < 0.9
            assert len(engines[0].requests) == 1
            await asyncio.sleep(1.05 - (time.monotonic() - asked))
            await _many(s, 60)
            assert len(engines[0].requests) > 1

    run(test())


def test_an_engine_that_nobody_answers_for_costs_no_client_anything() -> None:
    async def test() -> None:
        async with several(2, _fine) as (s, engines):
            await s.until(lambda: all(backend.engine.reachable for backend in s.gateway.backends))
            engines[0]._server.close()  # the port refuses from now on, and no scrape has said so
            replies = await _many(s, 30)
            assert {reply.status for reply in replies} == {200}
            assert _counts(engines)[1] == 30
            await s.until(lambda: len(s.records.all) == 30)
            assert max(record.attempts for record in s.records.all) == 2

    run(test())


async def _cut(incoming: Incoming) -> None:
    incoming.abort()


def test_what_cut_two_engines_short_meets_no_third() -> None:
    """It may be the request that kills them."""

    async def test() -> None:
        async with several(3, _cut) as (s, engines):
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, reply.json["error"]["reason"]) == (502, "stream_cut")
            assert sum(_counts(engines)) == 2

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_cut_before_the_first_byte_is_made_good(*, stream: bool) -> None:
    async def test() -> None:
        async with several(2, _fine, retry={"reserve": 6}) as (s, engines):
            _with(engines, _cut, _fine)
            for number in range(6):
                reply = await s.ask(request(chat_body(stream=stream)))
                assert (reply.status, reply.end) == (200, "chunked" if stream else "length"), number

    run(test())


def test_nothing_is_sent_again_once_a_byte_has_left() -> None:
    async def half(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        incoming.abort()

    async def test() -> None:
        async with several(2, half) as (s, engines):
            reply = await s.ask(request(chat_body()))
            assert (reply.tokens, reply.error["reason"]) == (2, "stream_cut")
            assert sum(_counts(engines)) == 1

    run(test())


def test_an_unread_post_is_not_sent_twice() -> None:
    """Nobody knows what a path that is only passed through does."""

    async def test() -> None:
        async with several(2, _failing(500), passthrough=["/own/*"]) as (s, engines):
            assert (await s.ask(request(b"{}", path="/own/thing"))).status == 500
            assert sum(_counts(engines)) == 1
            assert (await s.ask(request(method="GET", path="/own/thing"))).status == 500
            assert sum(_counts(engines)) == 3

    run(test())


def test_a_client_that_leaves_while_a_retry_waits_is_not_sent() -> None:
    async def test() -> None:
        answering = _failing(503, extra=b"Retry-After: 1\r\n")
        async with stand(answering, retry={"same_backend": True}) as s:
            client = await s.client()
            await client.send(request(chat_body(stream=False)))
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.05)
            client.abort()
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
            await asyncio.sleep(1.1)
            assert len(s.engine.requests) == 1

    run(test())


def test_a_storm_gets_few_more_attempts_than_there_are_requests() -> None:
    """Half of all attempts fail, and every request may be tried three times: the budget holds."""
    count = 0

    async def half(incoming: Incoming) -> None:
        nonlocal count
        count += 1
        await (_fine(incoming) if count % 2 else incoming.reply({"error": {"message": "no"}}, 500))

    async def test() -> None:
        # Without breakers, which would help: here the budget has to do it alone.
        async with several(3, half, breaker={"enabled": False}) as (s, engines):
            replies = await _many(s, 400, every=0.02)
            assert sum(_counts(engines)) <= 1.2 * 400
            assert Counter(reply.status for reply in replies)[200] >= 200
            view = s.gateway.backends.balancing.whole_view(time.monotonic_ns())
            assert view["retries_total"] == sum(_counts(engines)) - 400
            assert view["retries_denied_total"] > 0

    run(test())


# -- leaving an engine alone


def test_breaker() -> None:
    """Thirty failing requests cost at most 33 attempts; healed engines answer at once, and soon all of them."""

    async def test() -> None:
        async with several(3, _failing(500, first=1 << 30)) as (s, engines):
            replies = await _many(s, 30)
            assert {reply.status for reply in replies} == {500}
            assert sum(_counts(engines)) <= 33
            _with(engines, _fine, _fine, _fine)
            healed = time.monotonic()
            assert (await s.ask(request(chat_body(stream=False)))).status == 200
            assert time.monotonic() - healed < 1
            while any(backend.standing.breaker.opened for backend in s.gateway.backends):
                assert (await s.ask(request(chat_body(stream=False)))).status == 200
            assert time.monotonic() - healed < 4  # a tenth of the requests are probes, two a second at most

    run(test())


def test_a_failing_engine_of_three_is_left_alone_and_comes_back() -> None:
    async def test() -> None:
        async with several(3, _fine) as (s, engines):
            engines[0].script = _failing(500)
            replies = await _many(s, 200)
            assert Counter(reply.status for reply in replies)[200] >= 190
            assert len(engines[0].requests) <= 5 + 8 + 4  # until it opens, those at once, and a probe each half second
            async with admin_of(s.gateway) as admin:
                _, view = await admin.get("/backends")
                standing = {one["name"]: one for one in view["backends"]}
                assert standing["a"]["breaker"]["opened_total"] == 1
                assert standing["a"]["breaker"]["state"] in ("open", "half_open")
                assert standing["b"]["breaker"]["state"] == "closed"
                assert standing["a"]["retries_total"] >= 3
                assert view["balance"]["retry_budget_left"] >= 0
            engines[0].script = _fine
            before, healed = len(engines[0].requests), time.monotonic()
            while len(engines[0].requests) == before:
                await _many(s, 10, at_once=2)
            assert time.monotonic() - healed < 1
            await _many(s, 5)
            assert s.gateway.backends.named("a").standing.breaker.opened is False

    run(test())


def test_a_healed_engine_is_known_by_its_first_token_not_by_the_streams_end() -> None:
    go = asyncio.Event()

    async def long(incoming: Incoming) -> None:
        await incoming.sse(token())
        await go.wait()
        await incoming.end()

    async def test() -> None:
        async with stand(_failing(500), retry={"same_backend": True, "attempts": 1}) as s:
            await _many(s, 6)
            breaker = s.gateway.backends.first.standing.breaker
            assert breaker.opened
            s.engine.script = long
            client = await s.client()
            await client.send(request(chat_body()))
            await client.head()
            await s.until(lambda: not breaker.opened)
            go.set()
            await s.until(lambda: not s.gateway.in_flight)

    run(test())


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_refusals_open_no_breaker(status: int) -> None:
    async def test() -> None:
        async with several(2, _failing(status), retry={"attempts": 1}) as (s, _):
            replies = await _many(s, 40)
            assert {reply.status for reply in replies} == {status}
            assert not any(backend.standing.breaker.opened for backend in s.gateway.backends)

    run(test())


# -- whom


def test_a_prompts_head_goes_to_one_engine_and_other_heads_to_others() -> None:
    async def test() -> None:
        async with several(3, _fine, balance={"policy": "prefix"}) as (s, engines):
            for head in range(24):
                for turn in range(3):
                    messages = [
                        {"role": "system", "content": f"{head} {PROMPT}"},
                        {"role": "user", "content": f"turn {turn}"},
                    ]
                    await s.ask(request(chat_body(stream=False, messages=messages)))
            where: dict[str, set[int]] = {}
            for index, engine in enumerate(engines):
                for incoming in engine.requests:
                    where.setdefault(incoming.json["messages"][0]["content"], set()).add(index)
            assert len(where) == 24
            assert all(len(places) == 1 for places in where.values())
            assert min(_counts(engines)) >= 6
            view = s.gateway.backends.balancing.whole_view(time.monotonic_ns())
            assert (view["affinity_asked_total"], view["affinity_met_total"]) == (72, 72)

    run(test())


def test_a_session_stays_with_its_engine_and_moves_while_that_is_drained() -> None:
    async def ask(s: Stand, session: str) -> str:
        await s.ask(request(chat_body(stream=False), headers={"X-Session-Id": session}))
        return s.records.all[-1].backend

    async def test() -> None:
        async with several(3, _fine) as (s, _):
            homes = {f"s{number}": await ask(s, f"s{number}") for number in range(12)}
            assert len(set(homes.values())) == 3
            for session, home in homes.items():
                assert await ask(s, session) == home
            backend = s.gateway.backends.named("a")
            backend.engine.drain(on=True)
            for session, home in homes.items():
                found = await ask(s, session)
                assert found == home if home != "a" else found != "a"
            backend.engine.drain(on=False)
            assert {session: await ask(s, session) for session in homes} == homes

    run(test())


def test_long_prompts_are_kept_away_and_weights_are_kept() -> None:
    async def test() -> None:
        async with several(3, _slowly) as (s, engines):
            plain = to_plain(s.gateway.config)
            plain["backends"][0]["max_prompt_tokens"] = 100
            plain["backends"][2]["weight"] = 2.0
            s.gateway.reconfigure(config_from(plain))  # no restart
            await _many(s, 12, at_once=12, body=chat_body(stream=False, messages=[{"role": "user", "content": PROMPT}]))
            assert len(engines[0].requests) == 0
            assert len(engines[2].requests) == pytest.approx(8, abs=1)
            await _many(s, 12, at_once=12)
            assert len(engines[0].requests) == pytest.approx(3, abs=1)
            assert len(engines[2].requests) == pytest.approx(14, abs=2)

    run(test())


async def _slowly(incoming: Incoming) -> None:
    await asyncio.sleep(0.4)
    await _fine(incoming)


def test_outstanding_work_is_what_history_lets_expect_not_what_the_client_allows() -> None:
    async def test() -> None:
        async with several(2, _fine) as (s, engines):
            await _many(s, 40, body=chat_body(stream=False, max_tokens=4000))
            await s.until(lambda: len(s.records.all) == 40)
            for engine in engines:
                engine.script = _slowly
            client = await s.client()
            await client.send(request(chat_body(stream=False, max_tokens=4000)))
            await s.until(lambda: any(backend.requests for backend in s.gateway.backends))
            assert 0 < sum(backend.tokens for backend in s.gateway.backends) < 100
            assert (await client.reply()).status == 200
            client.close()

    run(test())


def test_equal_engines_are_loaded_evenly_and_the_skew_is_shown() -> None:
    async def paced(incoming: Incoming) -> None:
        tokens = incoming.json["max_tokens"]
        await asyncio.sleep(tokens / 4000)
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "length"}
        counts = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
        await incoming.reply({"object": "chat.completion", "choices": [choice], "usage": counts})

    async def test() -> None:
        async with several(3, paced) as (s, engines):
            for backend in s.gateway.backends:
                backend.standing.ramp_ns = 1
            sizes = [40, 40, 400, 40, 1600, 40, 200, 40]

            async def one(number: int) -> None:
                client = await s.client()
                for turn in range(6):
                    body = chat_body(stream=False, max_tokens=sizes[(number + turn) % len(sizes)])
                    await client.ask(request(body))
                client.close()

            load = asyncio.gather(*(one(number) for number in range(48)))
            skew = s.gateway.backends.balancing.skew
            while not load.done():
                skew.sample([backend.standing for backend in s.gateway.backends], time.monotonic_ns())
                await asyncio.sleep(0.01)
            await load
            assert sum(_counts(engines)) == 288
            assert skew.samples > 20
            work = [sum(incoming.json["max_tokens"] for incoming in engine.requests) for engine in engines]
            assert max(work) < 1.4 * sum(work) / 3, (work, _counts(engines))
            async with admin_of(s.gateway) as admin:
                _, view = await admin.get("/backends")
                assert view["balance"]["skew"]["skew_cv"] == pytest.approx(skew.cv, abs=0.2)

    run(test())


def test_an_engine_much_slower_than_its_peers_is_ejected_and_admitted_again() -> None:
    async def lame(incoming: Incoming) -> None:
        await asyncio.sleep(0.3)
        await incoming.stream()

    async def quick(incoming: Incoming) -> None:
        await asyncio.sleep(0.02)
        await incoming.stream()

    async def test() -> None:
        outliers = {"requests": 10, "eject": "1s"}
        # Two choices: with the least work alone a slow engine gets little as it is.
        async with several(3, quick, outliers=outliers) as (s, engines):
            engines[0].script = lame
            slow = s.gateway.backends.named("a").standing
            load = asyncio.ensure_future(_many(s, 4000, at_once=12, body=chat_body()))
            await s.until(lambda: slow.ejected_until > time.monotonic_ns(), within=12)
            assert s.gateway.backends.balancing.ejected[-1].backend == "a"
            s.gateway.look_around(time.monotonic_ns())
            (said,) = [one for one in s.gateway.happenings.view() if one["kind"] == "ejection"]
            assert said["text"].startswith("backend a is out: its ")
            assert abs(said["at_unix_ms"] / 1e3 - time.time()) < 60
            await asyncio.sleep(0.35)
            before = len(engines[0].requests)
            await asyncio.sleep(0.3)
            assert len(engines[0].requests) == before
            engines[0].script = quick
            await s.until(lambda: len(engines[0].requests) > before, within=5)
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            for client in s.clients:
                client.abort()
            await s.until(lambda: not s.gateway.in_flight)

    run(test())


# -- a reload


def _without(s: Stand, *names: str) -> dict:
    plain = to_plain(s.gateway.config)
    plain["backends"] = [backend for backend in plain["backends"] if backend["name"] not in names]
    return plain


def test_a_backend_is_taken_out_and_serves_what_it_has_to_its_end() -> None:
    go = asyncio.Event()

    async def long(incoming: Incoming) -> None:
        await incoming.sse(token())
        await go.wait()
        await incoming.chunks(token(), b"data: [DONE]\n\n")
        await incoming.end()

    async def test() -> None:
        async with several(2, long) as (s, engines):
            clients = [await RawClient.connect(s.gateway.url) for _ in range(2)]
            for client in clients:
                await client.send(request(chat_body()))
                await client.head()
            assert _counts(engines) == [1, 1]
            leaving = s.gateway.backends.named("a")
            s.gateway.reconfigure(config_from(_without(s, "a")))
            assert [backend.name for backend in s.gateway.backends] == ["b"]
            engines[1].script = _fine
            await _many(s, 5)
            assert len(engines[0].requests) == 1
            assert leaving.requests == 1
            go.set()
            for client in clients:
                body = b""
                while (data := await client.next_chunk()) is not None:
                    body += data
                assert body.count(b'"content"') == 2
                assert body.endswith(b"[DONE]\n\n")
                client.close()
            await s.until(lambda: not leaving.pool.open, within=5)
            assert {record.backend for record in s.records.all[:5]} == {"b"}

    run(test())


def test_a_backend_is_taken_in_and_begins_slowly() -> None:
    async def test() -> None:
        async with several(3, _fine) as (s, engines):
            whole = to_plain(s.gateway.config)
            s.gateway.reconfigure(config_from(_without(s, "c")))
            await _many(s, 10)
            assert len(engines[2].requests) == 0
            s.gateway.reconfigure(config_from(whole))
            fresh = s.gateway.backends.named("c")
            assert fresh.standing.share(time.monotonic_ns()) < 0.5
            fresh.standing.since = None  # ten seconds later
            await _many(s, 30)
            assert len(engines[2].requests) > 3

    run(test())


def test_a_name_that_leads_elsewhere_is_another_engine() -> None:
    async def test() -> None:
        async with several(2, _fine) as (s, engines):
            plain = _without(s, "b")
            plain["backends"][0].update(url=engines[1].url, metrics_url=engines[1].url + "/metrics")
            s.gateway.reconfigure(config_from(plain))
            await _many(s, 5)
            assert _counts(engines) == [0, 5]

    run(test())


def test_a_gap_that_a_lane_forbids_speaks_against_the_engine() -> None:
    async def halting(incoming: Incoming) -> None:
        await incoming.sse(token())
        await asyncio.sleep(0.4)
        await incoming.chunks(token(), b"data: [DONE]\n\n")
        await incoming.end()

    async def test() -> None:
        lanes = [{"name": "default", "gap": {"limit": "100ms"}}]
        async with several(2, halting, lanes=lanes) as (s, _):
            assert (await s.ask(request(chat_body()))).tokens == 2
            record = await s.record()
            watched = s.gateway.backends.balancing.outliers._watched
            assert watched[record.backend].gaps() >= 1
            assert {name for name, one in watched.items() if one.gaps()} == {record.backend}

    run(test())


@pytest.mark.parametrize("how", ["error", "cut_after_head"])
def test_those_who_follow_an_answer_get_the_attempt_that_succeeds(how: str) -> None:
    """A cached route: identical requests wait for the one that was sent, whichever engine answers it in the end."""
    go = asyncio.Event()

    async def fails(incoming: Incoming) -> None:
        await go.wait()
        if how == "error":
            await incoming.reply({"error": {"message": "no"}}, 500)
        else:
            await incoming.send(SSE_HEAD)
            await asyncio.sleep(0.05)
            incoming.abort()

    async def test() -> None:
        async with several(2, _fine, cache={"routes": [{}]}) as (s, engines):
            engines[0].script = fails
            for backend in s.gateway.backends:
                backend.standing.tokens += 0 if backend.name == "a" else 1000  # so the first goes there
            body = request(chat_body(temperature=0))
            asked = [asyncio.ensure_future(s.ask(body)) for _ in range(3)]
            await s.until(lambda: bool(engines[0].requests))
            s.gateway.backends.named("b").standing.tokens -= 1000
            go.set()
            replies = await asyncio.gather(*asked)
            assert [(reply.status, reply.tokens, reply.error) for reply in replies] == [(200, 2, None)] * 3
            if how == "error":
                assert len({reply.body for reply in replies}) == 1
                assert sum(_counts(engines)) == 2
            # Once a head was taken down that led to nothing, those who follow go their own ways.

    run(test())
