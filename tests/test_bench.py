"""The gateway comparison judges and writes what was measured; the load itself is not run here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACED, SINGLE = ("s16", "s64", "s200"), ("r16", "r64")


def bench(*args: str, shared: str | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ) | ({"TAILRACE_SHARED": shared} if shared else {})
    command = [sys.executable, str(ROOT / "bench" / "gateway"), *args]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)


def row(name: str, scenario: str, number: int, cost: float) -> dict[str, Any]:
    """A window in which each unit of work cost so many CPU seconds."""
    work = 1000 if scenario in SINGLE else 100_000
    spread = {"p50": 200, "p90": 300, "p99": 400}
    done = {"reqs": 1000, "chunks": work, "cpu_s": cost, "rps": 200.0, "rss_mb": 20.0, "errors": 0}
    return {"name": name, "scenario": scenario, "round": number, **done, "ttft_us": spread, "relay_us": spread}


def parts(costs: dict[str, list[float]]) -> dict[str, Any]:
    """Costs by gateway, one a round, the same in every scenario."""
    rounds = range(len(next(iter(costs.values()))))
    rows = [
        row(name, scenario, number, costs[name][number])
        for number in rounds
        for scenario in (*PACED, *SINGLE)
        for name in costs
    ]
    conditions = {"date": "2026-01-01", "machine": "m", "rounds": "r", "load": "l", "note": "n"}
    versions = dict.fromkeys(costs, "1.0")
    empty: dict[str, list] = {"first_token": [], "conduct": [], "soak": []}
    return {"windows": rows, "conditions": {**conditions, "versions": versions}, **empty}


def judged(tmp_path: Path, costs: dict[str, list[float]], **more: Any) -> subprocess.CompletedProcess[str]:
    (tmp_path / "parts.json").write_text(json.dumps(parts(costs) | more))
    return bench("--from", str(tmp_path), "--no-page")


def lines(ended: subprocess.CompletedProcess[str], mark: str) -> list[str]:
    return [line for line in ended.stdout.splitlines() if line.startswith(mark)]


def test_without_the_harness_it_says_where_to_put_it(tmp_path):
    ended = bench("--quick", shared=str(tmp_path))
    assert ended.returncode == 2
    assert f"no gateway harness at {tmp_path}" in ended.stderr
    assert "TAILRACE_SHARED" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_median_of_the_rounds_ratios_is_judged_and_not_the_pool(tmp_path):
    # In the third round the whole machine was ten times slower, and nginx was lucky: pooled, the ratio is above 2.
    ended = judged(tmp_path, {"nginx": [1, 1, 10], "tailrace": [1.5, 1.5, 25]})
    assert ended.returncode == 0, ended.stdout
    assert any("1.50 (1.50..2.50)" in line for line in lines(ended, "ok"))
    assert not lines(ended, "BROKEN")


def test_a_broken_budget_is_named_and_is_the_exit_code(tmp_path):
    ended = judged(tmp_path, {"nginx": [1, 1, 1], "tailrace": [2.7, 2.8, 2.7]})
    assert ended.returncode == 1
    (broken,) = lines(ended, "BROKEN")
    assert "100k paced chunks ≤ 2.5" in broken
    assert "2.70 (2.70..2.80)" in broken


def test_a_router_may_cost_less_by_so_much_and_no_more(tmp_path):
    costs = {"nginx": [1, 1, 1], "vllm-router": [1.0, 1.2, 1.0], "tailrace": [1.2, 1.2, 1.2]}
    assert lines(judged(tmp_path, costs), "BROKEN") == []
    costs["vllm-router"] = [0.9, 0.9, 0.9]
    (broken,) = lines(judged(tmp_path, costs), "BROKEN")
    assert "100k paced chunks ≤ 1.25" in broken
    assert "vllm-router" in broken
    costs["vllm-router"] = [0.5, 0.5, 0.5]
    assert len(lines(judged(tmp_path, costs), "BROKEN")) == 2


def test_memory_that_grows_and_errors_break_the_soak(tmp_path):
    spread = {"p50": 1000, "p90": 2000, "p99": 3000}
    soak = {"name": "tailrace", "streams": 1000, "errors": 1, "chunks_per_s": 20000, "cpu_util": 0.5}
    soak |= {"relay_us": spread, "ttft_us": spread, "memory": [[second, 100 + second, 300] for second in range(60)]}
    ended = judged(tmp_path, {"nginx": [1], "tailrace": [1]}, soak=[soak])
    assert [line.split(":")[0] for line in lines(ended, "BROKEN")] == ["BROKEN  1,000 streams"] * 2


def test_only_the_part_between_the_marks_is_rewritten(tmp_path):
    (tmp_path / "parts.json").write_text(json.dumps(parts({"nginx": [1], "tailrace": [1.2]})))
    page = tmp_path / "page.md"
    whole = (ROOT / "docs" / "benchmarks.md").read_text()
    page.write_text(whole)
    assert bench("--from", str(tmp_path), "--page", str(page)).returncode == 0
    first = page.read_text()
    assert bench("--from", str(tmp_path), "--page", str(page)).returncode == 0
    assert page.read_text() == first
    assert "| Tailrace | 1.20 (1.20..1.20) | 1.20 (1.20..1.20) |" in first
    assert first.partition("<!-- begin")[0] == whole.partition("<!-- begin")[0]
    assert first.partition("<!-- end")[2] == whole.partition("<!-- end")[2]


def test_an_arm_that_is_none_is_refused_with_the_names_of_those_there_are():
    command = [sys.executable, str(ROOT / "bench" / "govern"), "--only", "storm,flood"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "no flood; there are overload, storm, killed, canary, shares" in ended.stderr
