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


# -- load generators beside the truth


def probe_row(tool: str, number: int, cpu_s: float, **more: Any) -> dict[str, Any]:
    """A window at 128 streams in which everything was reported as it was."""
    true = {"ttft_p50": 125.0, "ttft_p90": 215.0, "ttft_p99": 331.0, "gap_p99": 194.0, "tpot_p99": 27.3}
    true |= {"e2e_p99": 2842.0, "tokens_per_s": 5134.0}
    cost = {"cpu_s": cpu_s, "cpu_s_per_100k": cpu_s / 1.28, "tokens": 128_000, "peak_pss_mib": 50.0, "processes": 1}
    row = {"tool": tool, "round": number, "streams": 128, "rate": None, "limited": "", "connections": 128, **cost}
    return {**row, "to_first_request_s": 0.5, "beyond_s": 1.0, "reported": true, "true": true, **more}


def probe_page(tmp_path: Path, rows: list[dict[str, Any]]) -> tuple[int, str]:
    conditions = {"date": "2026-01-01", "machine": "m", "rounds": "r", "load": "l", "note": "n", "versions": {}}
    (tmp_path / "parts.json").write_text(json.dumps({"rows": rows, "conditions": conditions}))
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text())
    command = [sys.executable, str(ROOT / "bench" / "probe"), "--from", str(tmp_path), "--page", str(page)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ended.stderr
    return ended.returncode, page.read_text()


def test_a_figure_that_is_wrong_is_bold_and_one_that_is_missing_is_a_dash(tmp_path):
    ours = probe_row("tailrace", 0, 6.0)
    ours["reported"] = {**ours["reported"], "ttft_p99": None}
    theirs = probe_row("guidellm", 0, 50.0, limited="root_late", connections=1270)
    theirs["reported"] = {**theirs["reported"], "gap_p99": 27.5}
    code, page = probe_page(tmp_path, [ours, theirs])
    assert code == 0
    assert "| Tailrace | 128 | 125.0 / 125.0 | 215.0 / 215.0 | - / 331.0 | 194.0 / 194.0 |" in page
    assert "| **27.5 / 194.0** |" in page
    assert "| 1,270 | 1 of 1 |" in page
    gateway = (ROOT / "docs" / "benchmarks.md").read_text().partition("<!-- end: scripts/bench gateway -->")[0]
    assert page.startswith(gateway), "the other harness's part is left alone"


def test_the_cost_is_judged_by_the_ratio_within_each_round(tmp_path):
    # In the second round the whole machine was four times slower.
    pairs = [(6.0, 7.0), (24.0, 28.0), (6.2, 7.0)]
    rows = [probe_row("tailrace", n, ours) for n, (ours, _) in enumerate(pairs)]
    rows += [probe_row("vllm", n, theirs) for n, (_, theirs) in enumerate(pairs)]
    assert probe_page(tmp_path, rows)[0] == 0
    rows += [probe_row("aiperf", n, 20.0) for n in range(3)]
    code, page = probe_page(tmp_path, rows)
    assert code == 1
    (judged,) = [line for line in page.splitlines() if "1/4 of AIPerf" in line]
    assert "0.31 (0.30..1.20)" in judged
    assert "**broken**" in judged


def test_a_tool_that_failed_is_named_and_is_no_figure(tmp_path):
    lost = {"tool": "aiperf", "round": 0, "streams": 128, "rate": None, "fatal": "ValueError: no result"}
    code, page = probe_page(tmp_path, [probe_row("tailrace", 0, 6.0), lost])
    assert code == 1
    assert "Lost: AIPerf at 128 streams: `ValueError: no result`." in page


def test_a_schedule_is_judged_at_the_server():
    sys.path.insert(0, str(ROOT / "bench" / "probe"))
    try:
        import windows
    finally:
        sys.path.remove(str(ROOT / "bench" / "probe"))
    exact = [n * 5_000_000 for n in range(1000)]
    assert windows.schedule(exact, 200.0) == {"got_rate": 200.0, "late_p50_ms": 0.0, "late_p99_ms": 0.0}
    drifting = [n * 10_000_000 for n in range(1000)]
    assert windows.schedule(drifting, 200.0)["got_rate"] == 100.0
    assert windows.schedule(drifting, 200.0)["late_p99_ms"] == 4950.0
    stalled = [at + (50_000_000 if 500 <= n < 520 else 0) for n, at in enumerate(exact)]
    assert windows.schedule(stalled, 200.0)["late_p99_ms"] == 50.0


def test_without_the_truth_server_it_says_where_to_put_it(tmp_path):
    env = dict(os.environ) | {"TAILRACE_SHARED": str(tmp_path)}
    command = [sys.executable, str(ROOT / "bench" / "probe"), "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"no truth server at {tmp_path}" in ended.stderr
    assert "Traceback" not in ended.stderr
