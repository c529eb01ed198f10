"""The truth server of the tests: streams whose timing is known, what was really sent, and the judge of reports."""

from __future__ import annotations

import json
import runpy
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

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

REQUESTS, TOKENS = 8, 40
ATTEMPTS = 3
LOOK = "tailrace-look"


class TruthServer:
    """A process with one truth server, on a port of its own."""

    def __init__(self, log: Path, port: int | None = None) -> None:
        if port is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        self.port = port
        self.folder = shared_path() / "bench/truth"
        self.url, self.log = f"http://127.0.0.1:{port}", log
        self.process = subprocess.Popen(
            [sys.executable, str(self.folder / "server.py"), "--port", str(port), "--log", str(log)],
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

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return json.loads(answer.read())

    def reset(self) -> None:
        self.stats()
        self.get("/truth/reset")

    def stats(self) -> dict[str, Any]:
        """Its counters, once nothing is open any more; this also completes its log."""
        while (stats := self.get("/truth/stats"))["open"]:
            time.sleep(0.02)
        return stats

    def sent(self) -> list[dict[str, Any]]:
        """What it really sent to the requests of the load, in the order of their arrival."""
        self.stats()
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sorted((row for row in rows if not row["client_id"].startswith(LOOK)), key=lambda row: row["body_ns"])

    def judge(self, observed: list[dict], folder: Path) -> dict[str, Any]:
        """The server's own judge: counts and outcomes request by request, and the median errors in time."""
        mine = folder / "observed.jsonl"
        mine.write_text("".join(json.dumps(one) + "\n" for one in observed))
        command = [sys.executable, str(self.folder / "check.py"), "--observed", str(mine), "--log", str(self.log)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


@contextmanager
def serving_truth(folder: Path) -> Iterator[TruthServer]:
    server = TruthServer(folder / "truth.jsonl")
    try:
        yield server
    finally:
        server.stop()


@cache
def _reader() -> dict[str, Any]:
    return runpy.run_path(str(shared_path() / "bench/truth/truth.py"))


def truth_report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Every metric under every definition that tools use (ms), by the server's own reader."""
    return _reader()["report"](rows)


def true_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """One stream under every definition (ms)."""
    return _reader()["stream_metrics"](row)


def observed(record: RequestRecord) -> dict[str, Any]:
    """A record in the judge's words."""
    if record.outcome is OutcomeKind.COMPLETED:
        outcome = "ok"
    elif record.outcome is OutcomeKind.REJECTED:
        outcome = f"http_{record.http_status}"
    else:
        outcome = "truncated" if record.reason is Reason.STREAM_CUT else "error_event"
    out: dict[str, Any] = {"client_id": record.request_id, "outcome": outcome, "tokens": record.output_tokens or 0}
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


@dataclass
class Played:
    """One scenario, played: what was reported, what was sent, and what the judge says of the difference."""

    summary: BenchSummary
    records: list[RequestRecord]
    sent: list[dict[str, Any]]
    complaints: list[str]
    """Of the judge; those about times may be a busy host's, between the server's stamp and ours."""
    wrong_facts: list[str] = field(default_factory=list)
    """Counts and outcomes that were wrong in any attempt: no host is so busy that these may be."""

    def completed(self) -> list[RequestRecord]:
        return [record for record in self.records if record.outcome is OutcomeKind.COMPLETED]


def play(server: TruthServer, model: str, folder: Path, **more: Any) -> Played:
    """Play a scenario until the judge finds no fault with the times, three times at most."""
    wrong: list[str] = []
    for _ in range(ATTEMPTS):
        played = _play_once(server, model, folder, **more)
        wrong += [one for one in played.complaints if "median error" not in one]
        played.wrong_facts = wrong
        if not played.complaints:
            break
    return played


def _play_once(
    server: TruthServer,
    model: str,
    folder: Path,
    *,
    requests: int = REQUESTS,
    tokens: int = TOKENS,
    concurrency: int = 4,
    path: str = "",
    **more: Any,
) -> Played:
    server.reset()
    spec = BenchSpec(
        url=server.url + path,
        model=model,
        workload=Workload(arrivals=Arrivals(concurrency=concurrency), mix=parse_mix(f"a=20/{tokens}")),
        requests=requests,
        **more,
    )
    summary = uvloop.run(run_bench(spec, out=folder / "a.run"))
    sent = server.sent()
    records = read_run(folder / "a.run").records
    assert len(records) == summary.n == requests
    assert [broken for record in records for broken in broken_invariants(record)] == []
    return Played(summary, records, sent, server.judge([observed(record) for record in records], folder)["failures"])
