"""Real engines told by what they answer about themselves: versions, quantisation, slots, batches, metrics."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from typing import Any

import pytest

from tests.real.stream_client import body, together

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.long("a real engine starts and is looked at every second", timeout=120),
]


def backend(admin: str, key: str) -> dict[str, Any]:
    """The view of the engine, once this fact is known."""
    deadline = time.monotonic() + 20
    while True:
        with urllib.request.urlopen(f"{admin}/backends", timeout=10) as answer:
            [seen] = json.loads(answer.read())["backends"]
        if key in seen["facts"]:
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


@pytest.mark.needs("llamacpp")
def test_llamacpp_tells_its_slots_and_its_quantisation(stack) -> None:
    seen = backend(stack.admin, "parameters")
    facts = {key: fact["value"] for key, fact in seen["facts"].items()}
    assert (seen["engine"], seen["basis"]) == ("llamacpp", "run")
    assert (facts["quantization"], facts["slots"], facts["parameters"]) == ("Q4_1", 8, 134515008)
    assert facts["version"] == seen["version"] != ""
    assert facts["slot_ctx"] == facts["max_model_len"] > 0
    assert seen["unknown_metrics"] == {"count": 0, "names": []}
    assert seen["contradictions"] == []
    [answer] = together(stack.url, [body("Say yes.", 3)])
    [record] = stack.wait_for_records(1, of=lambda record: record["request_id"] == answer["id"])
    assert record["quantization"] == "Q4_1"
    assert record["fact_sources"]["quantization"] == "/props: model_ftype"
    assert record["fact_sources"]["engine_version"] == "/props: build_info"


@pytest.mark.needs("triton", "grpc")
def test_triton_tells_its_version_and_the_batches_that_it_ran(through) -> None:
    seen = backend(through.gateway.admin, "version")
    assert (seen["engine"], seen["version"], seen["basis"]) == ("triton", "2.51.0", "run")
    assert seen["facts"]["backend"]["value"] == "python", "both of its models have that"
    assert "max_batch_size" not in seen["facts"], "its models do not agree on it"
    assert seen["unknown_metrics"] == {"count": 0, "names": []}
    ask = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    deadline = time.monotonic() + 10
    while not seen["batches"].get("double"):
        assert time.monotonic() < deadline, seen
        threads = [threading.Thread(target=through.post, args=("/v2/models/double/infer", ask)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = backend(through.gateway.admin, "version")
    ran = {int(size): count for size, count in seen["batches"]["double"]["executions"].items()}
    assert max(ran) <= 8
    assert seen["batches"]["double"]["queue_mean_ms"] >= 0
    through.post("/v2/models/double/infer", ask)
    with urllib.request.urlopen(f"{through.gateway.admin}/records?since=0&limit=1000", timeout=10) as answer:
        records = [json.loads(line) for line in answer.read().splitlines()]
    last = max((each for each in records if each["model"] == "double"), key=lambda each: each["start_unix_ns"])
    assert 1 <= last["batch_size"] <= 8
    assert last["fact_sources"]["batch_size"].startswith("/v2/models/stats: batch_stats")
    assert last["fact_sources"]["engine_version"] == "/v2: version"
