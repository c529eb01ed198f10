"""`tailrace simulate`: its summary, its run file, what it refuses."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tailrace.analyze.bench_summary import summarise_run
from tailrace.model.measurement import BenchSummary
from tailrace.model.record import broken_invariants
from tailrace.store.run_file import read_run
from tests.children import child_env, tailrace_command


def simulate(*args: str, timeout: float = 18.0) -> subprocess.CompletedProcess:
    return subprocess.run(
        tailrace_command("simulate", *args),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=child_env(),
        check=False,
    )


def test_the_summary_is_that_of_a_bench_and_the_run_file_says_the_same(tmp_path):
    import msgspec

    out = tmp_path / "sim.run"
    args = ("--rate", "7", "--requests", "300", "--mix", "short:0.9,long:0.1", "--no-chunked-prefill", "--seed", "3")
    done = simulate(*args, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    summary = msgspec.json.decode(done.stdout, type=BenchSummary)
    assert summary.n == 300
    assert summary.metrics["ttft_ms"].p90 > summary.metrics["ttft_ms"].p50 > 0
    assert summary.metrics["itl_ms"].n == summary.metrics["chunk_gap_ms"].n > 10_000
    run = read_run(out)
    assert (run.header.kind, run.header.target, run.header.arrival.kind) == ("simulate", "a100-llama3-8b", "poisson")
    assert run.header.knobs["enable_chunked_prefill"] is False
    assert set(summary.mix) == set(run.header.classes) == {"short", "long"}
    assert run.trailer.n == len(run.records) == 300
    assert not any(broken_invariants(record) for record in run.records)
    assert msgspec.json.encode(summarise_run(run)) == msgspec.json.encode(summary)
    again = json.loads(simulate(*args, "--json").stdout)
    assert again["metrics"] == json.loads(done.stdout)["metrics"]


def test_a_trace_plays_at_its_own_times(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,prompt_tokens,output_tokens\n" + "".join(f"{i * 0.5},400,20\n" for i in range(10)))
    done = simulate("--trace", str(trace), "--json")
    summary = json.loads(done.stdout)
    assert summary["n"] == 10
    assert summary["metrics"]["queue_ms"]["max"] == 0
    assert 4.5 < 10 / summary["requests_per_s"] < 5.5


def test_for_people_there_is_a_table():
    done = simulate("--rate", "2", "--requests", "50")
    assert done.returncode == 0
    assert "Simulated a100-llama3-8b: 50 requests" in done.stdout
    assert "TTFT" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--rate: a simulation needs arrivals. Give --rate 5, or --trace FILE."),
        (("--rate", "5", "--preset", "tpu"), "--preset: there is no preset 'tpu'."),
        (("--rate", "5", "--mix", "nobody"), "--mix: there is no class 'nobody'."),
        (("--rate", "5", "--requests", "0"), "--requests: must be above 0, got 0"),
        (("--rate", "5", "--duration", "inf"), "--duration: must be above 0, got inf"),
        (("--rate", "5", "--step-overhead-ms", "inf"), "--step-overhead-ms: inf is no time"),
        (("--trace", "/no/such/file"), "/no/such/file: cannot be read (No such file or directory)."),
        (("--rate", "5", "--max-num-batched-tokens", "8", "--max-num-seqs", "9"), "max_num_batched_tokens: 8 is less"),
    ],
)
def test_bad_input_is_one_sentence(args, message):
    done = simulate(*args)
    assert done.returncode == 2
    assert done.stderr.startswith(f"tailrace simulate: {message}")
    assert done.stderr.count("\n") == 1


LANES = """
backends:
  - {name: one, url: "http://127.0.0.1:8000"}
  - {name: two, url: "http://127.0.0.1:8001"}
objectives: {ttft_p99: 500ms, tpot_p99: 80ms}
lanes:
  - {name: chat, match: {max_prompt_tokens: 2000}, priority: high}
  - {name: docs, match: {min_prompt_tokens: 2001}, running: 2, queued: 3, prefill_requests: 1, backends: [two],
     objectives: {ttft_p99: 10s}}
"""
LOAD = ("--rate", "30", "--duration", "20", "--mix", "short:0.8,long:0.2", "--timelines", "none", "--seed", "4")


def test_a_gateways_configuration_governs_and_its_lanes_are_told(tmp_path):
    config, out, log = tmp_path / "tailrace.yaml", tmp_path / "sim.run", tmp_path / "decisions.jsonl"
    config.write_text(LANES)
    options = ("-c", str(config), "--retries", "2", "--out", str(out), "--decisions", str(log), "--json")
    done = simulate(*LOAD, *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["lanes"]) == {"chat", "docs"}
    assert told["lanes"]["chat"]["completed"] == told["lanes"]["chat"]["n"]
    assert told["refusals"]["n"] == told["refusals"]["with_retry_after"] > 20
    run = read_run(out)
    assert {record.backend for record in run.records if record.lane == "docs" and record.backend} == {"two"}
    # Chat goes where the fewest tokens are outstanding: away from the documents.
    assert {record.backend for record in run.records if record.lane == "chat"} == {"one"}
    assert not any(broken_invariants(record) for record in run.records)
    assert max(record.retries for record in run.records) == 2
    assert run.header.objectives.bounds["docs/ttft"] == {0.99: 10_000_000_000}
    assert run.header.knobs["lanes"][1]["running"] == 2
    assert summarise_run(run).n == told["n"] == len(run.records)
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    assert [note["at_ms"] for note in notes] == sorted(note["at_ms"] for note in notes)
    refused = [note for note in notes if note["step"] == "refuse"]
    assert len(refused) == told["refusals"]["n"]
    assert all(note["retry_after_s"] >= 1 and note["lane"] == "docs" for note in refused)
    assert {note["request_id"] for note in notes} == {record.request_id for record in run.records}


def test_the_same_load_without_the_gateway_is_sorted_into_its_lanes(tmp_path):
    config = tmp_path / "tailrace.yaml"
    config.write_text(LANES)
    done = simulate(*LOAD, "-c", str(config), "--ungoverned", "--engines", "1")
    assert done.returncode == 0, done.stderr
    assert "calls were served" in done.stdout
    assert "docs, did not complete" not in done.stdout
    served, calls = re.search(r"([\d,]+) of ([\d,]+) calls were served", done.stdout).groups()
    assert served == calls
    assert re.search(r"chat +\d+ +\d+ .*\n *docs +\d+ +\d+ ", done.stdout)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--retries", "2"), "there is no gateway to simulate"),
        (("-c", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_what_needs_a_gateway_says_so(options, says):
    done = simulate("--rate", "5", "--requests", "5", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
