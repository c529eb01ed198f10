"""`tailrace bench` with work of its own against the simulated engine, whose cache and counts are known exactly."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace.cli.bench import app
from tailrace.model.errors import InputError
from tailrace.store.run_file import read_run
from tests.children import Child, health_code, tailrace_command


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    child = Child(tailrace_command("engine", "--port", "0", "--time-scale", "20", "--json"))
    try:
        yield child.wait_ready().url
    finally:
        child.stop()


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def bench(*args: str, cwd: Path) -> Done:
    """The command, in this process: what is of interest is what it sends."""
    out, said, before = StringIO(), StringIO(), Path.cwd()
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = app(list(args), standalone_mode=False)
    finally:
        os.chdir(before)
    return Done(code or 0, out.getvalue(), said.getvalue())


def summary(*args: str, cwd: Path) -> dict:
    done = bench(*args, "--json", "--out", "a.run", cwd=cwd)
    assert done.returncode == health_code(cwd / "a.run"), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("hit", [0.3, 0.6, 0.9])
def test_the_cache_finds_the_share_that_was_asked_for(hit: float, engine: str, tmp_path: Path):
    """One request at a time, so that an entry is in the cache before its next use; blocks of 16 tokens."""
    found = summary(
        engine, "--total", "120", "--concurrency", "1", "--prompt-tokens", "300-900", "--output-tokens", "2",
        "--prefix-pool", "5", "--prefix-hit", str(hit), "--prefix-zipf", "1", cwd=tmp_path,
    )["work"]  # fmt: skip
    assert found["prefixes"]["planned_share"] == pytest.approx(hit, abs=0.005)
    # Of each request's prefix the cache has whole blocks; the template's two tokens are shared as well.
    assert found["prefixes"]["cached_share"] == pytest.approx(hit, abs=16 / 600 + 0.005)
    assert found["prompts"]["exact"] == found["prompts"]["n"] == 120


def test_a_fixed_prefix_is_found_and_an_earlier_run_is_not(engine: str, tmp_path: Path):
    args = (
        engine,
        "--total",
        "10",
        "--concurrency",
        "1",
        "--prompt-tokens",
        "600",
        "--output-tokens",
        "2",
        "--seed",
        "4",
    )
    plain = summary(*args, cwd=tmp_path)["work"]
    assert "prefixes" not in plain or plain["prefixes"]["cached_share"] < 0.02
    for _ in range(2):  # the second run must not profit from the first
        shared = summary(*args, "--shared-prefix", "480", cwd=tmp_path)["work"]
        assert shared["prefixes"]["cached_share"] == pytest.approx(9 / 10 * 480 / 600, abs=0.02)


def test_mooncake_blocks_are_blocks_of_text(engine: str, tmp_path: Path):
    rows = [
        {"timestamp": i * 30, "input_length": 1100, "output_length": 2, "hash_ids": [1, 2, 100 + i]} for i in range(10)
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = summary(engine, "--trace", "m.jsonl", "--concurrency", "1", "--total", "10", cwd=tmp_path)["work"]
    assert found["prefixes"]["planned_share"] == pytest.approx(9 / 10 * 1024 / 1100, abs=1e-6)
    assert found["prefixes"]["cached_share"] == pytest.approx(9 / 10 * 1024 / 1100, abs=0.02)


def test_later_turns_find_their_history_in_the_cache(engine: str, tmp_path: Path):
    found = summary(
        engine, "--total", "24", "--concurrency", "2", "--turns", "4", "--think", "10ms", "--prompt-tokens", "300",
        "--output-tokens", "40", cwd=tmp_path,
    )  # fmt: skip
    assert found["errors"] == {}
    assert (found["work"]["sessions"]["n"], found["work"]["sessions"]["turns"]) == (6, 24)
    by_turn: dict[int, list] = {}
    for record in read_run(tmp_path / "a.run").records:
        assert record.turn is not None
        by_turn.setdefault(record.turn, []).append(record)
    prompts = [sum(r.prompt_tokens for r in by_turn[turn]) / 6 for turn in range(4)]
    assert all(200 < two - one < 450 for one, two in itertools.pairwise(prompts)), prompts
    for turn in (1, 2, 3):
        assert all(r.cached_tokens > 0.5 * prompts[turn - 1] for r in by_turn[turn])


def test_natural_lengths_end_by_themselves(engine: str, tmp_path: Path):
    args = (engine, "--total", "20", "--prompt-tokens", "50", "--output-tokens", "150")
    fixed, natural = summary(*args, cwd=tmp_path)["work"], summary(*args, "--natural", cwd=tmp_path)["work"]
    assert (fixed["answers"]["ended_early"], fixed["answers"]["counted_tokens"]) == (0, 3000)
    assert 0 < natural["answers"]["ended_early"] <= 20


def test_repeating_one_prompt(engine: str, tmp_path: Path):
    args = (engine, "--repeat", "--prompt", "tell me", "--max-tokens", "12", "--concurrency", "4", "--total", "24")
    done = bench(*args, "--json", "--out", "r.run", cwd=tmp_path)
    assert done.returncode == health_code(tmp_path / "r-alone.run", tmp_path / "r-together.run"), done.stderr
    found = json.loads(done.stdout)
    assert {path.name for path in tmp_path.iterdir()} == {"r-alone.run", "r-together.run"}
    assert found["alone"]["n"] == found["together"]["n"] == 24
    answers = found["repeatability"]["answers"]
    assert (answers["n"], answers["distinct"], answers["commonest"]) == (48, 1, 1.0)
    ttft = found["repeatability"]["metrics"]["ttft_ms"]
    assert ttft["alone"]["n"] == ttft["together"]["n"] == 24
    records = read_run(tmp_path / "r-together.run").records
    assert len({r.answer_hash for r in records}) == 1
    human = bench(*args, "--out", "h.run", cwd=tmp_path)
    assert "all 48 identical" in human.stdout
    assert "TTFT" in human.stdout
    with pytest.raises(InputError, match="repeats one request"):
        bench(engine, "--repeat", "--rate", "5", cwd=tmp_path)


WORKLOAD = """
classes:
  - name: chat
    weight: 3
    prompt: 60
    output: 8
    turns: 2-3
    think: 5ms~0.5
    objectives: {ttft_p99: 10s}
  - name: impatient
    prompt: 50
    output: 60
    cancel: after 3 tokens:0.5
  - name: agent
    prompt: 400
    output: 4
    prefix_pool: 3
    prefix_hit: 0.5
    endpoint: completions
    extra_body: {temperature: 0.5}
