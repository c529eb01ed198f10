"""The engine's rules, seen from outside: knobs at run time, priority, the stall that unchunked prefill makes."""

from __future__ import annotations

import asyncio

import pytest

from tests.simserve.serving import CHAT, chat, events, run, streamed, until


def test_knobs_are_read_and_changed_while_it_runs():
    async def scenario(server, session):
        async with session.get("/knobs") as response:
            before = await response.json()
        change = {"enable_chunked_prefill": False, "max_num_batched_tokens": 512}
        async with session.post("/knobs", json=change) as response:
            assert response.status == 200
            after = await response.json()
        assert after == before | change
        assert server.engine.knobs.max_num_batched_tokens == 512
        async with session.get("/knobs") as response:
            assert await response.json() == after

    run(scenario)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"{", "body", "the body is no JSON"),
        (b"[1]", None, "the body must be a JSON object of knobs"),
        (b'{"chunked": true}', "chunked", "there is no knob 'chunked'"),
        (b'{"max_num_seqs": "many"}', "max_num_seqs", "Expected `int`, got `str`"),
        (b'{"num_gpu_blocks": 1}', "num_gpu_blocks", "fixed at start"),
        (b'{"max_num_batched_tokens": 3}', "max_num_batched_tokens", "less than max_num_seqs"),
    ],
)
def test_bad_knobs_are_refused_and_change_nothing(body, param, message):
    async def scenario(server, session):
        before = server.knobs
        async with session.post("/knobs", data=body) as response:
            error = (await response.json())["error"]
            assert response.status == 400
        assert error["param"] == param
        assert message in error["message"]
        assert server.knobs == before == server.engine.knobs

    run(scenario)


def longest_gap(*, chunked: bool) -> float:
    """The longest wait (s) between two tokens of a chat while a long document arrives, by the engine's clock."""

    async def scenario(server, session):
        async with session.post("/knobs", json={"enable_chunked_prefill": chunked}) as response:
            assert response.status == 200
        talk = await session.post(CHAT, json=streamed("short", max_tokens=150))
        await until(lambda: server.engine.running == 1)
        document = await session.post(CHAT, json=streamed("doc", max_tokens=2, tailrace_prompt_tokens=7500))
        await events(document)
        await events(talk)
        histogram = server.metrics._histograms["vllm:inter_token_latency_seconds"]
        out.append(max(bound for bound, count in zip(histogram.bounds, histogram.counts, strict=False) if count))

    out: list[float] = []
    run(scenario, time_scale=1.0, long_prefill_token_threshold=512, max_num_batched_tokens=8192)
    return out[0]


def test_unchunked_prefill_stalls_every_stream_and_chunked_does_not():
    assert longest_gap(chunked=False) >= 0.4
    assert longest_gap(chunked=True) <= 0.1


@pytest.mark.parametrize("how", ["body", "header"])
def test_priority_overtakes_in_the_queue(how):
    async def scenario(server, session):
        order: list[str] = []

        async def ask(name: str, priority: int) -> None:
            body = streamed(name, max_tokens=5)
            headers = {}
            if how == "body":
                body["priority"] = priority
            else:
                # The header wins over the body.
                body["priority"] = -priority
                headers["X-Vllm-Priority"] = str(priority)
            async with session.post(CHAT, json=body, headers=headers) as response:
                await events(response)
            order.append(name)

        running = asyncio.ensure_future(ask("running", 0))
        await until(lambda: server.engine.running == 1)
        late = [asyncio.ensure_future(ask(name, priority)) for name, priority in (("batch", 10), ("urgent", -5))]
        await asyncio.gather(running, *late)
        assert order == ["running", "urgent", "batch"]

    run(scenario, max_num_seqs=1, policy="priority", time_scale=1.0)


def test_a_small_cache_preempts_and_says_so():
    async def scenario(server, session):
        bodies = [chat(f"p{i}", tailrace_prompt_tokens=300, max_tokens=200, ignore_eos=True) for i in range(4)]
        responses = await asyncio.gather(*(session.post(CHAT, json=body) for body in bodies))
        for response in responses:
            assert (await response.json())["usage"]["completion_tokens"] == 200
        assert server.engine.counters.preemptions > 0
        assert server.engine.kv.free == server.engine.kv.total == 100

    run(scenario, num_gpu_blocks=100)


def test_a_late_loop_does_not_accumulate():
    async def scenario(server, session):
        import time

        loop = asyncio.get_running_loop()
        begin = loop.time()
        body = streamed(max_tokens=100, stream_options={"include_usage": True})
        response = await session.post(CHAT, json=body)
        await until(lambda: server.engine.running == 1)
        for _ in range(15):
            time.sleep(0.06)  # noqa: ASYNC251  (the loop is busy elsewhere)
            await asyncio.sleep(0)
        metrics = (await events(response))[-2]["metrics"]
        took = (loop.time() - begin) * 1000
        engine = metrics["time_to_first_token_ms"] + metrics["generation_time_ms"]
        # A hundred steps of 11.8 ms each, whatever the loop did; were the schedule relative, fifteen blocked
        # stretches of 60 ms would add most of 900 ms.
        assert 1170 < engine < 1200
        assert engine - 1 < took < engine + 600

    run(scenario, time_scale=1.0)


def test_a_change_nested_without_end_is_refused():
    async def scenario(server, session):
        async with session.post("/knobs", data=b"[" * 5000) as response:
            assert response.status == 400

    run(scenario)
