"""The load generator against streams whose timing is known exactly: every scenario of the truth server, by name.

The server stamps each write; its own judge compares, request by request, what it sent with what the run file says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop

from tailrace.model.measurement import BenchSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.thresholds import MS
from tailrace.model.timeline import EventKind
from tailrace.probe.run import run_bench
from tailrace.probe.spec import BenchSpec
from tailrace.store.run_file import read_run
from tailrace.workload.arrivals import Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload
from tests.conftest import shared_path

pytestmark = pytest.mark.needs("shared")

SCENARIOS = (
    "plain", "mixed", "fast", "spec", "burst_write", "split", "crlf", "role_early", "empty_first", "pings",
    "late_usage", "late_done", "no_usage", "cont_usage", "usage_with_finish", "reasoning", "reasoning_alt",
    "early_eos", "one_token", "reject", "drop", "error_event",
)  # fmt: skip
# Failures that hit one request in five would be too few in a short run.
MODELS = {name: f"{name}:{name}_prob=0.5" for name in ("reject", "drop")} | {
    "error_event": "error_event:error_event_prob=0.5"
}


class TruthServer:
    def __init__(self, folder: Path, log: Path, port: int) -> None:
        self.url, self.log, self.folder = f"http://127.0.0.1:{port}", log, folder
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "server.py"), "--port", str(port), "--log", str(log)],
            stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                self.get("/health")
            except OSError:
                assert self.process.poll() is None, "the truth server did not start"
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the truth server stays silent")

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return answer.read()

    def settle(self) -> None:
        while json.loads(self.get("/truth/stats"))["open"]:
            time.sleep(0.02)

    def judge(self, observed: list[dict], folder: Path) -> dict:
        mine = folder / "observed.jsonl"
        mine.write_text("".join(json.dumps(one) + "\n" for one in observed))
        command = [sys.executable, str(self.folder / "check.py"), "--observed", str(mine), "--log", str(self.log)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def truth(tmp_path_factory) -> Iterator[TruthServer]:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = TruthServer(shared_path() / "bench/truth", tmp_path_factory.mktemp("truth") / "truth.jsonl", port)
    yield server
    server.process.terminate()
    server.process.wait(10)


def observed(record: RequestRecord) -> dict:
    """A record in the judge's words."""
    if record.outcome is OutcomeKind.COMPLETED:
        outcome = "ok"
    elif record.outcome is OutcomeKind.REJECTED:
        outcome = f"http_{record.http_status}"
    else:
        outcome = "truncated" if record.reason is Reason.STREAM_CUT else "error_event"
    out: dict = {"client_id": record.request_id, "outcome": outcome, "tokens": record.output_tokens or 0}
    line = record.timeline
    if line is not None and record.http_status == 200:
        stamps = line.token_stamps()
        done = [at for at, kind in zip(line.at_ns, line.kind, strict=True) if kind == EventKind.DONE]
        out |= {
            "token_events": len(stamps),
            "gaps_ms": [(b - a) / MS for a, b in pairwise(stamps)],
            "ttft_ms": record.ttft_ns and record.ttft_ns / MS,
            "ttft_content_ms": record.ttft_content_ns and record.ttft_content_ns / MS,
            "e2e_last_token_ms": record.e2e_last_token_ns and record.e2e_last_token_ns / MS,
            "e2e_done_ms": done[0] / MS if done else None,
            "tpot_ms": record.tpot_ns and record.tpot_ns / MS,
        }
    return out


def attempt(scenario: str, truth: TruthServer, folder: Path) -> tuple[list[str], BenchSummary]:
    """Run a scenario once; what the judge complains about, and the summary."""
    truth.settle()
    truth.get("/truth/reset")
    spec = BenchSpec(
        url=truth.url,
        model=MODELS.get(scenario, scenario),
        workload=Workload(arrivals=Arrivals(concurrency=4), mix=parse_mix("a=20/40")),
        requests=8,
    )
    summary = uvloop.run(run_bench(spec, out=folder / "a.run"))
    truth.settle()
    records = read_run(folder / "a.run").records
    assert len(records) == summary.n == 8
    assert [broken for record in records for broken in broken_invariants(record)] == []
    failed = sum(record.outcome is not OutcomeKind.COMPLETED for record in records)
    assert sum(summary.errors.values()) == failed
    assert (failed > 0) == (scenario in MODELS)
    return truth.judge([observed(record) for record in records], folder)["failures"], summary


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, truth: TruthServer, tmp_path: Path):
    for _ in range(3):
        failures, summary = attempt(scenario, truth, tmp_path)
        # Counts and outcomes must be right each time. Times may be a busy host's, between the server's stamp and ours.
        assert [one for one in failures if "median error" not in one] == []
        if not failures:
            break
    assert failures == []
    if scenario == "one_token":
        tpot = summary.metrics["tpot_ms"]
        assert tpot.n == 0
        assert tpot.reason
    if scenario == "spec":
        assert summary.metrics["tpot_ms"].mean == pytest.approx(13.3, abs=2)
        assert summary.metrics["chunk_gap_ms"].p50 == pytest.approx(40, abs=5)