"""


def test_a_described_workload_says_all_of_it(engine: str, tmp_path: Path):
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    found = summary(engine, "--workload", "w.yaml", "--total", "80", "--concurrency", "4", cwd=tmp_path)
    assert found["errors"] == {}
    run = read_run(tmp_path / "a.run")
    classes = {r.lane for r in run.records}
    assert classes == {"chat", "impatient", "agent"}
    assert {r.endpoint for r in run.records if r.lane == "agent"} == {"/v1/completions"}
    assert {r.turn for r in run.records if r.lane == "chat"} >= {0, 1}
    assert all(r.turn is None for r in run.records if r.lane != "chat")
    assert {r.lane for r in run.records if r.reason == "left_as_planned"} == {"impatient"}
    assert run.header.objectives.bounds["chat/ttft"] == {0.99: 10_000_000_000}
    assert run.header.objectives.bounds["agent/ttft"] == {0.99: 500_000_000}
    assert run.header.classes["agent"]["traits"]["prefixes"]["hit"] == 0.5
    assert found["work"]["leaves"]["n"] > 0


def test_the_quick_form_and_what_it_says_first(engine: str, tmp_path: Path):
    done = bench(engine, "--total", "6", "--prompt", 'say "hi"', "--max-tokens", "5", "--no-stream", cwd=tmp_path)
    (path,) = tmp_path.glob("bench-*.run")
    assert done.returncode == health_code(path), done.stderr
    assert done.stderr.count("\n") == 1
    assert "Sending real load to" in done.stderr
    records = read_run(path).records
    assert len(records) == 6
    assert all((r.stream, r.output_tokens, r.prompt_tokens_source) == (False, 5, "usage") for r in records)


def test_a_load_like_that_of_the_records(engine: str, tmp_path: Path):
    args = (engine, "--total", "40", "--prompt-tokens", "60", "--output-tokens", "40")
    summary(*args, "--concurrency", "8", cwd=tmp_path)
    done = bench(*args, "--records", "a.run", "--json", "--out", "b.run", cwd=tmp_path)
    assert done.returncode == health_code(tmp_path / "b.run"), done.stderr
    assert "at most 8 requests at once" in done.stderr
    assert "4 to 8" in done.stderr
    assert read_run(tmp_path / "b.run").header.arrival.concurrency == 6
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError):
        bench(*args, "--records", "empty.jsonl", cwd=tmp_path)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--think", "5s"), "--think"),
        (("--turns", "x"), "--turns"),
        (("--turns", "3", "--think", "5s~"), "--think"),
        (("--cancel", "soon"), "--cancel"),
        (("--cancel", "after 5 tokens:0.6", "--cancel", "after 2s:0.6"), "add up to 1.2"),
        (("--prefix-hit", "1.5"), "--prefix-hit"),
        (("--prefix-pool", "3"), "a hit rate"),
        (("--prefix-zipf", "1"), "--prefix-zipf"),
        (("--endpoint", "speech"), "--endpoint"),
        (("--template", "missing.json"), "missing.json"),
        (("--conversations", "missing.jsonl"), "missing.jsonl"),
        (("--workload", "missing.yaml"), "missing.yaml"),
        (("--tokenizer", "missing"), "--tokenizer"),
        (("--batch", "0"), "--batch"),
        (("--audio", "0s"), "--audio"),
        (("--records", "missing.run"), "missing.run"),
    ],
)
def test_bad_work_is_one_sentence(args: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody listens there: what is wrong is said before anybody is asked."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        app(["http://127.0.0.1:1", *args], standalone_mode=False)
    assert said in f"{caught.value.place}: {caught.value.message}"
    assert caught.value.remedy or caught.value.place
    assert list(tmp_path.iterdir()) == []
