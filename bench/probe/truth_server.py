"""The server whose timing is known: a process of its own for each window, and what it really sent.

It is kept beside the project, not in it (`TAILRACE_SHARED`, or `../shared`); its programs are run, and its own code
reads its log.
"""

from __future__ import annotations

import json
import os
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
LOOK = "tailrace-look"
"""Ids of the requests by which Tailrace looks at a target before it loads it; no window counts them."""


class TruthAbsentError(Exception):
    """There is no truth server on this machine."""


@cache
def folder() -> Path:
    """Raises `TruthAbsentError` with where it was looked for."""
    shared = Path(os.environ.get("TAILRACE_SHARED") or ROOT.parent / "shared")
    found = shared / "bench" / "truth"
    if not (found / "server.py").is_file():
        raise TruthAbsentError(
            f"no truth server at {found}. It is kept beside the project, not in it: set TAILRACE_SHARED to the folder "
            "that has bench/truth/server.py, or put that folder at ../shared."
        )
    return found


@dataclass
class Truth:
    """A running truth server."""

    url: str
    log: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    """What it sent; filled when the block of `serving` ends."""
    server_cpu_s: float = 0.0

    def get(self, path: str) -> Any:
        """One of its control addresses."""
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return json.loads(answer.read())


@contextmanager
def serving(log: Path, scenario: str) -> Iterator[Truth]:
    """A truth server that plays `scenario` to any model's name, on a free port, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(folder() / "server.py"), "--port", str(port), "--log", str(log)]
    command += ["--scenario", scenario]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        truth = Truth(f"http://127.0.0.1:{port}", log)
        try:
            for _ in range(200):
                try:
                    truth.get("/health")
                    break
                except OSError:
                    time.sleep(0.05)
            yield truth
            truth.server_cpu_s = truth.get("/truth/stats")["cpu_s"]
        finally:
            process.terminate()
            process.wait(10)
    truth.records = [json.loads(line) for line in log.read_text().splitlines()]


def measured(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the load itself."""
    return [one for one in records if not one["client_id"].startswith(LOOK)]


@cache
def _reader() -> dict[str, Any]:
    return runpy.run_path(str(folder() / "truth.py"))


def report(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Every metric under every definition, as its own reader computes them (ms)."""
    return _reader()["report"](records)


def true_figures(records: list[dict[str, Any]]) -> dict[str, float]:
    """What a client should have reported of these requests (ms), under the names of `tools.Reported`."""
    stated = report(records)
    figures = {f"ttft_p{p}": stated["ttft"][f"p{p}"] for p in (50, 90, 99)}
    figures |= {
        "gap_p99": stated["gaps"]["p99"],
        "tpot_p99": stated["tpot"]["p99"],
        "e2e_p99": stated["e2e_last_token"]["p99"],
        "tokens_per_s": stated["output_tok_s"],
    }
    return figures


def lateness_p99_ms(records: list[dict[str, Any]]) -> float:
    """How late the server itself was against its own plan."""
    return report(records)["late_ms"]["p99"]
