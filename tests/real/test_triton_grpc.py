"""A real Triton behind the gateway, asked by its own client library over gRPC."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tests.kserve_messages import SERVICE
from tests.real.triton_stack import admin_streams, triton_server, triton_stack

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("triton", "grpc"),
    pytest.mark.long("a real server loads its models and streams at the pace of one", timeout=120),
]

STEP_NS = 25e6
"""The pace of the model `count`."""


def test_a_unary_call(through):
    assert through.client("infer", values=[1.5, -2.0], request_id="u")["answers"] == [{"y": [[3.0, -4.0]], "batch": 1}]
    [record] = through.new_records(1)
    assert (record.endpoint, record.model, record.engine) == (SERVICE + "ModelInfer", "double", "triton")
    assert (record.outcome, record.client_request_id, record.stream) == (OutcomeKind.COMPLETED, "u0", False)
    assert record.e2e_ns > 15e6
    assert broken_invariants(record) == []


def test_calls_at_once_are_batched_as_without_the_gateway(through):
    answers = through.client("infer", request_id="b", times=24)["answers"]
    assert {tuple(answer["y"][0]) for answer in answers} == {(2.0, 4.0)}
    assert max(answer["batch"] for answer in answers) > 4
    records = through.new_records(24)
    assert {record.outcome for record in records} == {OutcomeKind.COMPLETED}
    assert len({record.request_id for record in records}) == 24


@pytest.mark.parametrize("want_final", [False, True])
def test_a_stream(through, want_final):
    answers = through.client("stream", requests=[["s1", "go", 6]], want_final=want_final)["answers"]
    assert [answer["text"] for answer in answers if answer["text"]] == [f"go{n} " for n in range(6)]
    assert sum(answer["final"] for answer in answers) == want_final, "who did not ask for the end mark sees none"
    [record] = through.new_records(1)
    assert (record.endpoint, record.model, record.outcome) == (SERVICE + "ModelStreamInfer", "count", "completed")
    assert (record.output_tokens, record.output_tokens_source, record.chunk_gap_count) == (6, "chunks", 5)
    assert (record.client_request_id, record.prompt_tokens, record.max_tokens) == ("s1", 1, 6)
    assert 0.9 * STEP_NS < record.tpot_ns < 2 * STEP_NS
    assert 0.9 * STEP_NS < record.ttft_ns < 200e6
    assert record.stages()["decode"] > 4.5 * STEP_NS
    assert broken_invariants(record) == []
    # The end mark ends it, not the end of the client's call, which came when the client was ready for it.
    assert record.stages()["postprocess"] < STEP_NS


def test_two_requests_of_one_stream(through):
    answers = through.client("stream", requests=[["a", "left", 4], ["b", "right", 7]])["answers"]
    assert [answer["text"] for answer in answers if answer["id"] == "a"] == [f"left{n} " for n in range(4)]
    a, b = through.new_records(2)
    assert (a.client_request_id, a.output_tokens) == ("a", 4)
    assert (b.client_request_id, b.output_tokens) == ("b", 7)
    assert b.request_id == f"{a.request_id}-2"
    assert b.e2e_ns > a.e2e_ns


def test_what_the_engine_refuses(through):
    [answer] = through.client("infer", model="nothing")["answers"]
    assert "nothing" in answer["error"]
    [answer] = through.client("stream", model="nothing", requests=[["x", "go", 1]])["answers"]
    assert "unknown model" in answer["error"]
    unary, streamed = through.new_records(2)
    for record in (unary, streamed):
        assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.UNKNOWN_MODEL)


def test_health_and_metadata_pass_and_administration_does_not(through):
    assert through.client("about") == {
        "live": True,
        "ready": True,
        "model_ready": True,
        "name": "triton",
        "config": "count",
        "index": "StatusCode.PERMISSION_DENIED",
    }


def test_a_client_that_leaves_frees_the_engine_as_soon_as_a_direct_one(through):
    def leave(*, direct):
        before = len(through.server.leavings())
        result = through.client("stream", direct=direct, requests=[["c", "go", 200]], leave_after=3)
        given, at = through.server.next_leaving(before)
        assert 3 <= given < 10
        return (at - result["left_at_ns"]) / 1e6

    direct = statistics.median(leave(direct=True) for _ in range(3))
    relayed = statistics.median(leave(direct=False) for _ in range(3))
    assert relayed - direct < 50, (relayed, direct)
    for record in through.new_records(3):
        assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
        assert record.died_in == "decode"
        assert record.output_tokens >= 3


def test_it_is_shown_while_it_runs(through):
    client = threading.Thread(target=through.client, args=("stream",), kwargs={"requests": [["v", "go", 60]]})
    client.start()
    try:
        deadline = time.monotonic() + 10
        while not (found := [row for row in admin_streams(through) if row["stage"] == "decode"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        client.join()
    assert (found[0]["model"], found[0]["endpoint"]) == ("count", SERVICE + "ModelStreamInfer")
    assert found[0]["tokens"] >= 1
    through.new_records(1)


def test_a_bare_grpcio_without_the_clients_library(through):
    """Bytes in, bytes out: a call made by hand, its ids and lane in the metadata that come back."""
    import grpc

    from tests.kserve_messages import StreamResponse, ask

    with grpc.insecure_channel(through.grpc) as channel:
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")
        answers = call(iter([ask("count", "h1", text="by hand", max_tokens=2)]), metadata=(("x-session-id", "s"),))
        texts = [StreamResponse.FromString(message).infer_response.raw_output_contents[0][4:] for message in answers]
        initial, trailing = dict(answers.initial_metadata()), dict(answers.trailing_metadata())
    assert texts == [b"by hand0 ", b"by hand1 "]
    [record] = through.new_records(1)
    assert initial["x-request-id"] == trailing["x-request-id"] == record.request_id
    assert trailing["x-tailrace-lane"] == record.lane == "default"
    assert record.session_id == "s"


def test_a_server_that_is_killed(tmp_path):
    """SIGKILL in the middle of a stream: the client is told at once, with the stage; what it had stays its own."""
    import grpc

    from tests.kserve_messages import ask

    (tmp_path / "gateway").mkdir()
    with (
        triton_server(tmp_path / "server") as server,
        triton_stack(server, tmp_path / "gateway") as stack,
        grpc.insecure_channel(stack.grpc) as channel,
    ):
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([ask("count", "k", max_tokens=400)]))
        next(call)
        os.kill(server.child.ready["pid"], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            for _ in call:
                pass
        assert time.monotonic() - killed < 1
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "in stage decode" in caught.value.details()
        [record] = stack.new_records(1)
        assert (record.outcome, record.reason, record.died_in) == (OutcomeKind.FAILED, Reason.STREAM_CUT, "decode")
        assert record.output_tokens >= 1
