"""Engines' lines inside JSON, inside cells of a table, in fences of an issue; requests with objects inside."""

from __future__ import annotations

import json

import pytest

from tailrace.diagnose.causes.gateway.upstream_timeout import UpstreamTimeout
from tailrace.diagnose.readers.logs.log import read_log_text
from tests.diagnose.evidence_texts import asked, found
from tests.diagnose.logs.lines import v1


def stalled() -> list[str]:
    return [
        v1(at * 10, prompt=0.0 if at > 2 else 300.0, made=0.0 if at > 2 else 410.0, running=7, kv=11.0)
        for at in range(9)
    ]


def in_json(line: str, at: int) -> str:
    words = line.partition("] ")[2]
    return json.dumps(
        {
            "timestamp": f"2026-06-01T10:{at // 6:02d}:{at % 6}0Z",
            "level": "INFO",
            "logger": "vllm.v1",
            "message": words,
            "kubernetes": {"pod_name": "vllm-0"},
        }
    )


def in_cells(line: str, at: int) -> str:
    return f'2026-06-01T10:{at // 6:02d}:{at % 6}0Z,vllm-0,"{line}"'


@pytest.mark.parametrize("wrap", [in_json, in_cells, lambda line, _: line])
def test_a_stall_is_seen_however_its_lines_are_wrapped(tmp_path, wrap):
    text = "\n".join(wrap(line, at) for at, line in enumerate(stalled())) + "\n"
    finding = found(tmp_path, "ENGINE_STALL", vllm_txt=text)
    assert finding is not None
    assert "7 requests run" in finding.statement
    assert "60 s" in finding.statement


def test_stamps_and_pods_of_lines_in_json():
    seen = read_log_text("\n".join(in_json(line, at) for at, line in enumerate(stalled())), "a.log")
    series = next(item for item in seen.series if item.name == "running")
    assert series.axis == "time"
    assert series.labels["replica"] == "vllm-0"
    assert float(series.at[1] - series.at[0]) == 10.0


def test_an_object_without_words_or_with_other_words_is_no_line_of_an_engine():
    engine = stalled()[0]
    seen = read_log_text(
        "\n".join(
            [engine, json.dumps({"message": {"a": 1}}), json.dumps({"message": "started"}), json.dumps({"n": 1})]
        ),
        "a.log",
    )
    assert len(next(item for item in seen.series if item.name == "running")) == 1
    assert len(seen.understood[0].examples) == 3


def cloudflare(at: int, *, status: int = 200, ms: float = 3000.0) -> str:
    return json.dumps(
        {
            "EdgeStartTimestamp": 1767225600 + at * 9,
            "ClientRequestMethod": "POST",
            "ClientRequestURI": "/v1/chat/completions",
            "EdgeResponseStatus": status,
            "OriginResponseStatus": 0 if status == 524 else status,
            "OriginResponseTime": ms * 1e6,
            "EdgeTimeToFirstByteMs": ms,
        }
    )


def test_cloudflare_gives_up_after_its_own_time():
    text = "\n".join(
        cloudflare(at, status=524 if at % 4 == 1 else 200, ms=100_000.0 if at % 4 == 1 else 20_000.0 + at)
        for at in range(32)
    )
    finding = UpstreamTimeout().observe(read_log_text(text, "cf.log"))
    assert finding is not None
    assert "100 s" in finding.statement
    assert UpstreamTimeout().observe(read_log_text("\n".join(cloudflare(at) for at in range(32)), "cf.log")) is None


def nested(at: int, *, first: float = 0.2) -> str:
    sent = 1767225600.0 + at * 0.8
    return json.dumps(
        {
            "id": at,
            "request": {"prompt_tokens": 400, "max_tokens": 80},
            "timings": {"sent": sent, "first_token": sent + first, "done": sent + first + 1.1},
            "ok": True,
        }
    )


def test_requests_whose_times_stand_in_an_object_inside(tmp_path):
    slow = asked(tmp_path, a_jsonl="\n".join(nested(at, first=6.4 if at % 10 == 0 else 0.2) for at in range(100)))
    assert "10 of 100 requests" in slow.summary
    quick = asked(tmp_path, b_jsonl="\n".join(nested(at) for at in range(100)))
    assert "Nothing is wrong" in quick.summary


def workers(*running: int) -> str:
    lines = [
        f'sglang:num_running_reqs{{model_name="m",worker_addr="http://10.0.0.{at}:30000"}} {count}'
        for at, count in enumerate(running)
    ]
    return "\n".join(["# TYPE sglang:num_running_reqs gauge", *lines]) + "\n"


def test_workers_are_told_apart_by_their_address(tmp_path):
    finding = found(tmp_path, "LB_SKEW", r0_prom=workers(58, 3, 2), r1_prom=workers(61, 3, 2))
    assert finding is not None
    assert "61" in finding.statement
    assert found(tmp_path, "LB_SKEW", r0_prom=workers(20, 21, 19), r1_prom=workers(19, 20, 22)) is None
