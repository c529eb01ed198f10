"""A load test of a real engine directly and one through the gateway: the same percentiles, within their intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import Child, tailrace_command
from tests.probe.both_ways import apart, in_turns
from tests.real.conftest import CONFIG, MODEL

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("ten short loads of a real engine on one thread", timeout=300),
]

# Short prompts, and no look that calibrates with a long one: a thread computes a few hundred tokens a second.
LOAD = ("--model", MODEL, "--concurrency", "2", "--requests", "10", "--chars-per-token", "4",
        "--prompt-tokens", "8", "--output-tokens", "6")  # fmt: skip


def test_bench_says_the_same_of_the_gateway_and_of_the_engine_behind_it(engine: str, tmp_path: Path):
    (tmp_path / "tailrace.yaml").write_text(CONFIG.format(url=engine, folder=tmp_path / "data"))
    gateway = Child(tailrace_command("serve", "-c", str(tmp_path / "tailrace.yaml"), "--json"))
    try:
        url = gateway.wait_ready(30).url
        for _ in range(2):
            direct, through = in_turns(engine, url, LOAD, tmp_path, rounds=5, before=lambda: None)
            complaints = apart(direct, through)
            if not complaints:
                break
    finally:
        gateway.stop()
    assert complaints == []
    assert len(direct) == len(through) == 50
