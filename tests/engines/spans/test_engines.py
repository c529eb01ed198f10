"""What each engine's spans mean, on captured bytes, or on spans made as its source makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.engines.spans.assembly import SpanAssembly
from tailrace.engines.spans.triton_file import read_trace_file
from tailrace.model.amendment import Amendment
from tailrace.model.span import Span
from tests.engines.spans.samples import (
    MS,
    OURS,
    REQUEST_ID,
    TRACE,
    sglang_read_in_source,
    span,
    triton_capture,
    vllm_capture,
)

MUCH_LATER = 10**10


def amendments(spans: list[Span]) -> list[Amendment]:
    assembly = SpanAssembly()
    got, _ = assembly.take(spans, 0)
    return [*got, *assembly.tick(MUCH_LATER)]


# -- vLLM


@pytest.mark.needs("shared")
def test_vllm_captured_spans_join_by_their_parent(shared: Path) -> None:
    got = amendments(vllm_capture(shared))
    # Two of eight requests came twice with our parent; four had none: they were not sent by a gateway.
    assert [one.parent_span_id for one in got] == ["b7ad6b7169203331"] * 4
    first = got[0]
    assert first.origin == "vllm span llm_request"
    # Queue, prefill without the queue, decode: its own clock, in seconds.
    assert (first.queue_ns, first.prefill_ns, first.decode_ns) == (37_606, 9_285_922, 22_858_783)
    assert first.sources["prefill"] == "reported(span.gen_ai.latency.time_in_model_prefill)"


@pytest.mark.parametrize(
    ("said", "ours"),
    [
        (f"chatcmpl-{REQUEST_ID}", REQUEST_ID),
        (f"chatcmpl-{REQUEST_ID}-8f3a01bc", REQUEST_ID),
        (f"cmpl-{REQUEST_ID}-0", REQUEST_ID),
        (f"cmpl-{REQUEST_ID}-1-8f3a01bc", REQUEST_ID),
        (f"resp_{REQUEST_ID}", REQUEST_ID),
        (REQUEST_ID, REQUEST_ID),
        # Not of our making: its trace has to say whose it is.
        ("chatcmpl-nonstream-1", ""),
        ("chatcmpl-836c9652da787973", ""),
        (f"chatcmpl-{REQUEST_ID}99", ""),
    ],
)
def test_vllm_request_id_without_prefix_and_suffix(said: str, ours: str) -> None:
    root = span("llm_request", 1, OURS, 0, 50, gen_ai__request__id=said, gen_ai__latency__time_in_queue=0.001)
    [one] = amendments([root])
    assert one.request_id == ours
    assert (one.trace_id, one.parent_span_id) == (TRACE, OURS)


def test_vllm_split_into_phases_read_in_source() -> None:
    root = span("llm_request", 1, OURS, 0, 200, gen_ai__request__id=f"chatcmpl-{REQUEST_ID}")
    phases = [
        span("vllm_async_kv_transfer", 2, 1, 10, 30),
        span("vllm_queue", 3, 1, 0, 40),
        span("vllm_prefill", 4, 1, 40, 65),
        span("vllm_decode", 5, 1, 65, 100),
        # Preempted: it queues and is prefilled again, inside the decode that the client sees.
        span("vllm_queue", 6, 1, 100, 150),
        span("vllm_prefill", 7, 1, 150, 160),
        span("vllm_decode", 8, 1, 160, 200),
    ]
    [one] = amendments([*phases, root])
    assert (one.queue_ns, one.prefill_ns, one.decode_ns) == (40 * MS, 25 * MS, 135 * MS)
    assert one.parts_ns == {"queue.kv_transfer": 20 * MS}
    assert one.preemptions == 1
    assert one.sources["queue"] == "reported(span.vllm_queue)"


def test_vllm_attributes_win_over_phases() -> None:
    root = span("llm_request", 1, OURS, 0, 200, gen_ai__latency__time_in_queue=0.041)
    [one] = amendments([span("vllm_queue", 3, 1, 0, 40), root])
    assert one.queue_ns == 41 * MS


def test_vllm_nonsense_is_no_report() -> None:
    root = span(
        "llm_request",
        1,
        OURS,
        gen_ai__latency__time_in_queue=-1.0,
        gen_ai__latency__time_in_model_prefill=float("nan"),
        gen_ai__latency__time_in_model_decode="long",
    )
    [one] = amendments([root])
    assert (one.queue_ns, one.prefill_ns, one.decode_ns) == (None, None, None)


# -- SGLang


def test_sglang_prefill_attribute_includes_queue() -> None:
    """Its attribute says 66 ms of prefill, of which 40 were queue: the slices are read."""
    [one] = amendments(sglang_read_in_source())
    assert one.origin == "sglang span Req"
    assert (one.queue_ns, one.prefill_ns, one.decode_ns) == (40 * MS, 25 * MS, 80 * MS)
    assert one.preprocess_ns == 5 * MS
    assert one.parts_ns == {"preprocess.tokenize": 3 * MS}
    assert one.sources["queue"] == "reported(span.prefill_waiting)"
    assert one.parent_span_id == OURS


def test_sglang_without_slices_says_no_stage() -> None:
    """At trace level 0 there is the request alone, whose attribute mixes queue and prefill."""
    [one] = amendments(sglang_read_in_source()[-1:])
    assert (one.queue_ns, one.prefill_ns) == (None, None)


def test_sglang_other_processes_are_waited_for() -> None:
    spans = sglang_read_in_source()
    assembly = SpanAssembly()
    # The tokenizer's process ends the request; the scheduler's exporter is half a second later.
    assert assembly.take([*spans[:3], spans[-1]], 0)[0] == []
    assert assembly.take(spans[3:-1], 500 * MS)[0] == []
    [one] = assembly.tick(MUCH_LATER)
    assert (one.queue_ns, one.prefill_ns) == (40 * MS, 25 * MS)
    assert assembly.tick(2 * MUCH_LATER) == []


def test_sglang_slices_of_others_are_not_its() -> None:
    assembly = SpanAssembly()
    _, understood = assembly.take([span("tokenize", 1, OURS, scope="somebody")], 0)
    assert understood == 0
    assert assembly.tally.not_understood == {"tokenize": 1}


# -- Triton


@pytest.mark.needs("shared")
def test_triton_captured_infer(shared: Path) -> None:
    one = amendments(triton_capture(shared))[0]
    assert (one.queue_ns, one.prefill_ns) == (5_131_611, 81_439_327)
    # Receiving (236,971 ns) and COMPUTE_INPUT_END - COMPUTE_START (139,216 ns).
    assert one.preprocess_ns == 236_971 + 139_216
    assert one.parts_ns == {"preprocess.receive": 236_971}
    # `req-77` is the client's own id: the record is found by the trace.
    assert (one.request_id, one.parent_span_id) == ("", "b7ad6b7169203331")


@pytest.mark.needs("shared")
def test_triton_stream_durations_ignored(shared: Path) -> None:
    """A decoupled model's `compute` ended after 31 ms, its last answer came later: only what was before the first."""
    one = amendments(triton_capture(shared))[1]
    root = triton_capture(shared)[5]
    compute = triton_capture(shared)[3]
    first = next(event.at_unix_ns for event in root.events if event.name == "INFER_RESPONSE_COMPLETE")
    loaded = next(event.at_unix_ns for event in compute.events if event.name == "COMPUTE_INPUT_END")
    assert one.prefill_ns == first - loaded
    assert one.decode_ns is None
    assert one.postprocess_ns is None


