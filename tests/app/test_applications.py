"""Requests that a service reports to a running gateway: kept apart from its own, in one process and in several."""

from __future__ import annotations

import json
import time

import pytest

from tailrace.export.jsonl import from_public_json
from tailrace.model.record import broken_invariants
from tailrace.stages import Reporter, ServiceRequest, handle, stage
from tailrace.store.query import RecordStore
from tests.app.test_serve import ask, get

OWN = 6
"""Of three questions, each of which looks at `/v1/models` first."""


def lines(url: str) -> list:
    status, body = get(url)
    assert status == 200, body
    return [from_public_json(line) for line in body.splitlines()]


def report(admin: str, n: int) -> list[ServiceRequest]:
    """Some requests of a service, every second of which failed."""
    reporter = Reporter(f"{admin}/v1/traces")
    out = []
    for number in range(n):
        try:
            with handle({"x-request-id": f"app-{number}"}, service="rag", path="/ask", reporter=reporter) as request:
                out.append(request)
                with stage("preprocess.retrieval"):
                    time.sleep(0.002)
                with stage("postprocess.safety"):
                    assert number % 2 == 0, "unsafe"
        except AssertionError:
            pass
    assert reporter.flush(5)
    reporter.close()
    assert (reporter.sent, reporter.dropped) == (n, 0)
    return out


def check(ready: dict, data_dir: str) -> None:
    admin = ready["admin"]
    for number in range(3):
        ask(ready["url"], f"question {number}")
    reported = report(admin, 6)
    # What is asked for by default is the gateway's own, and nothing in its metrics comes from others.
    own = lines(f"{admin}/records")
    assert len(own) == OWN
    assert {one.vantage for one in own} == {"gateway"}
    metrics = get(f"{admin}/metrics")[1].decode()
    counted = [line for line in metrics.splitlines() if line.startswith("tailrace_requests_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) == OWN
    assert 'tailrace_application_records_total{fate="kept"} 6.0' in metrics
    assert "application_error" not in metrics

    mine = lines(f"{admin}/records?vantage=application")
    assert [one.request_id for one in mine] == [one.request_id for one in reported]
    for one in mine:
        assert broken_invariants(one) == []
        assert one.parts_ns["preprocess.retrieval"] >= 2_000_000
        assert one.service == "rag"
    assert [one.outcome.value for one in mine] == ["completed", "failed"] * 3
    assert mine[1].died_in == "postprocess.safety"
    assert get(f"{admin}/records?vantage=client")[0] == 400

    # By id: each has its own, and neither hides the other.
    assert json.loads(get(f"{admin}/records/app-1")[1])["vantage"] == "application"
    assert get(f"{admin}/records/app-1?vantage=gateway")[0] == 404
    assert json.loads(get(f"{admin}/records/{own[0].request_id}")[1])["vantage"] == "gateway"

    live = json.loads(get(f"{admin}/page/live")[1])
    assert live["applications"] == 6
    until = time.monotonic() + 10
    while json.loads(get(f"{admin}/page/view?window=all")[1])["summary"]["n"] != OWN:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert json.loads(get(f"{admin}/page/view?window=all&vantage=application")[1])["summary"]["n"] == 6

    # At rest as well.
    store = RecordStore(data_dir)
    assert len(store.table()) == len(store.records()) == OWN
    assert len(store.table(vantage=None)) == OWN + 6
    assert len(store.table(1, None, 2, vantage="application")) == 2
    assert store.ask("failures").rows == []
    assert sum(row["n"] for row in store.ask("failures", vantage="application").dicts()) == 3
    found = store.get("app-3")
    assert found is not None
    assert found.vantage == "application"
    assert store.get("app-3", vantage="gateway") is None


@pytest.mark.parametrize(
    "workers",
    [1, pytest.param(2, marks=[pytest.mark.tier("ci"), pytest.mark.long("several processes")])],
)
def test_records_of_a_service_stand_beside_the_gateways(start_tailrace, tmp_path, workers):
    engine = start_tailrace("engine", "--port", "0", "--json")
    directory = str(tmp_path / "records")
    ready = start_tailrace(
        *("serve", "--upstream", engine.ready["url"], "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json"),
        *("--data-dir", directory, "--workers", str(workers)),
    ).ready
    check(ready, directory)
