"""A client that leaves the simulated engine, in each state: its slot is free as soon as without the gateway."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.children import Child, tailrace_command
from tests.real.leaving import WITHIN_S, Leaving, Metrics, begin, compare, until_free

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.long("an engine and a gateway as processes; forty clients that leave", timeout=120),
]

TIMES = 7
LONG = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5000, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Child]:
    # One at a time, so that a second one is queued; slow enough that a long prompt takes seconds.
    child = Child(tailrace_command("engine", "--port", "0", "--max-num-seqs", "1", "--time-scale", "0.2", "--json"))
    try:
        yield child.wait_ready(30)
    finally:
        child.kill()


@pytest.fixture(scope="module")
def gateway(engine: Child, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    folder = tmp_path_factory.mktemp("gateway")
    command = tailrace_command(
        "serve", "--upstream", engine.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir",
        str(folder), "--json",
    )  # fmt: skip
    child = Child(command)
    try:
        yield child.wait_ready(30)
    finally:
        child.stop()


@pytest.fixture
def metrics(engine: Child) -> Iterator[Metrics]:
    out = Metrics(engine.url)
    yield out
    out.close()


STATES = {
    "prefill": Leaving({**LONG, "stream": True, "tailrace_prompt_tokens": 7000}, after_s=0.3),
    "decode": Leaving({**LONG, "stream": True}, after_tokens=3),
    "in_one_piece": Leaving({**LONG, "stream": False}, after_s=0.3),
}


@pytest.mark.parametrize("state", STATES)
def test_the_slot_is_free_as_soon_as_for_a_direct_client(
    engine: Child, gateway: Child, metrics: Metrics, state: str
) -> None:
    def busy() -> int:
        return metrics.read("vllm:num_requests_running")

    direct, through = compare(engine.url, gateway.url, lambda url: until_free(url, STATES[state], busy), times=TIMES)
    assert through <= direct + WITHIN_S


def test_a_request_in_the_engines_queue_leaves_it_as_soon(engine: Child, gateway: Child, metrics: Metrics) -> None:
    def queued() -> int:
        return metrics.read("vllm:num_requests_waiting")

    leaving = Leaving({**LONG, "stream": True}, after_s=0.2)
    with closing(begin(engine.url, Leaving({**LONG, "stream": True}, after_tokens=1))):
        direct, through = compare(engine.url, gateway.url, lambda url: until_free(url, leaving, queued), times=TIMES)
    assert through <= direct + WITHIN_S


def _cancels(gateway: Child) -> list[dict[str, Any]]:
    """The gateway's own account, once nothing is looked for any more."""
    deadline = time.monotonic() + 5
    while True:
        with urllib.request.urlopen(f"{gateway.admin}/cancels", timeout=5) as answer:
            cancels: list[dict[str, Any]] = json.load(answer)["cancels"]
        if all(cancel["unseen"] or cancel["cancel_slot_ms"] is not None for cancel in cancels):
            return cancels
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_gateway_sees_it_too_and_tells(gateway: Child, metrics: Metrics) -> None:
    def busy() -> int:
        return metrics.read("vllm:num_requests_running")

    before = len(_cancels(gateway))
    polled = []
    for _ in range(3):
        time.sleep(1.2)  # it looks at the engine in bursts, with a usual scrape period between two of them
        polled.append(until_free(gateway.url, STATES["decode"], busy) * 1e3)
    cancels = _cancels(gateway)[before:]
    print({"polled_ms": polled, "seen_ms": [cancel["cancel_slot_ms"] for cancel in cancels]})
    assert [cancel["reason"] for cancel in cancels] == ["client_disconnect"] * 3
    for cancel, ms in zip(cancels, polled, strict=True):
        assert cancel["cancel_upstream_ms"] < WITHIN_S * 1e3
        if cancel["cancel_slot_ms"] is not None:
            # Never before it was; after it by a pause between two scrapes, or more where the machine is busy.
            assert ms - 30 < cancel["cancel_slot_ms"] < ms + 500
    late = [cancel["cancel_slot_ms"] - ms for cancel, ms in zip(cancels, polled, strict=True) if not cancel["unseen"]]
    seen = len(late)
    assert seen >= 2
    assert min(late) < 100
    with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    counted = [line for line in text.splitlines() if line.startswith("tailrace_cancel_slot_seconds_count")]
    assert float(counted[0].rpartition(" ")[2]) >= seen
