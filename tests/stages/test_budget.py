"""Budgets: async code is cancelled, sync code is told how long it has, and what was overrun is known."""

import asyncio
import contextlib
import pickle
import socket
import time
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stages import StageTimeout, collect, deadline, remaining, stage
from tailrace.stages.budget import budget_ns
from tailrace.testing import ManualClock

SHORT = 0.03


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [(0.8, 800_000_000), ("800ms", 800_000_000), ("2s", 2 * 10**9), (3, 3 * 10**9), ("1m", 60 * 10**9)],
)
def test_ways_to_write_a_budget(text, nanoseconds):
    assert budget_ns(text) == nanoseconds


@given(st.one_of(st.text(max_size=8), st.floats(max_value=0), st.just(float("nan")), st.just(float("inf"))))
def test_what_is_no_budget_is_refused_or_positive(value):
    with contextlib.suppress(ValueError):  # anything else is a fault
        assert budget_ns(value) > 0


def test_an_async_block_is_cancelled_at_its_budget():
    async def scene():
        with collect() as stages:
            began = time.monotonic()
            said = "stage preprocess.retrieval is over its budget of 0.03 s"
            with pytest.raises(StageTimeout, match=said) as caught, stage("preprocess.retrieval", budget=SHORT):
                await asyncio.sleep(10)
            assert SHORT * 0.9 <= time.monotonic() - began < 2
        return caught.value, stages

    timeout, stages = asyncio.run(scene())
    assert (timeout.stage, timeout.budget_ns, timeout.where) == (
        "preprocess.retrieval",
        30_000_000,
        "preprocess.retrieval",
    )
    assert isinstance(timeout, TimeoutError)
    (span,) = stages.spans
    assert span.over_budget
    assert stages.timeout is timeout
    assert str(pickle.loads(pickle.dumps(timeout))) == str(timeout)


def test_a_budget_holds_outside_of_a_request_too():
    async def scene():
        async with stage("model", budget=SHORT):
            await asyncio.sleep(10)

    with pytest.raises(StageTimeout):
        asyncio.run(scene())


def test_an_outer_budget_names_the_inner_stage_it_fell_into():
    async def scene():
        with collect() as stages:
            try:
                with stage("preprocess", budget=SHORT), stage("preprocess.retrieval", budget="5s"):
                    await asyncio.sleep(10)
            except StageTimeout as timeout:
                return timeout, stages
        return None

    timeout, stages = asyncio.run(scene())
    assert (timeout.stage, timeout.where) == ("preprocess", "preprocess.retrieval")
    assert [span.over_budget for span in stages.spans] == [False, True]


def test_a_budget_never_names_a_stage_that_ran_beside_it():
    async def retrieval():
        with stage("preprocess.retrieval", budget=SHORT):
            await asyncio.sleep(10)

    async def safety():
        await asyncio.sleep(0.005)
        with stage("postprocess.safety"):
            await asyncio.sleep(0.2)

    async def scene():
        with collect() as stages:
            beside = asyncio.ensure_future(safety())
            with pytest.raises(StageTimeout) as caught:
                await retrieval()
            assert stages.innermost == "postprocess.safety"
            await beside
            assert stages.innermost == ""
        return caught.value

    assert asyncio.run(scene()).where == "preprocess.retrieval"


def test_a_cancel_from_outside_is_never_taken_for_a_budget():
    async def work():
        with stage("model", budget=5):
            await asyncio.sleep(10)

    async def scene():
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


def test_a_cancel_that_meets_the_budget_stays_a_cancel():
    async def scene():
        task = asyncio.current_task()

        async def work():
            with stage("model", budget=SHORT):
                inner = asyncio.current_task()
                asyncio.get_running_loop().call_later(SHORT, inner.cancel)
                await asyncio.sleep(10)

        made = asyncio.ensure_future(work())
        with pytest.raises((asyncio.CancelledError, StageTimeout)):
            await made
        assert task.cancelling() == 0
        return made

    made = asyncio.run(scene())
    assert made.done()


def test_what_runs_in_time_is_left_alone():
    async def scene():
        with collect() as stages:
            with stage("preprocess.retrieval", budget=5):
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            assert asyncio.current_task().cancelling() == 0
        return stages

    (span,) = asyncio.run(scene()).spans
    assert not span.over_budget


def test_a_budget_reaches_tasks_that_the_block_waits_for():
    ended = []

    async def child():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ended.append("child")
            raise

    async def scene():
        with stage("preprocess.retrieval", budget=SHORT):
            await asyncio.gather(child(), child())

    with pytest.raises(StageTimeout):
        asyncio.run(scene())
    assert ended == ["child", "child"]


