"""`tailrace history` as it is typed."""

import json
import subprocess

import numpy as np

from tailrace.store.history_file import HistoryPoint, append_history
from tests.children import child_env, tailrace_command

DAY = 86_400 * 10**9


def history(folder, *words):
    return subprocess.run(
        tailrace_command("history", *words), capture_output=True, text=True, env=child_env(), cwd=folder, check=False
    )


def keep(folder, levels):
    noise = np.random.default_rng(1).normal(0, 0.04, len(levels))
    append_history(
        folder / "history.jsonl",
        [
            HistoryPoint(
                run=f"{i:03}.run", started_unix_ns=i * DAY, work="m · poisson 5/s", n=600, label=f"c{i}",
                values={"ttft_ms.p99": float(level * np.exp(noise[i])), "error_rate": 0.0},
            )
            for i, level in enumerate(levels)
        ],
    )  # fmt: skip


def test_a_new_level_fails_the_build_and_names_its_first_run(tmp_path):
    keep(tmp_path, [400] * 20 + [640] * 5)
    done = history(tmp_path, "--file", "history.jsonl", "--fail-on", "regressed")
    assert done.returncode == 1, done.stderr
    assert "25 runs, 1970-01-01 00:00 to 1970-01-25 00:00" in done.stdout
    assert "WORSE" in done.stdout
    assert "020.run (c20), 5 runs" in done.stdout
    assert history(tmp_path, "--file", "history.jsonl").returncode == 0
    assert history(tmp_path, "--file", "history.jsonl", "--fail-on", "regressed", "--within", "4").returncode == 0
    told = json.loads(history(tmp_path, "history.jsonl", "--json").stdout)
    (change,) = told["histories"][0]["metrics"][0]["changes"]
    assert change["index"] == 20
    assert told["added"] == 0


def test_what_cannot_be_read_is_named(tmp_path):
    for words, what in (
        ([], "nothing to read"),
        (["nowhere.run"], "nowhere.run"),
        (["."], "no run file"),
        (["--file", "none.jsonl"], "nothing to read"),
    ):
        done = history(tmp_path, *words)
        assert done.returncode == 2, (words, done.stdout)
        assert what in done.stderr
        assert "Traceback" not in done.stderr
