"""Fetching what a live server says about itself."""

from __future__ import annotations

import pytest
import uvloop

from tailrace.model.errors import TargetError
from tailrace.probe.evidence import fetch_evidence
from tests.probe.raw_server import Call, RawServer, serving, whole


class Admin(RawServer):
    """Answers the given paths of GET, 404 to any other."""

    def __init__(self, **pages: str) -> None:
        self.asked: list[str] = []
        self.pages = {f"/{name}": text for name, text in pages.items()}

        async def answer(call: Call) -> None:
            self.asked.append(call.path)
            text = self.pages.get(call.path.partition("?")[0])
            await call.send(whole(404, {}) if text is None else whole(200, text.encode(), "text/plain"))

        super().__init__(answer, on_get=answer)


def fetch(server: RawServer, path: str = "", **more):
    return uvloop.run(fetch_evidence(server.url + path, **more))


def test_a_gateway_gives_records_and_metrics():
    with serving(Admin(records='{"a": 1}\n', metrics="x 1\n")) as server:
        got = fetch(server, limit=50, since="5m")
    assert got.records == b'{"a": 1}\n'
    assert [scrape.text for scrape in got.scrapes] == ["x 1\n"]
    assert got.missing == []
    assert got.signals == b""
    assert server.asked == [
        "/records?limit=50&since=5m",
        "/signals",
        "/happenings",
        "/records?limit=50&since=5m&vantage=application",
        "/metrics",
    ]


def test_a_gateway_on_the_engines_machine_gives_its_signals():
    with serving(Admin(records="{}\n", metrics="x 1\n", signals='{"tailrace_signals": 1}')) as server:
        assert fetch(server).signals == b'{"tailrace_signals": 1}'


def test_what_happened_to_a_gateway_comes_along():
    said = '{"happenings": []}'
    with serving(Admin(records="{}\n", metrics="x 1\n", happenings=said)) as server:
        assert fetch(server).happenings == said.encode()


def test_two_scrapes_lie_apart():
    with serving(Admin(metrics="x 1\n")) as server:
        got = fetch(server, "/v1", between_s=0.2)
    first, second = got.scrapes
    assert 0.19e9 < second.at_ns - first.at_ns < 2e9
    assert got.records == b""
    assert got.missing == ["/records: 404"]


def test_a_server_with_neither_is_no_evidence():
    with serving(Admin()) as server, pytest.raises(TargetError, match="neither records nor metrics"):
        fetch(server)


def test_nobody_there(free_port: int):
    with pytest.raises(TargetError, match="no answer from"):
        uvloop.run(fetch_evidence(f"http://127.0.0.1:{free_port}"))
