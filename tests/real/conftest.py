"""Real engines with the gateway in front: llama.cpp with the SmolLM2 weights and a tap on its wire; Triton."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.app import llamacpp_engine
from tests.children import Child, tailrace_command
from tests.conftest import llamacpp_python
from tests.real.tap import Tap
from tests.real.triton_stack import TritonServer, TritonStack, triton_server, triton_stack

MODEL = llamacpp_engine.MODEL_NAME
SLOTS = 8
# A request may wait for a slot longer than any user would: these tests are about times, not about patience.
CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends:
  - {{url: "{url}"}}
budgets: {{queue: 60s, first_token: 60s, idle: 60s, total: 120s, unstreamed_total: 120s}}
records: {{dir: "{folder}", sample: 1.0}}
"""


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """The base URL of the engine: eight slots, one thread (two would spin against the gateway)."""
    python = llamacpp_python()
    assert python is not None, 'mark this test with needs("llamacpp")'
    script = str(Path(llamacpp_engine.__file__).resolve())
    child = Child([python, script, "--slots", str(SLOTS), "--batch", "512", "--threads", "1"])
    try:
        yield child.wait_ready(60).url
    finally:
        child.stop()


@pytest.fixture(scope="session")
def busy_slots(engine: str) -> Callable[[], int]:
    """How many slots of the engine are working now."""
    return lambda: sum(slot["is_processing"] for slot in get(f"{engine}/slots"))


class Stack:
    """Gateway → tap → engine."""

    def __init__(self, gateway: Child, tap: Tap, folder: Path) -> None:
        self.gateway, self.tap, self.folder = gateway, tap, folder
        self.url, self.admin = gateway.url, gateway.admin

    def public_records(self) -> list[dict[str, Any]]:
        """The gateway's records as its admin port tells them."""
        with urllib.request.urlopen(f"{self.admin}/records?since=0&limit=10000", timeout=30) as answer:
            return [json.loads(line) for line in answer.read().splitlines()]

    def wait_for_records(self, count: int, *, of: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[dict]:
        """Records that `of` accepts, once there are `count`."""
        deadline = time.monotonic() + 15
        while len(found := [record for record in self.public_records() if of(record)]) < count:
            assert time.monotonic() < deadline, f"{len(found)} records of {count}"
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def stack(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("gateway")
    with Tap(engine) as tap:
        (folder / "tailrace.yaml").write_text(CONFIG.format(url=tap.url, folder=folder / "data"))
        child = Child(tailrace_command("serve", "-c", str(folder / "tailrace.yaml"), "--json"))
        try:
            yield Stack(child.wait_ready(30), tap, folder / "data")
        finally:
            child.stop()


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A real Triton with the models of `triton_models`."""
    with triton_server(tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.fixture(scope="module")
def through(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonStack]:
    """The gateway in front of it, with both protocols."""
    with triton_stack(triton, tmp_path_factory.mktemp("gateway")) as stack:
        yield stack
