"""A real Triton behind the gateway over HTTP: `infer`, `generate`, `generate_stream`."""

from __future__ import annotations

import statistics

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("triton", "grpc"),
    pytest.mark.long("a real server loads its models and streams at the pace of one", timeout=120),
]

STEP_NS = 25e6
STREAM = "/v2/models/count/generate_stream"


def numbers(*values: float, request_id: str = "h1") -> dict:
    return {
        "id": request_id,
        "inputs": [{"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": list(values)}],
    }


def test_infer(through):
    status, answer = through.post("/v2/models/double/infer", numbers(1.0, 2.5))
    assert status == 200
    assert answer["id"] == "h1"
    assert next(output for output in answer["outputs"] if output["name"] == "y")["data"] == [2.0, 5.0]
    [record] = through.new_records(1)
    assert (record.endpoint, record.engine) == ("/v2/models/{model}/infer", "triton")
    assert (record.outcome, record.http_status, record.stream) == (OutcomeKind.COMPLETED, 200, False)
    assert record.e2e_ns > 15e6
    assert broken_invariants(record) == []


def test_generate_of_a_model_that_streams_is_a_failure_with_status_200(through):
    """Triton answers `{"error": …}` with status 200 where a model gives more answers than one."""
    status, answer = through.post("/v2/models/count/generate", {"text_input": "go", "max_tokens": 3})
    assert status == 200
    assert "error" in answer
    [record] = through.new_records(1)
    assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.ENGINE_ERROR)
    assert record.error == answer["error"]


def test_generate_of_one_answer(through):
    status, answer = through.post("/v2/models/count/generate", {"id": "g1", "text_input": "go", "max_tokens": 1})
    assert (status, answer["text_output"], answer["id"]) == (200, "go0 ", "g1")
    [record] = through.new_records(1)
    assert (record.outcome, record.endpoint) == (OutcomeKind.COMPLETED, "/v2/models/{model}/generate")


def test_generate_stream(through):
    events, _ = through.stream(STREAM, {"text_input": "go", "max_tokens": 6})
    assert [event["text_output"] for event in events] == [f"go{n} " for n in range(6)]
    [record] = through.new_records(1)
    assert (record.outcome, record.endpoint) == (OutcomeKind.COMPLETED, "/v2/models/{model}/generate_stream")
    assert (record.output_tokens, record.chunk_gap_count) == (6, 5)
    assert 0.9 * STEP_NS < record.tpot_ns < 2 * STEP_NS
    assert 0.9 * STEP_NS < record.ttft_ns < 200e6
    assert broken_invariants(record) == []


def test_an_unknown_model(through):
    status, answer = through.post("/v2/models/nothing/infer", numbers(1.0))
    assert status >= 400
    assert "unknown model" in answer["error"]
    [record] = through.new_records(1)
    assert (record.outcome, record.http_status) == (OutcomeKind.REJECTED, status)


def test_administration_does_not_pass(through):
    status, _ = through.post("/v2/repository/index", {})
    assert status == 403


def test_a_client_that_leaves_frees_the_engine_as_soon_as_a_direct_one(through):
    def leave(*, direct):
        before = len(through.server.leavings())
        body = {"text_input": "go", "max_tokens": 200}
        _, left_at = through.stream(STREAM, body, direct=direct, leave_after=3)
        _, at = through.server.next_leaving(before)
        return (at - left_at) / 1e6

    direct = statistics.median(leave(direct=True) for _ in range(3))
    relayed = statistics.median(leave(direct=False) for _ in range(3))
    assert relayed - direct < 50, (relayed, direct)
    for record in through.new_records(3):
        assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
        assert record.died_in == "decode"
