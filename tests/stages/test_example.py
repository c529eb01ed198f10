"""The retrieval example for real: its requests are recorded, add up and are diagnosed, from client to engine."""

import asyncio
import json
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from tailrace.export.jsonl import from_public_json
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tests.children import Child, child_env, tailrace_command

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "rag"
N = 40


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


def records(admin, vantage):
    return [from_public_json(line) for line in get(f"{admin}/records?vantage={vantage}&limit=1000").splitlines()]


def test_whoever_asks_before_the_service_is_up_is_told_so():
    child = Child([sys.executable, str(EXAMPLE / "ask.py"), "http://127.0.0.1:9", "--requests", "2"])
    assert child.wait(30) == 1
    assert "nobody answers at http://127.0.0.1:9: start examples/rag/up.py first" in child.stderr
    assert "Traceback" not in child.stderr


@pytest.mark.tier("ci")
@pytest.mark.long("starts an engine, a gateway, an index and a service", timeout=120)
def test_the_example_times_out_in_its_retrieval_and_is_diagnosed_as_such():
    child = Child(
        [sys.executable, str(EXAMPLE / "up.py"), "--json", "--free-ports"],
        env=child_env(MAX_TOKENS="12", RETRIEVAL_BUDGET="1500ms"),
    )
    try:
        where = child.wait_ready(60).ready
        admin = where["admin"]
        sys.path.insert(0, str(EXAMPLE))
        try:
            from ask import ask
        finally:
            sys.path.remove(str(EXAMPLE))
        statuses = asyncio.run(ask(where["service"], N, 8))
        assert statuses == Counter({200: N * 4 // 5, 504: N // 5})
        until = time.monotonic() + 20
        while len(mine := [one for one in records(admin, "application") if one.endpoint == "/ask"]) < N:
            assert time.monotonic() < until, len(mine)
            time.sleep(0.1)
        gateways = records(admin, "gateway")

        # One record each, and each adds up.
        assert len(mine) == N
        assert {one.vantage for one in gateways} == {"gateway"}
        for one in [*mine, *gateways]:
            assert broken_invariants(one) == []
        late = [one for one in mine if one.outcome is OutcomeKind.TIMED_OUT]
        assert len(late) == N // 5
        for one in late:
            assert (one.reason, one.died_in, one.budget) == (
                Reason.STAGE_TIMEOUT,
                "preprocess.retrieval",
                "preprocess.retrieval",
            )
            assert 1.49e9 < one.parts_ns["preprocess.retrieval"] <= one.preprocess_ns <= one.e2e_ns
            assert one.model_ns is None

        # The others called the model, and the gateway's record of that call is their child.
        children = {one.parent_id: one for one in gateways}
        well = [one for one in mine if one.outcome is OutcomeKind.COMPLETED]
        assert len(gateways) == len(children) == len(well) == N * 4 // 5
        for one in well:
            child_record = children[one.span_id]
            assert (child_record.trace_id, child_record.client_request_id) == (one.trace_id, one.request_id)
            assert child_record.model_ns is None
            # Their clocks are different, but a part is no longer than the whole.
            assert child_record.e2e_last_token_ns <= one.model_ns + 50_000_000
            assert one.ttft_ns is not None
            assert one.ttft_ns < one.e2e_ns
            assert set(one.parts_ns) == {
                "preprocess.intent",
                "preprocess.retrieval",
                "preprocess.assembly",
                "postprocess.citations",
                "postprocess.safety",
            }

        # Nothing of the service is in the gateway's own numbers.
        metrics = get(f"{admin}/metrics").decode()
        assert "stage_timeout" not in metrics
        assert f'tailrace_application_records_total{{fate="kept"}} {N}.0' in metrics
        assert {one.request_id for one in well} & {one.request_id for one in gateways} == set()

        said = json.loads(get(f"{admin}/diagnosis"))["findings"][0]
        assert (said["code"], said["stage"]) == ("PREPROCESS_SLOW", "preprocess.retrieval")
        told = Child(tailrace_command("diagnose", admin, "--json"))
        told.wait(60)
        first = json.loads(told.stdout)["findings"][0]
        assert (first["code"], first["stage"], first["level"]) == (
            "PREPROCESS_SLOW",
            "preprocess.retrieval",
            "consistent",
        )
    finally:
        child.stop()
