"""The demo as its user sees it: two real arms on the simulated engine, through the real gateway."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from typing import Any

import jsonschema
import pytest

from tests.children import SESSION_MARK, child_env, leftovers, tailrace_command
from tests.conftest import llamacpp_python

ARMS = 2 * 42
WHOLE_STORY = pytest.mark.long("two arms of 42 s, as the story needs for n >= 500", timeout=180)


def run_demo(*args: str, timeout: float, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*tailrace_command(), "demo", *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=child_env(**env),
        check=False,
    )


class PageWatcher(threading.Thread):
    """Looks for the page's address in what the demo says, and opens the page while the demo runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.said: list[str] = []
        self.statuses: list[int] = []
        self.body = b""

    def run(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self.said.append(line)
                found = re.search(r"Watch it live: (http://\S+)", line)
                if found:
                    with urllib.request.urlopen(found[1], timeout=5) as answer:
                        self.statuses.append(answer.status)
                        self.body = answer.read()


@pytest.mark.tier("ci")
@WHOLE_STORY
def test_the_whole_story_ends_in_time_and_its_json_keeps_the_contract():
    began = time.monotonic()
    process = subprocess.Popen(
        [*tailrace_command(), "demo", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_env(),
    )
    watcher = PageWatcher(process)
    watcher.start()
    assert process.stdout is not None
    output = process.stdout.read()
    assert process.wait(10) == 0, "".join(watcher.said)
    watcher.join(5)
    process.stdout.close()
    took = time.monotonic() - began

    result = json.loads(output)
    schema = json.loads(run_demo("--json-schema", timeout=20).stdout)
    jsonschema.validate(result, schema)
    assert took < 120
    assert watcher.statuses == [200]
    assert b"Tailrace" in watcher.body

    tell_the_story(result)
    assert not leftovers(os.environ[SESSION_MARK])


def tell_the_story(result: dict[str, Any]) -> None:
    baseline, diagnosis, comparison = result["baseline"], result["diagnosis"], result["comparison"]
    ttft = baseline["metrics"]["ttft_ms"]
    assert baseline["n"] >= 500
    assert result["candidate"]["n"] >= 500
    assert ttft["p99"] > 5 * ttft["p50"], "mean fine, p99 bad"
    assert ttft["mean"] < 500 < ttft["p99"]
    first = diagnosis["findings"][0]
    assert (first["code"], first["layer"]) == ("SCHED_PREFILL_STEALS_DECODE", "scheduler")
    assert first["level"] in ("proven", "consistent")
    assert diagnosis["action"] == "tune"
    worst = result["worst"]
    assert worst["prompt_tokens"] <= 2000
    assert worst["waits"][0]["neighbours"][0]["prompt_tokens"] >= 5000, "the document that held it up is named"
    assert worst["waits"][0]["neighbours"][0]["request_id"] in worst["sentences"][0]
    assert comparison["verdict"] == "improved", comparison["summary"]
    assert "p99" in comparison["summary"]
    assert any(name.endswith(".p99") for name in comparison["headline"])
    assert comparison["trade_offs"], "a change has its price"
    assert all(comparison["same_work"][key] for key in ("arrivals", "classes"))


@pytest.mark.tier("ci")
@pytest.mark.long("one arm of 42 s", timeout=120)
def test_with_the_fault_removed_it_says_that_nothing_is_wrong():
    done = run_demo("--no-fault", "--json", timeout=110)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["diagnosis"]["findings"] == []
    assert result["diagnosis"]["action"] == "none"
    assert "othing" in result["diagnosis"]["summary"]
    assert result["candidate"] is None
    assert result["comparison"] is None


@pytest.mark.tier("ci")
@pytest.mark.long("two short stories of one arm each", timeout=100)
def test_another_seed_mix_and_preset_tell_another_story():
    """The words follow the measurement: nothing of the story is written beforehand."""
    stories = []
    for args in (
        ("--seed", "3"),
        ("--seed", "4", "--preset", "h100-llama3-8b", "--mix", "chat=200/30:0.9,long=6000/40:0.1"),
    ):
        done = run_demo(*args, "--duration", "12s", "--no-fault", "--exit", timeout=45)
        assert done.returncode == 0, done.stderr
        told = re.findall(r"^ *(?:Starting|Load:|\d+ requests,|TTFT|E2E|> ).*$", done.stdout, re.MULTILINE)
        assert len(told) >= 5, done.stdout
        stories.append(set(told))
    assert not stories[0] & stories[1]


@pytest.mark.tier("ci")
@pytest.mark.needs("llamacpp")
@pytest.mark.long("two arms of 20 s on a real model", timeout=170)
def test_it_is_told_on_a_real_engine():
    done = run_demo(
        "--engine",
        "llamacpp",
        "--duration",
        "20s",
        "--json",
        timeout=160,
        TAILRACE_LLAMACPP_PYTHON=llamacpp_python() or "",
    )
    assert done.returncode in (0, 3), done.stderr
    result = json.loads(done.stdout)
    assert result["simulated"] is False
    assert "llama.cpp" in result["engine"]
    assert result["baseline"]["n"] >= 3
    assert result["baseline"]["metrics"]["ttft_ms"]["n"] >= 2
    assert result["diagnosis"]["summary"]
    if result["comparison"] is not None:
        # So few requests decide nothing small; what they cannot decide must be said, not guessed.
        assert result["comparison"]["verdict"] in ("improved", "regressed", "inconclusive", "no_difference")
    assert not leftovers(os.environ[SESSION_MARK])


def test_ctrl_c_ends_it_within_two_seconds_and_leaves_nothing(tmp_path):
    process = subprocess.Popen(
        [*tailrace_command(), "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_env(TMPDIR=str(tmp_path)),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Load:"):
            break
    time.sleep(1.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=10)[0]
    took = time.monotonic() - began
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert took < 4, "two seconds, and as much again for a busy machine"
    assert not leftovers(os.environ[SESSION_MARK])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "place", "remedy"),
    [
        (("--engine", "gpu"), "--engine", "simulated"),
        (("--preset", "tpu"), "preset", "a100-llama3-8b"),
        (("--mix", "chta:1"), "--mix", "chat"),
        (("--duration", "soon"), "--duration", "90s"),
        (("--rate", "nan"), "--rate", "--rate 5"),
        (("--rate", "-1"), "--rate", "--rate 5"),
    ],
)
def test_bad_input_is_one_sentence_with_the_remedy(args, place, remedy):
    done = run_demo(*args, "--exit", timeout=15)
    assert done.returncode == 2
    assert "Watch it live" not in done.stdout, "refused before anything is started"
    assert "Traceback" not in done.stderr
    assert place in done.stderr
    assert remedy in done.stderr


def test_ctrl_c_while_the_children_start_ends_it_at_once(tmp_path):
    process = subprocess.Popen(
        [*tailrace_command(), "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_env(TMPDIR=str(tmp_path)),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Starting"):
            break
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=10)[0]
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert "Load:" not in rest, "it went on to the first arm"
    assert time.monotonic() - began < 4
    assert not leftovers(os.environ[SESSION_MARK])
    assert list(tmp_path.iterdir()) == []
