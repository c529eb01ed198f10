"""`tailrace explain` and `tailrace replay` as they are typed, on a real server of the simulated engine."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.children import child_env, tailrace_command


def run_cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tailrace_command(*args), capture_output=True, text=True, timeout=40, env=child_env(), check=False
    )


@pytest.fixture
def stalled(tmp_path):
    out = str(tmp_path / "before.run")
    result = run_cli(
        "simulate", "--rate", "6", "--requests", "400", "--seed", "3", "--no-chunked-prefill",
        "--max-num-batched-tokens", "8192", "--mix", "chat=220/60:0.9,document=7000/60:0.1", "--out", out,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return out


def test_the_worst_request_is_explained(stalled):
    told = json.loads(run_cli("explain", "worst", stalled, "--json").stdout)
    assert told["waits"][0]["neighbours"][0]["lane"] == "document"
    printed = run_cli("explain", told["request_id"], stalled)
    assert printed.returncode == 0
    assert told["waits"][0]["neighbours"][0]["request_id"] in printed.stdout
    assert "known from" in printed.stdout
    assert max(map(len, printed.stdout.splitlines())) < 400


def test_what_is_not_there_is_said(stalled, tmp_path):
    unknown = run_cli("explain", "nobody", stalled)
    assert unknown.returncode == 2
    assert "there is no request 'nobody' among 400 records" in unknown.stderr
    nothing = run_cli("explain", "worst", str(tmp_path / "nothing.run"))
    assert nothing.returncode == 2


@pytest.mark.long("two short loads on a real server", timeout=60)
def test_a_request_is_slow_in_company_and_quick_alone(start_tailrace, stalled, tmp_path):
    url = start_tailrace(
        "engine", "--port", "0", "--no-chunked-prefill", "--max-num-batched-tokens", "8192", "--json"
    ).ready["url"]
    told = json.loads(run_cli("explain", "worst", stalled, "--json").stdout)
    metric = {"gap": "chunk_gap_max", "first token": "ttft"}[told["waits"][0]["kind"]]
    waits = {}
    for name, options in (("alone", ()), ("company", ("--with-neighbours",))):
        out = str(tmp_path / f"{name}.run")
        result = run_cli(
            "replay", told["request_id"], url, "--records", stalled, "--times", "3", "--pause", "250ms", "--out", out,
            "--json", *options,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        played = json.loads(result.stdout)
        assert played["failed"] == 0
        assert (played["neighbours"] > 0) == bool(options)
        waits[name] = next(one for one in played["seen"] if one["metric"] == metric)["replayed_ms"]
        assert len(waits[name]) == 3
    assert min(waits["company"]) > 3 * max(waits["alone"])
