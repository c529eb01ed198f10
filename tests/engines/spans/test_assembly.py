"""Spans in any posts and any order become the same amendments; what never completes is bounded and counted."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.engines.spans.assembly import HOLD_NS, MOST_OF_TRACE, SpanAssembly
from tailrace.model.amendment import Amendment
from tailrace.model.span import Span
from tests.engines.spans.samples import MS, OURS, TRACE, sglang_read_in_source, span, triton_capture, vllm_capture

MUCH_LATER = 10**10


def last_said(amendments: list[Amendment]) -> dict[tuple[str, str], Amendment]:
    """By the span they are about, the last one."""
    return {(one.trace_id, one.span_id): msgspec.structs.replace(one, received_unix_ns=0) for one in amendments}


SERVER_SIDE = [
    span("GET /rank", 1, OURS, 0, 60, kind=2, resource={"service.name": "ranker"}),
    span("work", 2, 1, 1, 55),
    span("rank", 3, 2, 2, 30, tailrace__stage="preprocess.rank", resource={"service.name": "ranker"}),
    span("fetch", 4, 2, 20, 42, tailrace__stage="preprocess.fetch", resource={"service.name": "ranker"}),
]


@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_any_order_and_any_split_over_posts(order: random.Random, posts: int) -> None:
    spans = [*sglang_read_in_source(), *[msgspec.structs.replace(one, trace_id="cd" * 16) for one in SERVER_SIDE]]
    whole = SpanAssembly()
    expected = last_said(whole.take(spans, 0)[0] + whole.tick(MUCH_LATER))
    order.shuffle(spans)
    parts = [spans[at::posts] for at in range(posts)]
    assembly = SpanAssembly()
    got: list[Amendment] = []
    for at, part in enumerate(parts):
        got += assembly.take(part, at)[0]
    got += assembly.tick(MUCH_LATER)
    assert len(got) == 2, "each is said once"
    assert last_said(got) == expected
    assert len(expected) == 2
    assert assembly.tally.orphaned == 0


def test_a_stream_of_minutes_is_joined_when_its_first_span_ends() -> None:
    compute = span(
        "compute",
        3,
        2,
        events={"COMPUTE_START": 5, "COMPUTE_INPUT_END": 6, "COMPUTE_OUTPUT_START": 7, "COMPUTE_END": 8},
        scope="triton-server",
    )
    model = span("m", 2, 1, events={"QUEUE_START": 1}, scope="triton-server", triton__model_name="m")
    root = span("InferRequest", 1, OURS, events={"HTTP_RECV_START": 0}, scope="triton-server")
    root = msgspec.structs.replace(
        root,
        events=[
            *root.events,
            *(
                msgspec.structs.replace(
                    root.events[0], name="INFER_RESPONSE_COMPLETE", at_unix_ns=root.start_unix_ns + at * MS
                )
                for at in (20, 40)
            ),
        ],
    )
    assembly = SpanAssembly()
    assert assembly.take([compute, model], 0) == ([], 2)
    [one], understood = assembly.take([root], 100_000 * MS)
    assert understood == 1
    assert (one.queue_ns, one.prefill_ns) == (4 * MS, 14 * MS)


def test_the_same_post_twice_amends_once() -> None:
    root = span("llm_request", 1, OURS, gen_ai__latency__time_in_queue=0.5)
    assembly = SpanAssembly()
    assert len(assembly.take([root], 0)[0]) == 1
    assert assembly.take([root], 1)[0] == []


def test_orphans_are_counted_and_let_go() -> None:
    assembly = SpanAssembly()
    assembly.take([span("vllm_queue", 2, 1), span("compute", 3, 9, scope="triton-server")], 0)
    assert assembly.waiting == 2
    assert assembly.tick(HOLD_NS + 1) == []
    assert assembly.waiting == 0
    assert assembly.tally.orphaned == 2


@pytest.mark.needs("shared")
def test_a_request_that_came_by_no_gateway_is_counted(shared: Path) -> None:
    assembly = SpanAssembly()
    got, understood = assembly.take(vllm_capture(shared), 0)
    assert understood == 9
    assert len(got) == 4
    assert assembly.tally.unaddressed == 4
    assert assembly.tally.startup == 1
    assembly.take(vllm_capture(shared), 1)
    assert assembly.tally.unaddressed == 4  # the same ones


@pytest.mark.needs("shared")
def test_two_requests_of_one_trace_stay_apart(shared: Path) -> None:
    spans = triton_capture(shared)
    assert len({one.trace_id for one in spans}) == 1
    got, _ = SpanAssembly().take(spans, 0)
    assert len(got) == 2
    assert got[0].prefill_ns != got[1].prefill_ns


def test_memory_is_bounded_over_traces_and_within_one() -> None:
    assembly = SpanAssembly(most_spans=100)
    for number in range(500):
        assembly.take([span("vllm_queue", number + 1, 999_999, trace_id=f"{number + 1:032x}")], number)
    assert assembly.waiting <= 100
    assert assembly.tally.orphaned == 400
    assembly = SpanAssembly()
    for number in range(MOST_OF_TRACE + 10):
        assembly.take([span("anything", number + 1, number)], 0)
    assert assembly.waiting <= MOST_OF_TRACE
    assembly.tick(HOLD_NS + 1)
    assert assembly.waiting == 0


def test_a_circle_of_parents_ends() -> None:
    assembly = SpanAssembly()
    got, _ = assembly.take([span("vllm_queue", 1, 2), span("vllm_prefill", 2, 1)], 0)
    assert got == []
    assert assembly.take([span("x", 4, 4, kind=1, tailrace__stage="preprocess.a")], 0)[0] == []
    assembly.tick(HOLD_NS + 1)
    assert assembly.waiting == 0


def test_names_that_nobody_understands_are_bounded() -> None:
    assembly = SpanAssembly()
    assembly.take([span(f"name {number}", number + 1, OURS) for number in range(150)], 0)
    assembly.take([span("x" * 500, 999, OURS)], 0)
    names = assembly.tally.not_understood
    assert len(names) == 101
    assert names["other names"] == 51
    assert max(map(len, names)) <= 80


# -- services


def test_a_service_behind_us_amends_by_its_entry() -> None:
    assembly = SpanAssembly()
    # Its exporter may send what was under way in another post.
    assert assembly.take(SERVER_SIDE, 0) == ([], 2)
    [one] = assembly.tick(MUCH_LATER)
    assert one.origin == "service:ranker span"
    assert (one.trace_id, one.parent_span_id) == (TRACE, OURS)
    assert one.parts_ns == {"preprocess.rank": 28 * MS, "preprocess.fetch": 22 * MS}
    # Two parts that overlap from 20 to 30: the stage is what they cover.
    assert one.preprocess_ns == 40 * MS


def test_a_service_before_us_is_left_to_others() -> None:
    spans = [
        span("POST /ask", 1, "", 0, 900, kind=2, tailrace__request_id="r1"),
        span("retrieve", 2, 1, 0, 300, tailrace__stage="preprocess.retrieval"),
    ]
    assembly = SpanAssembly()
    assert assembly.take(spans, 0)[0] == []
    assert assembly.tally.not_understood == {}
    assert assembly.tick(HOLD_NS + 1) == []


def test_an_engine_behind_a_service_behind_us_joins_through_it() -> None:
    engine = span("llm_request", 9, 2, 5, 50, gen_ai__latency__time_in_queue=0.001)
    assembly = SpanAssembly()
    got = [*assembly.take([engine, *SERVER_SIDE], 0)[0], *assembly.tick(MUCH_LATER)]
    assert {one.origin: one.parent_span_id for one in got} == {
        "vllm span llm_request": OURS,
        "service:ranker span": OURS,
    }


@pytest.mark.parametrize("stage", ["response.x", "", "unattributed", 3, "x" * 100])
def test_stages_that_cannot_be_behind_us_are_not_understood(stage: object) -> None:
    assembly = SpanAssembly()
    _, understood = assembly.take([span("x", 1, OURS, tailrace__stage=stage)], 0)
    assert understood == 0


def test_the_stage_of_services_before_us_says_nothing_of_one_behind() -> None:
    entry = span("GET /", 1, OURS, 0, 60, kind=2)
    assembly = SpanAssembly()
    assembly.take([entry, span("call", 2, 1, 1, 50, tailrace__stage="model")], 0)
    [one] = assembly.tick(MUCH_LATER)
    assert (one.prefill_ns, one.parts_ns) == (None, {})


# -- cold start


def startup(name: str, number: int, begin: float, end: float) -> Span:
    return span(name, number, "", begin, end, scope="vllm.engine", resource={"service.name": "v"})


def test_a_cold_start_is_what_its_spans_cover() -> None:
    assembly = SpanAssembly()
    assembly.take([startup("Load weights", 1, 3000, 5000), startup("Load weights", 2, 3500, 6000)], 0)
    [start] = assembly.cold_starts.all()
    assert not start.complete
    assembly.take([startup("Allocate KV cache", 3, 6000, 7000), startup("Overall Loading", 4, 0, 9000)], 1)
    [start] = assembly.cold_starts.all()
    assert start.complete
    assert start.total_ns == 9000 * MS
    # Two workers loaded at the same time.
    assert start.parts_ns == {
        "Overall Loading": 9000 * MS,
        "Load weights": 3000 * MS,
        "Allocate KV cache": 1000 * MS,
    }
    assert start.view()["cold_start_ms"] == 9000.0
    assert assembly.tally.not_understood == {}


def test_starts_are_bounded_and_others_have_such_names_too() -> None:
    assembly = SpanAssembly()
    for number in range(20):
        one = startup("Load model", number + 1, number * 10, number * 10 + 5)
        assembly.take([msgspec.structs.replace(one, trace_id=f"{number + 1:032x}")], 0)
    assert len(assembly.cold_starts.all()) == 8
    assembly.take([span("Load model", 99, "", scope="my.app")], 0)
    assert assembly.tally.not_understood == {"Load model": 1}
