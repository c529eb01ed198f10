"""A gateway that is really slowed says so itself: stopped again and again, or busy with work on its own thread."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.children import Child, run_tailrace
from tests.wire.client import RawClient, chat_body, request

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.long("an engine and a gateway as processes, and fifty streams", timeout=120),
]

STREAMS = 48
AT_ONCE = 8
# Work on the loop's own thread, as a page view or a careless hook would do it.
SPINNING = """
import asyncio, sys, time
from tailrace.app import serve
start = serve.ServingGateway.start

async def started(self):
    await start(self)
    loop = asyncio.get_running_loop()

    def spin():
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            pass
        loop.call_later(0.15, spin)

    loop.call_later(0.15, spin)

serve.ServingGateway.start = started
from tailrace.cli import main
sys.argv = ["tailrace", *sys.argv[1:]]
main()
"""


def _load(url: str, model: str) -> int:
    """Streams of some 0.5 s, a few at once; how many came whole."""

    async def one(places: asyncio.Semaphore) -> bool:
        async with places:
            client = await RawClient.connect(url)
            body = chat_body(model=model, max_tokens=40, ignore_eos=True, tailrace_prompt_tokens=60)
            reply = await client.ask(request(body))
            client.close()
            return reply.body.endswith(b"data: [DONE]\n\n")

    async def every() -> int:
        places = asyncio.Semaphore(AT_ONCE)
        return sum(await asyncio.gather(*(one(places) for _ in range(STREAMS))))

    return int(uvloop.run(every()))


def _serve(engine: Child, folder: Path) -> list[str]:
    ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json"]
    return ["serve", "--upstream", engine.url, "--data-dir", str(folder), *ports]


def _diagnosis(gateway: Child) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.admin}/diagnosis", timeout=30) as answer:
        return dict(json.load(answer))


@pytest.fixture
def engine(start_tailrace: Callable[..., Child]) -> Child:
    return start_tailrace("engine", "--port", "0", "--json")


def test_a_gateway_that_is_left_alone_does_not_accuse_itself(
    engine: Child, start_tailrace: Callable[..., Child], tmp_path: Path
) -> None:
    gateway = start_tailrace(*_serve(engine, tmp_path))
    assert _load(gateway.url, engine.ready["model"]) == STREAMS
    assert "GW_SELF_BOTTLENECK" not in [finding["code"] for finding in _diagnosis(gateway)["findings"]]


def test_a_gateway_that_is_stopped_again_and_again(
    engine: Child, start_tailrace: Callable[..., Child], tmp_path: Path
) -> None:
    gateway = start_tailrace(*_serve(engine, tmp_path))
    done = threading.Event()

    def pulses() -> None:
        while not done.wait(0.3):
            gateway.signal(signal.SIGSTOP)
            time.sleep(0.7)
            gateway.signal(signal.SIGCONT)

    stopping = threading.Thread(target=pulses)
    stopping.start()
    try:
        assert _load(gateway.url, engine.ready["model"]) == STREAMS
    finally:
        done.set()
        stopping.join()
    first = _diagnosis(gateway)["findings"][0]
    assert (first["code"], first["layer"]) == ("GW_SELF_BOTTLENECK", "gateway"), first
    assert first["level"] == "consistent"
    assert "little CPU" in first["advice"]
    # The command, from outside, comes to the same.
    said = json.loads(run_tailrace("diagnose", gateway.admin, "--json").stdout)
    assert said["findings"][0]["code"] == "GW_SELF_BOTTLENECK"


def test_a_gateway_whose_own_thread_is_busy(engine: Child, start_child: Callable[..., Child], tmp_path: Path) -> None:
    gateway = start_child(sys.executable, "-c", SPINNING, *_serve(engine, tmp_path)).wait_ready(30)
    assert _load(gateway.url, engine.ready["model"]) == STREAMS
    first = _diagnosis(gateway)["findings"][0]
    assert (first["code"], first["layer"]) == ("GW_SELF_BOTTLENECK", "gateway"), first
    (cpu,) = [fact["value"] for fact in first["evidence"] if fact.get("name") == "gateway_cpu"]
    # Its share depends on who else wants this machine's cores; what it is told to do follows from it.
    assert ("more gateway processes" in first["advice"]) is (cpu >= 0.8)
