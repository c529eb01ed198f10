"""Results of other load generators through the commands, as a user runs them: a process, its streams, its exit code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tailrace.cli import main
from tests.children import child_env, tailrace_command
from tests.diagnose.foreign_results import sglang, vllm, without_requests, write


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Tailrace = Callable[..., Done]


@pytest.fixture
def tailrace(capsys: pytest.CaptureFixture[str]) -> Tailrace:
    """The command in this process: what it does, without the second that a new interpreter takes."""

    def run(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as end:
            main(list(map(str, arguments)))
        return Done(int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def ok(tailrace: Tailrace) -> Callable[..., str]:
    def run(*arguments: object) -> str:
        done = tailrace(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def many(seed: int, *, slower: float = 1.0) -> dict[str, Any]:
    """Four hundred streams of a completions endpoint, 10/s."""
    rng = np.random.default_rng(seed)
    ttfts = (slower * (0.1 + rng.exponential(0.02, 400))).tolist()
    itls = (0.02 * rng.lognormal(0, 0.1, (400, 9))).tolist()
    return vllm(
        request_rate=10.0, num_prompts=400, completed=400, failed=0, duration=40.0, input_lens=[20] * 400,
        output_lens=[10] * 400, ttfts=ttfts, itls=itls,
        latencies=[ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)],
        start_times=[7.0 + i / 10 for i in range(400)], queue_times=[0.0] * 400, errors=[""] * 400,
    )  # fmt: skip


def test_compare_takes_results_and_finds_what_changed(
    tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]
) -> None:
    a, b = write(tmp_path, many(0), "a.json"), write(tmp_path, many(1, slower=2.0), "b.json")
    found = json.loads(ok("compare", a, b, "--json"))
    assert found["verdict"] == "regressed"
    assert found["metrics"]["ttft_ms.p50"]["delta_pct"] == pytest.approx(100, abs=10)
    assert any("Nobody watched the client" in text for text in found["checks"])
    assert tailrace("compare", a, b, "--fail-on", "regressed").returncode == 1


def test_compare_with_percentiles_alone_gives_no_verdict(
    tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]
) -> None:
    told = {**without_requests(many(0)), "median_ttft_ms": 110.0, "p99_ttft_ms": 200.0}
    a, b = write(tmp_path, told, "a.json"), write(tmp_path, many(1), "b.json")
    text = ok("compare", a, b)
    assert "No verdict" in text
    assert "percentiles only" in text
    assert "ttft_ms.p50" in text


def test_diagnose_reads_requests_and_says_what_percentiles_lack(
    tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]
) -> None:
    assert "TTFT p95" in ok("diagnose", write(tmp_path, many(0)))
    done = tailrace("diagnose", write(tmp_path, {**without_requests(vllm()), "mean_ttft_ms": 5.0}, "told.json"))
    assert done.returncode == 0, "percentiles are evidence, if too little here"
    assert "Cannot tell" in done.stdout
    assert "requests one by one" in done.stdout
    assert "--save-detailed" in done.stdout, "and how to have them"


def test_a_report_of_another_tool_s_result(tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]) -> None:
    """Its page shows what the tool told, and says that the rest was not."""
    page = tmp_path / "page.html"
    made = json.loads(ok("report", write(tmp_path, many(0)), "--out", page, "--json"))
    assert made["summary"]["n"] == 400
    assert made["summary"]["metrics"]["e2e_ms"]["n"] == 0
    assert made["summary"]["metrics"]["e2e_last_token_ms"]["n"] == 400
    assert "the results of vllm do not tell it" in page.read_text()


def test_a_file_of_several_runs_asks_for_one(tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]) -> None:
    path = write(tmp_path, "".join(json.dumps(sglang(max_concurrency=n)) + "\n" for n in (1, 8)))
    done = tailrace("records", "view", path)
    assert (done.returncode, "#2 (8 at once" in done.stderr) == (2, True)
    shown = json.loads(ok("records", "view", f"{path}#2", "--json"))
    assert (shown["source"], shown["summary"]["n"]) == ("sglang", 2)
    assert "client_health" in shown["absent"]


def test_view_in_another_tool_s_words(tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]) -> None:
    path = write(tmp_path, many(0))
    text = ok("records", "view", path, "--as", "guidellm")
    assert "As GuideLLM 0.8.1 would have it" in text
    assert "inter_token_latency_ms: our TPOT under another name" in text
    view = json.loads(ok("records", "view", path, "--as", "vllm", "--json"))
    assert view["peak_frames_per_s"] > 0
    assert {one["name"] for one in view["metrics"]} == {"TTFT", "TPOT", "ITL", "E2EL"}
    done = tailrace("records", "view", path, "--as", "wrk")
    assert (done.returncode, "there is no view of 'wrk'" in done.stderr) == (2, True)


def test_bench_refuses_an_unknown_view_before_it_sends_anything(
    tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]
) -> None:
    done = tailrace("bench", "http://127.0.0.1:9", "--as", "wrk", "--out", tmp_path / "a.run")
    assert (done.returncode, "there is no view of 'wrk'" in done.stderr) == (2, True)
    assert not (tmp_path / "a.run").exists()


def test_export_and_back(tmp_path: Path, tailrace: Tailrace, ok: Callable[..., str]) -> None:
    path, out = write(tmp_path, many(0), "a.json"), tmp_path / "b.jsonl"
    done = tailrace("records", "export", path, "--format", "aiperf", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "not in the form of aiperf: " in done.stderr or "400 requests written" in done.stderr
    assert json.loads(ok("records", "view", out, "--json"))["source"] == "aiperf"
    rows = ok("records", "export", path, "--format", "csv").splitlines()
    assert len(rows) == 401
    for arguments, says in (
        (("--format", "vllm"), "takes one load test"),
        ((path, "--format", "vllm", "--out", path), "written over itself"),
        ((path, "--format", "yaml"), "no format 'yaml'"),
        ((path, "--format", "jsonl", "--since", "1h"), "chooses from a data directory"),
    ):
        done = tailrace("records", "export", *arguments)
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_as_a_process_it_writes_bytes_and_leaves_with_a_code(tmp_path: Path) -> None:
    command = tailrace_command("records", "export", str(write(tmp_path, many(0))), "--format", "guidellm")
    done = subprocess.run(command, env=child_env(), capture_output=True, timeout=18, check=True)
    assert json.loads(done.stdout)["metadata"]["version"] == 2
    assert b"not in the form of guidellm: 400 requests' timelines" in done.stderr
