"""`tailrace simulate`: its summary, its run file, what it refuses."""

from __future__ import annotations

import json
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