def test_sync_code_overruns_and_that_is_recorded():
    clock = ManualClock()
    with collect(clock) as stages:
        with stage("postprocess.safety", budget="10ms") as safety:
            assert safety.remaining() == remaining() == 0.010
            clock.advance(ms=4)
            assert safety.remaining() == 0.006
            clock.advance(ms=8)
            assert safety.remaining() == 0
        with stage("postprocess.format", budget="10ms"):
            clock.advance(ms=10)
    assert [span.over_budget for span in stages.spans] == [True, False]
    assert stages.timeout is None


def test_time_that_is_left_is_the_least_of_all_budgets_around():
    clock = ManualClock()
    with collect(clock) as stages:
        assert remaining() is deadline() is None
        stages.deadline_ns = clock() + 1_000_000_000
        assert remaining() == 1.0
        with stage("preprocess", budget=0.5):
            clock.advance(ms=100)
            with stage("preprocess.retrieval", budget=2) as inner:
                assert inner.remaining() == remaining() == 0.4
                assert deadline() == inner.deadline() == (clock() + 400_000_000) / 1e9
            with stage("preprocess.rerank", budget=0.1):
                assert remaining() == 0.1
            with stage("decode"):
                assert remaining() == 0.4
    assert remaining() is None


def test_a_clients_timeout_inside_its_stage_is_the_stages():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with (
            collect() as stages,
            pytest.raises(StageTimeout) as caught,
            stage("preprocess.retrieval", budget=SHORT) as retrieval,
            stage("preprocess.retrieval.index"),
        ):
            urllib.request.urlopen(url, timeout=retrieval.remaining())
        assert caught.value.stage == "preprocess.retrieval"
        assert caught.value.where == "preprocess.retrieval.index"
        assert stages.failed_in == "preprocess.retrieval.index"


def test_an_error_long_before_the_budget_is_no_timeout_of_it():
    with collect() as stages, pytest.raises(TimeoutError) as caught, stage("model", budget=60):
        raise TimeoutError("somebody else's")
    assert not isinstance(caught.value, StageTimeout)
    assert stages.failed_in == "model"


# -- generators


def test_of_a_generator_the_time_counts_in_which_it_runs():
    clock = ManualClock()

    @stage("decode")
    def tokens(n):
        """Words."""
        got = []
        for number in range(n):
            clock.advance(ns=5)
            got.append((yield number))
        return got

    with collect(clock) as stages:
        running = tokens(3)
        assert next(running) == 0
        clock.advance(ns=1000)
        assert running.send("a") == 1
        with stage("postprocess"):
            clock.advance(ns=7)
        assert running.send("b") == 2
        with pytest.raises(StopIteration) as end:
            running.send("c")
    assert end.value.value == ["a", "b", "c"]
    assert tokens.__name__ == "tokens"
    assert stages.durations() == {"decode": 15, "postprocess": 7}
    assert {span.error for span in stages.spans} == {""}


def test_what_is_thrown_into_a_generator_is_its_own_to_handle():
    @stage("decode")
    def patient():
        try:
            yield 1
        except KeyError:
            yield 2
        finally:
            closed.append(True)

    closed = []
    with collect() as stages:
        running = patient()
        assert next(running) == 1
        assert running.throw(KeyError()) == 2
        running.close()
    assert closed == [True]
    assert len(stages.spans) == 3


def test_of_an_async_generator_too():
    async def scene():
        clock = ManualClock()
        closed = []

        @stage("model")
        async def answer():
            try:
                for number in range(4):
                    clock.advance(ns=10)
                    await asyncio.sleep(0)
                    yield number
            finally:
                closed.append(True)

        with collect(clock) as stages:
            got = []
            running = answer()
            async for token in running:
                got.append(token)
                clock.advance(ns=100)
                if token == 2:
                    break
            await running.aclose()
        return got, closed, stages.durations()

    assert asyncio.run(scene()) == ([0, 1, 2], [True], {"model": 30})


def test_a_generator_takes_no_budget():
    with pytest.raises(TypeError, match="around the loop"):

        @stage("decode", budget=1)
        def tokens():
            yield 1


def test_a_block_in_a_generator_may_end_in_another_context():
    async def scene():
        async def answer():
            with stage("model"):
                yield 1
                yield 2

        with collect() as stages:
            running = answer()
            # Each step in a task of its own, as some servers read bodies.
            assert await asyncio.ensure_future(anext(running)) == 1
            assert await asyncio.ensure_future(anext(running)) == 2
            with pytest.raises(StopAsyncIteration):
                await asyncio.ensure_future(anext(running))
            with stage("postprocess"):
                pass
            return stages

    stages = asyncio.run(scene())
    assert [span.name for span in stages.spans] == ["model", "postprocess"]
    assert stages.spans[1].parent == -1
