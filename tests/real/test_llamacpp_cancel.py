"""A client that leaves a real llama.cpp server, in each state: its slot is free as soon as without the gateway.

llama.cpp notices a client that has left only when it has something to write to it. So a prompt is worked through to its
end for nobody; behind the gateway, which has progress told to it, only to the next step of it. An answer in one piece
is computed to its end, and a request in its queue begins, whoever left. There the time is what such a request cost
the engine, in its own CPU time, which does not depend on what else this machine does.
"""

import time
from pathlib import Path

import pytest

from tailrace.app import llamacpp_engine
from tests.children import Child, tailrace_command
from tests.conftest import llamacpp_python
from tests.real.leaving import WITHIN_S, Leaving, Metrics, begin, compare, cpu_s, fallen, until_free
from tests.real.stream_client import body

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread; forty clients that leave", timeout=240),
]

SLOTS = 2
STORY = "Tell a story about a fox."
TIMES = 5
STATES = {
    "prefill": Leaving(body("word " * 200, 4), after_s=0.15),
    "decode": Leaving(body(STORY, 400), after_tokens=3),
    "in_one_piece": Leaving(body(STORY, 24, stream=False, stream_options=None), after_s=0.1),
}


@pytest.fixture(scope="module")
def engine():
    """An engine of its own, with few slots, and steps so short that a prompt takes many."""
    python = llamacpp_python()
    assert python is not None
    script = str(Path(llamacpp_engine.__file__).resolve())
    child = Child([python, script, "--slots", str(SLOTS), "--batch", "64", "--threads", "1", "--context", "4096"])
    try:
        yield child.wait_ready(60)
    finally:
        child.stop()


@pytest.fixture(scope="module")
def direct(engine):
    return engine.url


@pytest.fixture(scope="module")
def gateway(direct, tmp_path_factory):
    command = tailrace_command(
        "serve", "--upstream", direct, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir",
        str(tmp_path_factory.mktemp("gateway")), "--json",
    )  # fmt: skip
    child = Child(command)
    try:
        yield child.wait_ready(30)
    finally:
        child.stop()


@pytest.fixture
def busy(direct):
    """How many requests the engine has; nothing is left of an earlier test."""
    metrics = Metrics(direct)

    def read():
        return metrics.read("llamacpp:requests_processing", "llamacpp:requests_deferred")

    fallen(read, 0)
    yield read
    metrics.close()


@pytest.mark.parametrize("state", STATES)
def test_the_slot_is_free_as_soon_as_for_a_direct_client(engine, direct, gateway, busy, state):
    def take(url):
        began = time.monotonic() if state == "decode" else cpu_s(engine.pid)
        took = until_free(url, STATES[state], busy)
        return took if state == "decode" else cpu_s(engine.pid) - began

    alone, behind = compare(direct, gateway.url, take, times=TIMES)
    assert behind <= alone + WITHIN_S


def test_a_request_in_the_engines_queue_is_over_as_soon(engine, direct, gateway, busy):
    """What the engine does once the slots before it are free."""

    def take(url):
        holders = [begin(direct, Leaving(body(STORY, 1000), after_tokens=1)) for _ in range(SLOTS)]
        queued = begin(url, Leaving(body(STORY, 200), after_s=0.2))
        assert busy() == SLOTS + 1
        queued.close()
        time.sleep(0.1)
        for holder in holders:
            holder.close()
        began = cpu_s(engine.pid)
        fallen(busy, 0)
        return cpu_s(engine.pid) - began

    alone, behind = compare(direct, gateway.url, take, times=TIMES)
    assert behind <= alone + WITHIN_S
