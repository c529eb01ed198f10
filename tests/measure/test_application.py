"""A service's spans made into a record that adds up."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.application import application_record, is_whole, stage_name
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tailrace.model.span import Span
from tailrace.stages import REPORTABLE

TRACE = "0af7651916cd43dd8448eb211c80319c"
START = 1_700_000_000_000_000_000
MS = 1_000_000


def whole(ms=100, **attributes):
    return Span(
        trace_id=TRACE,
        span_id="root",
        parent_span_id="caller",
        name="rag",
        start_unix_ns=START,
        end_unix_ns=START + ms * MS,
        attributes={"tailrace.request_id": "r1", "tailrace.outcome": "completed", **attributes},
        resource={"service.name": "rag"},
    )


def stage(name, begin, end, span_id="", parent="root", **extra):
    attributes = {"tailrace.stage": name, **extra.pop("attributes", {})}
    return Span(
        trace_id=TRACE,
        span_id=span_id or f"{name}{begin}",
        parent_span_id=parent,
        name=name,
        start_unix_ns=START + begin * MS,
        end_unix_ns=START + end * MS,
        attributes=attributes,
        **extra,
    )


def test_stages_and_gaps_add_up_to_the_whole():
    record = application_record(
        whole(**{"http.response.status_code": 200, "tailrace.stream": True, "tailrace.first_body_ns": 60 * MS}),
        [
            stage("preprocess.intent", 1, 5),
            stage("preprocess.retrieval", 5, 30),
            stage("model", 30, 90),
            stage("postprocess.safety", 92, 99),
        ],
    )
    assert broken_invariants(record) == []
    assert (record.vantage, record.request_id, record.service) == ("application", "r1", "rag")
    assert (record.span_id, record.parent_id, record.trace_id) == ("root", "caller", TRACE)
    assert record.stages() == {
        "preprocess": 29 * MS,
        "model": 60 * MS,
        "postprocess": 7 * MS,
        "unattributed": 4 * MS,
    }
    assert record.parts_ns == {
        "preprocess.intent": 4 * MS,
        "preprocess.retrieval": 25 * MS,
        "postprocess.safety": 7 * MS,
    }
    assert record.stage_sources["model"] == "reported(span tailrace.stage)"
    assert (record.e2e_ns, record.ttft_ns, record.http_status) == (100 * MS, 60 * MS, 200)
    assert (record.outcome, record.reason, record.died_in) == (OutcomeKind.COMPLETED, Reason.NONE, "")


def test_a_budget_that_was_over():
    record = application_record(
        whole(
            **{
                "tailrace.outcome": "timed_out",
                "tailrace.reason": "stage_timeout",
                "tailrace.died_in": "preprocess.retrieval.index",
                "tailrace.budget": "preprocess.retrieval",
            }
        ),
        [
            stage("preprocess.retrieval", 0, 100, "a", attributes={"tailrace.over_budget": True}),
            stage("preprocess.retrieval.index", 10, 100, "b", "a"),
            stage("preprocess.intent", 0, 10, attributes={"tailrace.over_budget": True}),
        ],
    )
    assert broken_invariants(record) == []
    assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.STAGE_TIMEOUT)
    assert (record.died_in, record.budget) == ("preprocess.retrieval.index", "preprocess.retrieval")
    assert record.slow == ["preprocess.intent"]
    assert record.keep_reason == "timed_out"


@pytest.mark.parametrize(
    ("attributes", "code", "expected"),
    [
        ({"http.response.status_code": 200}, 0, ("completed", "")),
        ({}, 0, ("completed", "")),
        ({}, 2, ("failed", "application_error")),
        ({"http.response.status_code": 502}, 0, ("failed", "application_error")),
        ({"http.response.status_code": 429}, 2, ("rejected", "rate_limited")),
        ({"http.response.status_code": 404}, 0, ("rejected", "bad_request")),
        ({"tailrace.outcome": "nonsense", "http.response.status_code": 403}, 0, ("rejected", "unauthorized")),
        ({"tailrace.outcome": "cancelled", "tailrace.reason": "deadline"}, 0, ("cancelled", "deadline")),
        ({"tailrace.outcome": "cancelled", "tailrace.reason": "stage_timeout"}, 0, ("cancelled", "client_disconnect")),
        ({"tailrace.outcome": "timed_out"}, 0, ("timed_out", "stage_timeout")),
        ({"tailrace.outcome": "completed", "tailrace.reason": "deadline"}, 0, ("completed", "")),
    ],
)
def test_how_it_ended_where_the_service_says_little(attributes, code, expected):
    root = whole()
    root = msgspec.structs.replace(root, attributes={"tailrace.request_id": "r", **attributes}, status_code=code)
    record = application_record(root, [stage("model", 0, 50, status_code=2), stage("model.call", 2, 50, status_code=2)])
    assert (record.outcome.value, record.reason.value) == expected
    assert record.died_in == ("" if expected[0] == "completed" else "model.call")
    assert broken_invariants(record) == []


NAMES = st.sampled_from([*REPORTABLE, "preprocess.retrieval", "postprocess.safety", "ingress", "response", "x.y", ""])
CHILD = st.builds(
    lambda name, begin, end, at, up: stage(name, begin, end, f"s{at}", "root" if up < 0 else f"s{up}"),
    NAMES,
    st.integers(-20, 140),
    st.integers(-20, 140),
    st.integers(0, 6),
    st.integers(-1, 6),
)


@given(st.lists(CHILD, max_size=10), st.integers(-5, 100))
def test_whatever_a_service_sends_the_record_adds_up(stages, ms):
    record = application_record(whole(ms), stages)
    assert broken_invariants(record) == []
    assert record.e2e_ns == max(0, ms) * MS
    again = msgspec.json.decode(msgspec.json.encode(record), type=type(record))
    assert again == record


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("preprocess.retrieval", "preprocess.retrieval"),
        ("model", "model"),
        ("ingress", ""),
        ("unattributed", ""),
        ("preprocess.", ""),
        ("preprocess.\x1b[31m", ""),
        ("x" * 300, ""),
        (7, ""),
        (None, ""),
    ],
)
def test_which_names_are_stages_of_a_service(said, expected):
    assert stage_name(stage("model", 0, 1, attributes={"tailrace.stage": said})) == expected


@pytest.mark.parametrize("said", ["", None, 5, "x" * 201, "a\nb"])
def test_what_is_no_request_of_a_service(said):
    assert not is_whole(msgspec.structs.replace(whole(), attributes={"tailrace.request_id": said}))
