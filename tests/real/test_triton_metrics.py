"""A real Triton's own counts beside the gateway's: a stream whose client left is a success to it."""

from __future__ import annotations

import time

import pytest

from tests.real.conftest import get
from tests.real.triton_stack import TritonStack

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("triton", "grpc"),
    pytest.mark.long("a real server loads its models and streams at the pace of one", timeout=120),
]


def test_a_stream_that_was_left_is_a_success_to_triton(through: TritonStack) -> None:
    deadline = time.monotonic() + 30
    while get(f"{through.gateway.admin}/backends")["backends"][0]["scrapes"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    path, asked = "/v2/models/count/generate_stream", {"text_input": "go", "max_tokens": 12}
    for _ in range(2):
        through.stream(path, asked)
    through.stream(path, asked, leave_after=3)
    through.new_records(3)
    while True:
        (backend,) = get(f"{through.gateway.admin}/backends?window=300")["backends"]
        counts = backend["counts"]
        if counts["engine"]["finished"] == 3 and counts["gateway"]["sent"] == 3:
            break
        assert time.monotonic() < deadline, counts
        time.sleep(0.1)
    assert (counts["gateway"]["completed"], counts["gateway"]["cancelled"]) == (2, 1)
    assert counts["engine"]["aborted"] is None
    assert counts["engine"]["failed.CANCELED"] == 0
    assert any("counts a stream whose client left as a success" in why for why in counts["why"])
    queue = backend["window"]["signals"]["queue"]
    assert queue["n"] == 3
    assert queue["mean_ms"] >= 0
    assert "prefill" not in backend["window"]["signals"], "its compute times are no stages of a stream"
