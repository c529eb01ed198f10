"""OTLP in both encodings: the same spans, whatever the sender's habits; nothing but its own error for anything else."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tailrace.measure.otlp_json import spans_of_json
from tailrace.measure.otlp_protobuf import reception_message, spans_of_protobuf
from tailrace.measure.otlp_value import OtlpError, status_message
from tailrace.model.span import Span

_IDS = st.binary(min_size=16, max_size=16).filter(any)
_SPAN_IDS = st.binary(min_size=8, max_size=8).filter(any)
_TEXT = st.text(max_size=20)
_TIMES = st.integers(0, 2**63 - 1)
_PLAIN = st.one_of(
    st.builds(lambda v: {"string_value": v}, _TEXT),
    st.builds(lambda v: {"bool_value": v}, st.booleans()),
    st.builds(lambda v: {"int_value": v}, st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda v: {"double_value": v}, st.floats(allow_nan=False)),
    st.builds(lambda v: {"bytes_value": v}, st.binary(max_size=9)),
    st.just({}),
)
_VALUES = st.recursive(
    _PLAIN,
    lambda inner: st.one_of(
        st.builds(lambda v: {"array_value": {"values": v}}, st.lists(inner, max_size=3)),
        st.builds(
            lambda v: {"kvlist_value": {"values": [{"key": k, "value": x} for k, x in v.items()]}},
            st.dictionaries(_TEXT, inner, max_size=3),
        ),
    ),
    max_leaves=6,
)
_PAIRS = st.builds(
    lambda pairs: [{"key": key, "value": value} for key, value in pairs.items()],
    st.dictionaries(_TEXT, _VALUES, max_size=4),
)
_SPANS = st.fixed_dictionaries(
    {
        "trace_id": _IDS,
        "span_id": _SPAN_IDS,
        "name": _TEXT,
        "kind": st.integers(0, 5),
        "start_time_unix_nano": _TIMES,
        "end_time_unix_nano": _TIMES,
        "attributes": _PAIRS,
        "events": st.lists(
            st.fixed_dictionaries({"time_unix_nano": _TIMES, "name": _TEXT, "attributes": _PAIRS}), max_size=2
        ),
        "status": st.fixed_dictionaries({"code": st.integers(0, 2), "message": _TEXT}),
    },
    optional={"parent_span_id": _SPAN_IDS},
)
_REQUESTS = st.lists(
    st.builds(
        lambda attributes, scope, spans: {
            "resource": {"attributes": attributes},
            "scope_spans": [{"scope": {"name": scope}, "spans": spans}],
        },
        _PAIRS,
        _TEXT,
        st.lists(_SPANS, max_size=3),
    ),
    max_size=3,
)


def message(resource_spans: list[dict[str, Any]]) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest(resource_spans=resource_spans)


def otlp_json(request: ExportTraceServiceRequest, *, hexadecimal: bool, enum_numbers: bool) -> bytes:
    """As protobuf's own writer spells it, and with OTLP's two changes where asked."""
    plain = json_format.MessageToDict(request, use_integers_for_enums=enum_numbers)
    for resource in plain.get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            for span in scope.get("spans", []):
                for key in ("traceId", "spanId", "parentSpanId"):
                    if hexadecimal and key in span:
                        span[key] = base64.b64decode(span[key]).hex()
    return json.dumps(plain).encode()


def sound(spans: Any) -> list[Span]:
    out = [span for span in spans if span is not None]
    assert all(isinstance(span, Span) for span in out)
    return out


@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(_REQUESTS, st.booleans(), st.booleans())
def test_both_encodings_say_the_same(resource_spans: list[Any], hexadecimal: bool, enum_numbers: bool) -> None:
    request = message(resource_spans)
    by_protobuf = sound(spans_of_protobuf(request.SerializeToString()))
    by_json = sound(spans_of_json(otlp_json(request, hexadecimal=hexadecimal, enum_numbers=enum_numbers)))
    assert by_json == by_protobuf
    assert len(by_json) == sum(len(scope["spans"]) for one in resource_spans for scope in one["scope_spans"])


@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(_REQUESTS, st.data())
def test_a_protobuf_post_cut_or_changed_anywhere_gives_spans_or_its_own_error(resource_spans: list, data: Any) -> None:
    body = bytearray(message(resource_spans).SerializeToString())
    if body:
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
        del body[data.draw(st.integers(0, len(body))) :]
    with contextlib.suppress(OtlpError):
        assert all(span is None or isinstance(span, Span | OtlpError) for span in spans_of_protobuf(bytes(body)))


@given(st.binary(max_size=200))
def test_any_bytes_as_json_give_spans_or_its_own_error(body: bytes) -> None:
    with contextlib.suppress(OtlpError):
        assert all(span is None or isinstance(span, Span | OtlpError) for span in spans_of_json(body))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    (
                        "resourceSpans",
                        "scopeSpans",
                        "spans",
                        "traceId",
                        "attributes",
                        "key",
                        "value",
                        "intValue",
                        "values",
                    )
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_any_json_gives_spans_or_its_own_error(value: Any) -> None:
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [value]}]}]}).encode()
    with contextlib.suppress(OtlpError):
        assert all(span is None or isinstance(span, Span | OtlpError) for span in spans_of_json(body))


def span_json(**changes: Any) -> bytes:
    span = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "n", **changes}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def test_what_exporters_write_differently_is_read_all_the_same() -> None:
    [one] = sound(
        spans_of_json(
            span_json(
                parentSpanId="",
                kind="SPAN_KIND_SERVER",
                startTimeUnixNano=5,
                endTimeUnixNano="7",
                status={"code": "STATUS_CODE_ERROR", "message": None},
                events=None,
                attributes=[
                    {"key": "n", "value": {"doubleValue": "NaN"}},
                    {"key": "i", "value": {"intValue": 3}},
                    {"key": "none", "value": None},
                    {"key": "later", "value": {"newKindOfValue": 1}},
                ],
                droppedAttributesCount=1,
                flags=257,
            )
        )
    )
    assert (one.trace_id, one.span_id, one.parent_span_id) == ("ab" * 16, "cd" * 8, "")
    assert (one.kind, one.status_code, one.start_unix_ns, one.end_unix_ns) == (2, 2, 5, 7)
    assert one.attributes["n"] != one.attributes["n"]  # NaN
    assert {key: one.attributes[key] for key in ("i", "none", "later")} == {"i": 3, "none": None, "later": None}


@pytest.mark.parametrize(
    "changes",
    [
        {"traceId": ""},
        {"traceId": "00" * 16},
        {"traceId": "xyz"},
        {"spanId": "cd"},
        {"startTimeUnixNano": "-1"},
        {"endTimeUnixNano": str(2**63)},
        {"endTimeUnixNano": "soon"},
        {"name": 3},
    ],
)
def test_an_unsound_span_is_named_and_its_neighbours_are_read(changes: dict[str, Any]) -> None:
    bad, good = json.loads(span_json(**changes)), json.loads(span_json())
    spans = [one["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for one in (good, bad, good)]
    whole = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    got = [one for one in spans_of_json(whole) if one is not None]
    assert [type(one) for one in got] == [Span, OtlpError, Span]
    assert str(got[1])


def test_values_nested_without_end_are_refused() -> None:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(40):
        value = {"arrayValue": {"values": [value]}}
    *_, got = spans_of_json(span_json(attributes=[{"key": "k", "value": value}]))
    assert isinstance(got, OtlpError)
    proto: dict[str, Any] = {"int_value": 1}
    for _ in range(40):
        proto = {"array_value": {"values": [proto]}}
    span = {"trace_id": b"a" * 16, "span_id": b"b" * 8, "attributes": [{"key": "k", "value": proto}]}
    *_, got = spans_of_protobuf(message([{"scope_spans": [{"spans": [span]}]}]).SerializeToString())
    assert isinstance(got, OtlpError)


def test_what_the_sender_is_told() -> None:
    assert reception_message(0, "") == b""
    answer = ExportTraceServiceResponse.FromString(reception_message(3, "a span has no sound trace id"))
    assert answer.partial_success.rejected_spans == 3
    assert answer.partial_success.error_message
    # `google.rpc.Status`: field 1 a number, field 2 text of this length.
    assert status_message(3, "no") == b"\x08\x03\x12\x02no"
    long = status_message(8, "x" * 300)
    assert long[:5] == b"\x08\x08\x12\xac\x02"
    assert len(long) == 305


@pytest.mark.needs("shared")
def test_captured_posts(shared: Path) -> None:
    folder = shared / "data" / "engine_samples"
    spans = sound(spans_of_json((folder / "triton" / "otlp_traces.json").read_bytes()))
    assert [span.name for span in spans] == [
        "compute",
        "echo_batch",
        "InferRequest",
        "compute",
        "stream_tok",
        "InferRequest",
    ]
    assert spans[1].attributes["triton.request_id"] == "req-77"
    assert [event.name for event in spans[0].events] == [
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    assert spans[0].resource["service.name"] == "triton-inference-server"


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (spans_of_json, b'{"resourceSpans":[' + b"{}," * 5000 + b"{}]}"),
        (spans_of_json, b'{"resourceSpans":[{"scopeSpans":[' + b"{}," * 5000 + b"{}]}]}"),
        (spans_of_protobuf, b"\x0a\x00" * 5000),
        (spans_of_protobuf, b"\x12\x00" * 80_000),
    ],
)
def test_a_post_of_nothing_but_empty_shells_is_read_in_steps_as_well(read: Any, body: bytes) -> None:
    steps = list(read(body))
    assert len(steps) >= 5000
    assert set(steps) == {None}
