"""GenAI-Perf's full export holds the bytes of each frame: its streams are read as any stream is.

The frames are those of the truth server, whose plan says what each of them carries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.diagnose.readers.foreign import Foreign
from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind
from tests.conftest import shared_path
from tests.diagnose.foreign_results import aggregate_of, read, run_of, write
from tests.diagnose.planned_streams import plan_record, planned, truth_module

START = 1_700_000_000_123_456_789
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


def export(*requests: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "service_kind": "openai",
        "endpoint": "v1/chat/completions",
        "experiments": [{"experiment": {"mode": "concurrency", "value": 4}, "requests": list(requests)}],
        "version": "",
        **changed,
    }


def request(frames: list[tuple[int, str]], start: int = START) -> dict[str, Any]:
    return {
        "timestamp": start,
        "request_inputs": {"payload": '{"model":"m","max_tokens":40}'},
        "response_timestamps": [start + at for at, _ in frames],
        "response_outputs": [{"response": text} for _, text in frames],
    }


@pytest.mark.needs("shared")
@pytest.mark.parametrize(
    "scenario",
    ["plain", "spec", "role_early", "empty_first", "pings", "crlf", "late_usage", "late_done", "no_usage", "reasoning",
     "reasoning_alt", "early_eos", "one_token", "cont_usage", "usage_with_finish", "mixed"],
)  # fmt: skip
def test_every_frame_is_what_the_server_meant_by_it(tmp_path: Path, scenario: str) -> None:
    plan = planned(scenario, 40)
    frames = [(round(event.at * 1e9), event.data.decode()) for event in plan]
    run = run_of(write(tmp_path, export(request(frames))))
    (record,) = run.records
    truth = truth_module("truth").stream_metrics(plan_record(plan))
    assert truth is not None
    assert (record.ttft_ns or 0) / 1e6 == pytest.approx(truth["ttft"], abs=1e-3)
    assert (record.ttft_content_ns or 0) / 1e6 == pytest.approx(truth["ttft_content"], abs=1e-3)
    assert (record.e2e_last_token_ns or 0) / 1e6 == pytest.approx(truth["e2e_last_token"], abs=1e-3)
    assert record.e2e_ns / 1e6 == pytest.approx(truth["e2e_done"], abs=1e-3)
    assert record.chunk_gap_count == len(truth["gaps"])
    if scenario != "no_usage":
        assert (record.output_tokens, record.output_tokens_source) == (truth["tokens"], "usage")
        tpot = None if record.tpot_ns is None else record.tpot_ns / 1e6
        assert tpot == (None if truth["tpot"] is None else pytest.approx(truth["tpot"], abs=1e-3))
    assert (record.model, record.max_tokens) == ("m", 40)
    assert run.header.granularity == "event"


def test_an_error_frame_is_a_failure(tmp_path: Path) -> None:
    fault = 'data: {"error":{"message":"out of memory","code":500}}\n\n'
    (record,) = run_of(write(tmp_path, export(request([(10**8, CHUNK), (2 * 10**8, fault)])))).records
    assert (record.outcome, record.error, record.output_tokens) == (OutcomeKind.FAILED, "out of memory", 1)


def test_bad_stamps_are_counted_and_left_out(tmp_path: Path) -> None:
    backwards = request([(-5, CHUNK), (10**8, CHUNK), (5 * 10**7, CHUNK)])
    source = read(write(tmp_path, export(backwards, request([(10**8, CHUNK)], start=0))))
    assert source.run is not None
    first, second = source.run.records
    assert first.timeline is not None
    assert first.timeline.at_ns == [5 * 10**7, 10**8]
    assert (second.ttft_ns, second.outcome) == (None, OutcomeKind.FAILED)
    assert any("before their request" in note for note in source.notes)


def test_triton_s_own_outputs_are_text_alone(tmp_path: Path) -> None:
    outputs = [{"text_output": ""}, {"text_output": "I"}, {"text_output": " like"}]
    made = request([(10**8, ""), (2 * 10**8, ""), (3 * 10**8, "")]) | {"response_outputs": outputs}
    (record,) = run_of(write(tmp_path, export(made, service_kind="triton", endpoint=""))).records
    assert (record.ttft_ns, record.e2e_last_token_ns, record.output_tokens) == (2 * 10**8, 3 * 10**8, 2)


def test_what_it_says_of_the_load(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, export(request([(10**8, CHUNK)]))))
    assert (run.header.arrival.kind, run.header.arrival.concurrency) == ("closed", 4)
    with pytest.raises(InputError, match=r"experiments\[0\]: is no result of GenAI-Perf"):
        read(write(tmp_path, export(experiments=[{"requests": 7}])))


@pytest.mark.needs("shared")
def test_of_its_summary_the_itl_is_theirs() -> None:
    path = shared_path() / "data/bench_samples/genai-perf/profile_export_genai_perf.shape.json"
    assert read(path).foreign is Foreign.GENAI_PERF_SUMMARY
    made = aggregate_of(path)
    assert (made.summary.n, made.summary.metrics["ttft_ms"].p50) == (80, pytest.approx(44.452, abs=1e-3))
    assert {"tpot_ms", "chunk_gap_ms", "e2e_last_token_ms"} <= set(made.header.absent)
    assert "time_to_second_token" in made.theirs
