"""A real vLLM that sends its spans to the gateway: only what was asked for is traced, and its start is told."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.children import Child, tailrace_command
from tests.conftest import vllm_python
from tests.real.stream_client import stream

pytestmark = [
    pytest.mark.tier("all"),
    pytest.mark.needs("vllm"),
    pytest.mark.long("a real vLLM takes half a minute to start", timeout=600),
]
REQUESTS = 24
CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:{admin}
backends:
  - {{url: "{url}", engine: vllm}}
budgets: {{queue: 60s, first_token: 120s, idle: 60s, total: 240s, unstreamed_total: 240s}}
records: {{dir: "{folder}", sample: 1.0}}
traces: {{share: 0.5, per_second: 1000}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def chat(number: int) -> dict[str, Any]:
    return {
        "model": "random",
        "messages": [{"role": "user", "content": f"word{number} word1 word2"}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "allowed_token_ids": list(range(400, 500)),
        "stream": True,
    }


def test_traceparent_flag_00_no_span_and_the_others_join(tmp_path: Path) -> None:
    admin, port = free_port(), free_port()
    url = f"http://127.0.0.1:{admin}"
    config = tmp_path / "tailrace.yaml"
    config.write_text(CONFIG.format(admin=admin, url=f"http://127.0.0.1:{port}", folder=tmp_path / "data"))
    # The gateway first: an engine tells its start once.
    gateway = Child(tailrace_command("serve", "-c", str(config), "--json"))
    python = vllm_python()
    assert python is not None
    env = {
        **os.environ,
        "PORT": str(port),
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
    }
    flags = ["--max-model-len=512", f"--otlp-traces-endpoint={url}/v1/traces"]
    script = str(Path(__file__).with_name("vllm_server.py"))
    engine = Child([python, script, str(tmp_path / "vllm"), "small", *flags], env=env)
    try:
        gateway.wait_ready(60)
        engine.wait_ready(300)
        ids = [stream(gateway.url, chat(number))["id"] for number in range(REQUESTS)]

        def spans() -> dict[str, Any]:
            return dict(json.loads(get(f"{url}/backends"))["backends"][0]["spans"])

        deadline = time.monotonic() + 30
        asked = float(metric(url, 'tailrace_traces_asked_total{answer="granted",why="share"}'))
        assert 2 <= asked <= REQUESTS - 2  # half of them, by lot
        while spans()["joined"] < asked:
            assert time.monotonic() < deadline, spans()
            time.sleep(0.2)
        seen = spans()
        assert seen["amendments"] == seen["joined"] == asked
        assert (seen["not_understood_by_name"], seen["unaddressed"], seen["malformed"]) == ({}, 0, 0)

        lines = get(f"{url}/records?since=0&limit=1000&timeline=0").splitlines()
        records = [one for one in map(json.loads, lines) if one["request_id"] in ids]
        assert len(records) == REQUESTS
        source = "reported(span.gen_ai.latency.time_in_model_prefill)"
        told = [one for one in records if one["stage_sources"].get("prefill", "").startswith(source[:-1])]
        assert len(told) == asked
        for record in told:
            assert record["stage_sources"]["queue.engine"].startswith("reported(span.gen_ai.latency.time_in_queue")
            assert sum(record["stages_ms"].values()) == pytest.approx(record["e2e_ms"], abs=1e-6)

        backend = json.loads(get(f"{url}/backends"))["backends"][0]
        [start] = backend["cold_starts"]
        assert start["complete"]
        assert {"Overall Loading", "Load model", "Load weights", "Allocate KV cache"} <= set(start["parts_ms"])
        assert backend["cold_start_ms"] >= start["parts_ms"]["Load model"] > 0
    finally:
        engine.stop()
        gateway.stop()


def metric(url: str, series: str) -> str:
    lines = get(f"{url}/metrics").decode().splitlines()
    return next(line.rpartition(" ")[2] for line in lines if line.startswith(series))
