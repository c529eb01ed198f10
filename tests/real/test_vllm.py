"""A real vLLM on the CPU behind the gateway: stages, and what its own metrics hide."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.store.query import RecordStore
from tests.children import Child, tailrace_command
from tests.conftest import vllm_python
from tests.real.mixed import apart_over, at_p99, drive, unexplained_over
from tests.real.stream_client import stream, together

pytestmark = [
    pytest.mark.tier("all"),
    pytest.mark.needs("vllm"),
    pytest.mark.long("a real vLLM takes half a minute to start and computes 200 requests", timeout=600),
]

REQUESTS = 200
CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends:
  - {{url: "{url}", engine: vllm}}
budgets: {{queue: 60s, first_token: 120s, idle: 60s, total: 240s, unstreamed_total: 240s}}
records: {{dir: "{folder}", sample: 1.0}}
"""
WORDS = list(range(400, 500))
FLAGS = ("--max-model-len=2048", "--max-num-seqs=8", "--num-gpu-blocks-override=600", "--enable-per-request-metrics")


class VllmStack:
    """Gateway → vLLM."""

    def __init__(self, engine: Child, gateway: Child, folder: Path) -> None:
        self.engine, self.gateway, self.folder = engine, gateway, folder
        self.url = gateway.url

    def records(self, ids: set[str]) -> list[RequestRecord]:
        """The records at rest of these requests."""
        deadline = time.monotonic() + 20
        while True:
            found = [record for record in RecordStore(self.folder).records() if record.request_id in ids]
            if len(found) == len(ids):
                return found
            assert time.monotonic() < deadline, f"{len(found)} records of {len(ids)}"
            time.sleep(0.1)

    def count(self, name: str, **labels: str) -> float:
        """A counter of the engine, summed over its series with these labels."""
        with urllib.request.urlopen(f"{self.engine.url}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{name}{{") and all(label in line for label in wanted)
        )


def vllm_stack(folder: Path, *flags: str) -> Iterator[VllmStack]:
    python = vllm_python()
    assert python is not None, 'mark this test with needs("vllm")'
    script = str(Path(__file__).with_name("vllm_server.py"))
    engine = Child([python, script, str(folder), "middle", *flags])
    try:
        engine.wait_ready(300)
        (folder / "tailrace.yaml").write_text(CONFIG.format(url=engine.url, folder=folder / "data"))
        gateway = Child(tailrace_command("serve", "-c", str(folder / "tailrace.yaml"), "--json"))
        try:
            yield VllmStack(engine, gateway.wait_ready(30), folder / "data")
        finally:
            gateway.stop()
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmStack]:
    yield from vllm_stack(tmp_path_factory.mktemp("vllm"), *FLAGS)


def body(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "random",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        # Whole words only: half a character has no text, and the first text would not be the first token.
        "allowed_token_ids": WORDS,
        "stream": True,
        **more,
    }


def words(draw: random.Random, count: int) -> str:
    return "".join(f" word{draw.randrange(700)}" for _ in range(count))


@pytest.fixture(scope="module")
def records(vllm: VllmStack) -> list[RequestRecord]:
    together(vllm.url, [body("warm", 8) for _ in range(8)])
    draw = random.Random(5)
    asked = [
        body(f"{number}" + words(draw, draw.choice((4, 12, 40, 180))), draw.choice((64, 96, 128)))
        | ({"stream": False} if draw.random() < 0.2 else {})
        for number in range(REQUESTS)
    ]
    return vllm.records(drive(vllm.url, asked, clients=12))


def test_every_request_is_there_and_adds_up(records):
    assert len(records) == REQUESTS
    assert {record.outcome for record in records} == {OutcomeKind.COMPLETED}
    assert [broken for record in records for broken in broken_invariants(record)] == []


def test_next_to_nothing_is_unattributed(records):
    over = unexplained_over(records)
    assert at_p99(over) <= 0, over[-5:]


def test_the_engines_stages_agree_with_our_stamps(records):
    """Its queue and prefill, with the end of the step that ran before, against send -> first token."""
    pairs = [
        (record.queue_engine_ns + record.prefill_ns, record.ttft_upstream_ns) for record in records if record.stream
    ]
    assert len(pairs) > REQUESTS / 2
    over = apart_over(pairs)
    assert np.quantile(over, 0.95) <= 0, over[-10:]


def test_a_client_that_leaves_is_counted_by_us_alone(vllm):
    """Three leave in mid-stream; the abort counter of the engine stays where it was."""
    before = vllm.count("vllm:request_success_total", finished_reason="abort")
    left = [stream(vllm.url, body(f"leave {n}", 400), leave_after=3)["id"] for n in range(3)]
    found = vllm.records(set(left))
    assert {record.outcome for record in found} == {OutcomeKind.CANCELLED}
    time.sleep(2)
    assert vllm.count("vllm:request_success_total", finished_reason="abort") == before


@pytest.fixture(scope="module")
def narrow(vllm: VllmStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmStack]:
    """Too few cache blocks for eight requests of 300 tokens. Begun after the other one: the cores are few."""
    flags = ("--max-model-len=512", "--max-num-seqs=8", "--num-gpu-blocks-override=40", "--enable-per-request-metrics")
    yield from vllm_stack(tmp_path_factory.mktemp("narrow"), *flags)


def test_whom_it_threw_out_is_seen_beside_its_neighbours(narrow):
    """It tells only how many; its queue time knows nothing of the wait."""
    together(narrow.url, [body("warm", 8) for _ in range(8)])
    before = narrow.count("vllm:num_preemptions_total")
    answers = together(narrow.url, [body(f"Thrown out {n}", 300) for n in range(8)])
    counted = narrow.count("vllm:num_preemptions_total") - before
    assert counted >= 3, "the engine was to run out of blocks"
    found = narrow.records({answer["id"] for answer in answers})
    ours = sum(record.preemptions or 0 for record in found)
    # Waits of three steps or more are seen; one that is thrown out again before its next token waits once.
    assert 1 <= ours <= counted, (ours, counted)
    for record in found:
        if record.preemptions:
            assert record.fact_sources["preemptions"].startswith("inferred(")


def test_models_are_passed_on(vllm):
    with urllib.request.urlopen(f"{vllm.url}/v1/models", timeout=20) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["random"]
