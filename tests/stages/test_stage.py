"""Stages of a service: nesting, concurrency, decorators."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stages import REPORTABLE, collect, stage
from tailrace.stages.collector import CURRENT, SPAN_LIMIT
from tailrace.testing import ManualClock


def test_a_part_lies_inside_its_stage():
    clock = ManualClock()
    with collect(clock) as stages:
        with stage("preprocess"):
            clock.advance(ns=5)
            with stage("preprocess.tokenize"):
                clock.advance(ns=7)
        with stage("decode"):
            clock.advance(ns=11)
    assert stages.durations() == {"preprocess": 12, "preprocess.tokenize": 7, "decode": 11}


def test_a_part_alone_makes_its_stage():
    clock = ManualClock()
    with collect(clock) as stages, stage("postprocess.safety.model"):
        clock.advance(ns=3)
    assert stages.durations() == {"postprocess": 3, "postprocess.safety": 3, "postprocess.safety.model": 3}


def test_an_unrelated_stage_is_taken_off_the_outer_one():
    clock = ManualClock()
    with collect(clock) as stages, stage("postprocess"):
        clock.advance(ns=2)
        with stage("decode"):
            clock.advance(ns=10)
            with stage("postprocess.safety"):
                clock.advance(ns=4)
        clock.advance(ns=1)
    assert stages.durations() == {"postprocess": 7, "postprocess.safety": 4, "decode": 10}


NAMES = st.sampled_from([*REPORTABLE, "preprocess.tokenize", "preprocess.tokenize.bytes", "decode.sample"])
TREE = st.recursive(
    st.lists(st.integers(0, 20), max_size=3),
    lambda inner: st.lists(st.one_of(st.integers(0, 20), st.tuples(NAMES, inner)), max_size=4),
    max_leaves=25,
)


@given(TREE)
def test_stages_never_exceed_the_request_and_parts_never_their_stage(tree):
    clock = ManualClock()

    def walk(nodes):
        for node in nodes:
            if isinstance(node, int):
                clock.advance(ns=node)
            else:
                with stage(node[0]):
                    walk(node[1])

    start = clock()
    with collect(clock) as stages:
        walk(tree)
    durations = stages.durations()
    tops = {name: value for name, value in durations.items() if "." not in name}
    assert sum(tops.values()) <= clock() - start
    for name, value in durations.items():
        assert 0 <= value <= durations[name.partition(".")[0]]


def test_parallel_tasks_of_one_stage_count_once():
    async def scene():
        clock = ManualClock()

        async def work(steps):
            with stage("preprocess.features"):
                for _ in range(steps):
                    await asyncio.sleep(0)

        with collect(clock) as stages:

            async def tick():
                for _ in range(6):
                    clock.advance(ns=10)
                    await asyncio.sleep(0)

            await asyncio.gather(work(6), work(3), work(6), tick())
            return clock, stages.durations()

    clock, durations = asyncio.run(scene())
    assert 0 < durations["preprocess"] <= 60
    assert clock() == ManualClock()() + 60


def test_concurrent_requests_never_see_each_other():
    async def request(name, steps, clock):
        with collect(clock) as stages:
            with stage(name):
                for _ in range(steps):
                    await asyncio.sleep(0)
            return set(stages.durations())

    async def scene():
        clock = ManualClock()
        work = {"decode": 5, "prefill": 3, "encode": 8}
        return await asyncio.gather(*(request(name, steps, clock) for name, steps in work.items()))

    assert asyncio.run(scene()) == [{"decode"}, {"prefill"}, {"encode"}]
    assert CURRENT.get() is None


def test_threads_inherit_the_request():
    async def scene():
        with collect() as stages:
            await asyncio.to_thread(stage("preprocess.resample")(lambda: None))
            return set(stages.durations())

    assert asyncio.run(scene()) == {"preprocess", "preprocess.resample"}


def test_threads_that_share_a_request_never_share_a_number():
    async def scene():
        def work():
            for _ in range(200):
                with stage("preprocess.resample"):
                    pass

        with collect() as stages:
            await asyncio.gather(*(asyncio.to_thread(work) for _ in range(8)))
        return stages

    stages = asyncio.run(scene())
    assert sorted(span.number for span in stages.spans) == list(range(1600))
    assert stages.running == {}


def test_decorators():
    clock = ManualClock()

    @stage("preprocess.tokenize")
    def tokenize(text, depth=2):
        """Split."""
        clock.advance(ns=1)
        return tokenize(text, depth - 1) if depth else text.split()

    @stage("decode")
    async def decode():
        clock.advance(ns=5)
        await asyncio.sleep(0)
        raise LookupError

    assert tokenize("a b") == ["a", "b"]  # outside of a request: nothing is timed, everything works
    assert (tokenize.__name__, tokenize.__doc__) == ("tokenize", "Split.")
    with collect(clock) as stages:
        assert tokenize("a b") == ["a", "b"]
        with pytest.raises(LookupError):
            asyncio.run(decode())
    assert stages.durations() == {"preprocess": 3, "preprocess.tokenize": 3, "decode": 5}


@pytest.mark.parametrize(
    "name",
    ["", "Decode", "decode.", "ingress", "response", "unattributed", "dec ode", "decode..x", "decode." + "x" * 200],
)
def test_names_that_are_no_stage(name):
    with pytest.raises(ValueError, match="is no stage"):
        stage(name)


def test_an_object_serves_one_block_at_a_time():
    one = stage("decode")
    with collect():
        with one, pytest.raises(RuntimeError, match="already running"), one:
            pass
        with one:
            pass  # free again


def test_spans_are_bounded_and_counted():
    clock = ManualClock()
    with collect(clock) as stages:
        for _ in range(SPAN_LIMIT + 5):
            with stage("decode"):
                clock.advance(ns=1)
    assert stages.durations() == {"decode": SPAN_LIMIT}
    assert stages.dropped == 5


def test_an_inner_collector_takes_over():
    clock = ManualClock()
    with collect(clock) as outer, stage("decode"):
        clock.advance(ns=1)
        with collect(clock) as inner, stage("prefill"):
            clock.advance(ns=2)
    assert inner.durations() == {"prefill": 2}
    assert outer.durations() == {"decode": 3}
