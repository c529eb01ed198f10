"""A real Triton server, the gateway in front of it, and clients for both of its protocols."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.model.record import RequestRecord
from tailrace.store.query import RecordStore
from tests.children import Child, tailrace_command
from tests.conftest import triton_python

HERE = Path(__file__).resolve().parent
CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
grpc_listen: 127.0.0.1:0
backends:
  - {{url: "{url}", grpc_url: "{grpc}", metrics_url: "http://127.0.0.1:{metrics}/metrics"}}
budgets: {{queue: 30s, first_token: 30s, idle: 30s, total: 60s, unstreamed_total: 60s}}
records: {{dir: "{folder}", sample: 1.0}}
"""
_LEFT = re.compile(rb"count: left at (\d+) of (\d+), (\d+)")


class TritonServer:
    """The server process and what it logs."""

    def __init__(self, child: Child, folder: Path) -> None:
        self.child, self.folder = child, folder
        self.url: str = child.ready["url"]
        self.grpc: str = child.ready["grpc"]

    def leavings(self) -> list[tuple[int, int]]:
        """(answers given, wall clock ns) of each stream whose client was found gone, in order."""
        return [(int(at), int(stamp)) for at, _, stamp in _LEFT.findall((self.folder / "log").read_bytes())]

    def next_leaving(self, before: int) -> tuple[int, int]:
        """The one after the first `before`."""
        deadline = time.monotonic() + 5
        while len(found := self.leavings()) <= before:
            assert time.monotonic() < deadline, "the engine works on for a client that left"
            time.sleep(0.005)
        return found[before]


class TritonStack:
    """Gateway → Triton."""

    def __init__(self, server: TritonServer, gateway: Child, folder: Path) -> None:
        self.server, self.gateway, self.folder = server, gateway, folder
        self.url = gateway.url
        self.grpc: str = gateway.ready["grpc"]
        self._seen: set[str] = set()

    def client(self, task: str, *, direct: bool = False, **given: Any) -> dict[str, Any]:
        """Triton's own gRPC client, through the gateway or `direct`."""
        python = triton_python()
        assert python is not None
        address = self.server.grpc if direct else self.grpc
        done = subprocess.run(
            [python, str(HERE / "triton_client.py"), address, task, json.dumps(given)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """One HTTP request through the gateway."""
        host = self.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def stream(
        self, path: str, body: dict[str, Any], *, direct: bool = False, leave_after: int | None = None
    ) -> tuple[list[dict[str, Any]], int]:
        """The events of a streamed answer, and when the client closed its socket (wall clock ns)."""
        host = (self.server.url if direct else self.url).removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=30)
        events: list[dict[str, Any]] = []
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        for line in answer:
            if line.startswith(b"data:"):
                events.append(json.loads(line[5:]))
                if len(events) == leave_after:
                    break
        answer.close()
        connection.close()
        return events, time.time_ns()

    def new_records(self, count: int) -> list[RequestRecord]:
        """The records of the requests since the last look, once there are `count`; passthrough ones left out."""
        deadline = time.monotonic() + 10
        while True:
            found = [
                record
                for record in RecordStore(self.folder).records()
                if record.request_id not in self._seen and record.lane != "passthrough"
            ]
            if len(found) >= count:
                break
            assert time.monotonic() < deadline, f"{len(found)} records of {count}"
            time.sleep(0.05)
        self._seen |= {record.request_id for record in found}
        assert len(found) == count
        return sorted(found, key=lambda record: record.start_unix_ns)


@contextmanager
def triton_server(folder: Path, spans_url: str = "") -> Iterator[TritonServer]:
    """Until the end of the block. With `spans_url` it traces what brings a parent, and posts the spans there."""
    python = triton_python()
    assert python is not None, 'mark this test with needs("triton")'
    child = Child([python, str(HERE / "triton_server.py"), str(folder), *([spans_url] if spans_url else [])])
    try:
        yield TritonServer(child.wait_ready(60), folder)
    finally:
        child.stop()


@contextmanager
def triton_stack(server: TritonServer, folder: Path) -> Iterator[TritonStack]:
    """A gateway of its own in front of `server`."""
    ready = server.child.ready
    (folder / "tailrace.yaml").write_text(CONFIG.format(**ready, folder=folder / "data"))
    child = Child(tailrace_command("serve", "-c", str(folder / "tailrace.yaml"), "--json"))
    try:
        yield TritonStack(server, child.wait_ready(30), folder / "data")
    finally:
        child.stop()


def admin_streams(stack: TritonStack) -> list[dict[str, Any]]:
    """The requests in flight, as the admin port tells them."""
    with urllib.request.urlopen(f"{stack.gateway.admin}/streams", timeout=10) as answer:
        body = json.loads(answer.read())
    return list(body["streams"] if isinstance(body, dict) else body)