def triton(number: int, name: str, parent: int | str, events: dict[str, float], **attributes: object) -> Span:
    ends = max(events.values())
    begins = min(events.values())
    return span(name, number, parent, begins, ends, events=events, scope="triton-server", **attributes)


def test_triton_ensemble_queues_where_nobody_computes() -> None:
    """Two models of which the second waits while the first computes: that wait is no queue of the request."""
    spans = [
        triton(1, "InferRequest", OURS, {"HTTP_RECV_START": 0, "INFER_RESPONSE_COMPLETE": 95, "HTTP_SEND_END": 96}),
        triton(2, "both", 1, {"REQUEST_START": 1, "QUEUE_START": 1, "REQUEST_END": 95}, triton__model_name="both"),
        triton(3, "a", 2, {"QUEUE_START": 2, "REQUEST_END": 60}, triton__model_name="a"),
        triton(4, "b", 2, {"QUEUE_START": 40, "REQUEST_END": 94}, triton__model_name="b"),
        triton(
            5,
            "compute",
            3,
            {"COMPUTE_START": 12, "COMPUTE_INPUT_END": 13, "COMPUTE_OUTPUT_START": 58, "COMPUTE_END": 60},
        ),
        triton(
            6,
            "compute",
            4,
            {"COMPUTE_START": 68, "COMPUTE_INPUT_END": 69, "COMPUTE_OUTPUT_START": 93, "COMPUTE_END": 94},
        ),
    ]
    [one] = amendments(spans)
    # 2-12 for the first, 58-68 for the second (from 40 to 58 the first computed).
    assert one.queue_ns == 20 * MS
    assert one.prefill_ns == (45 + 24) * MS


def test_triton_our_id_in_the_body_joins() -> None:
    spans = [
        triton(1, "InferRequest", "", {"HTTP_RECV_START": 0, "INFER_RESPONSE_COMPLETE": 9}),
        triton(2, "m", 1, {"QUEUE_START": 1}, triton__model_name="m", triton__request_id=REQUEST_ID),
    ]
    [one] = amendments(spans)
    assert one.request_id == REQUEST_ID


@pytest.mark.needs("shared")
def test_triton_trace_file_says_what_the_spans_say(shared: Path) -> None:
    folder = shared / "data/engine_samples/triton"
    [infer] = read_trace_file((folder / "trace_infer.json").read_bytes())
    assert (infer.model, infer.request_id) == ("echo_batch", "req-42")
    assert infer.facts.queue_ns == 1041651344641 - 1041646053303
    assert infer.facts.prefill_ns == 1041940079787 - 1041651894537
    assert infer.facts.preprocess_ns == (1041646053303 - 1041645284493) + (1041651894537 - 1041651344641)
    assert infer.total_ns == 1041940459620 - 1041645284493
    [stream] = read_trace_file((folder / "trace_stream.json").read_bytes())
    # `execute()` returned after 2 ms; the first token came 33 ms after the input was there.
    assert stream.facts.prefill_ns == 1063234644845 - 1063201886790
    assert stream.facts.postprocess_ns is None
    assert stream.facts.queue_ns == 1063201821323 - 1063166281697


@pytest.mark.needs("shared")
def test_a_trace_file_without_its_end_is_read_to_where_it_goes(shared: Path) -> None:
    text = (shared / "data/engine_samples/triton/trace_stream.json").read_bytes()
    [whole] = read_trace_file(text)
    for cut in range(len(text) // 2, len(text), 97):
        [part] = read_trace_file(text[:cut])
        assert part.facts.prefill_ns == whole.facts.prefill_ns
    for nothing in (b"", b"[]x", b'{"id":1}', b"nv_inference_count 3"):
        with pytest.raises(ValueError):
            read_trace_file(nothing)
