"""The load tools that people have, through the gateway: no error that they do not report without it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.children import Child, tailrace_command
from tests.peers import load_tools
from tests.peers.byte_tokenizer import write_tokenizer
from tests.peers.load_tools import Report

REQUESTS, STREAMS, TOKENS = 24, 4, 20

pytestmark = [
    pytest.mark.tier("all"),
    pytest.mark.long("the tools take up to half a minute before their first request", timeout=900),
]


class Chain(NamedTuple):
    """An engine, and the gateway in front of it."""

    engine: str
    gateway: str
    admin: str
    model: str

    def records(self) -> list[dict[str, Any]]:
        """What the gateway has recorded so far, oldest first."""
        with urllib.request.urlopen(f"{self.admin}/records?since=0&limit=10000", timeout=30) as answer:
            return [json.loads(line) for line in answer.read().splitlines()]

    def wait_for_records(self, since: int, count: int) -> list[dict[str, Any]]:
        """Those of requests for tokens, `count` at least, after the first `since`."""
        deadline = time.monotonic() + 10
        while True:
            found = [record for record in self.records() if "completions" in record.get("endpoint", "")][since:]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    engine = Child(tailrace_command("engine", "--port", "0", "--json"))
    gateway = None
    try:
        engine.wait_ready(30)
        ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        gateway = Child(
            tailrace_command("serve", "--upstream", engine.url, *ports, "--data-dir", str(folder), "--json")
        )
        gateway.wait_ready(30)
        yield Chain(engine.url, gateway.url, gateway.admin, engine.ready["model"])
    finally:
        if gateway is not None:
            gateway.stop()
        engine.stop()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "bytes")


def both(chain: Chain, tmp_path: Path, run: Callable[[str, Path], Report]) -> tuple[Report, Report, list[dict]]:
    """What a tool reports without and with the gateway, and the gateway's records of it."""
    reports = []
    before = len(chain.wait_for_records(0, 0))
    for name, url in (("direct", chain.engine), ("through", chain.gateway)):
        folder = tmp_path / name
        folder.mkdir()
        reports.append(run(url, folder))
    direct, through = reports
    return direct, through, chain.wait_for_records(before, through.completed + len(through.errors))


def assert_no_new_error(direct: Report, through: Report, records: list[dict]) -> None:
    assert direct.errors == []
    assert direct.completed == REQUESTS
    assert through.errors == []
    assert through.completed == REQUESTS
    # Tools send a request or two before the counted ones, to see whether the server is there.
    assert REQUESTS <= len(records) <= REQUESTS + 4
    assert {record["outcome"] for record in records} == {"completed"}


@pytest.mark.needs("guidellm")
def test_guidellm(chain, tokenizer, tmp_path):
    def run(url: str, folder: Path) -> Report:
        return load_tools.guidellm(url, tokenizer, folder, requests=REQUESTS, streams=STREAMS)

    assert_no_new_error(*both(chain, tmp_path, run))


@pytest.mark.needs("aiperf")
def test_aiperf(chain, tokenizer, tmp_path):
    def run(url: str, folder: Path) -> Report:
        return load_tools.aiperf(url, chain.model, tokenizer, folder, requests=REQUESTS, streams=STREAMS)

    assert_no_new_error(*both(chain, tmp_path, run))


@pytest.mark.needs("vllm-functions")
@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_vllms_request_functions(chain, tmp_path, kind):
    def run(url: str, folder: Path) -> Report:
        return load_tools.vllm(url, chain.model, kind, folder, requests=REQUESTS, streams=STREAMS, output=TOKENS)

    direct, through, records = both(chain, tmp_path, run)
    assert_no_new_error(direct, through, records)
    assert direct.more["tokens"] == through.more["tokens"] == [TOKENS] * REQUESTS
    assert direct.more["without_first_token"] == through.more["without_first_token"] == 0
    # It splits what a read holds at blank lines: one gap a token after the first, however the bytes arrived.
    assert direct.more["gaps"] == through.more["gaps"]


@pytest.mark.needs("vllm-functions")
def test_an_engines_refusal_is_the_same_error_to_vllms_functions(chain, tmp_path):
    def run(url: str, folder: Path) -> Report:
        return load_tools.vllm(url, "no-such-model", "chat", folder, requests=4, streams=2)

    direct, through, records = both(chain, tmp_path, run)
    assert direct.completed == through.completed == 0
    assert len(direct.errors) == 4
    assert direct.errors == through.errors
    assert {record["http_status"] for record in records} == {404}
