"""`tailrace canary` against a served gateway, as a person and as a script use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.children import Child, child_env, tailrace_command

CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends:
  - {name: old, url: "http://127.0.0.1:9"}
  - {name: new, url: "http://127.0.0.1:10"}
canary: {backends: [new], requests_per_s: 20}
records: {dir: DIR}
"""


def _canary(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tailrace_command("canary", *args), capture_output=True, text=True, env=child_env(), timeout=20, check=False
    )


def _view(admin: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{admin}/canary") as answer:
        view: dict[str, Any] = json.loads(answer.read())["canary"]
    return view


def _until_said(gateway: Child, words: str) -> None:
    """Its standard error is read by a thread, which may be behind the line that says that it serves."""
    deadline = time.monotonic() + 10
    while not any(words in line for line in gateway.stderr_lines):
        assert time.monotonic() < deadline, gateway.stderr_lines
        time.sleep(0.02)


@pytest.mark.long("five processes of Python start one after the other", timeout=60)
def test_an_operator_sees_and_steers_it(start_child: Callable[..., Child], tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.replace("DIR", str(tmp_path / "data")), encoding="utf-8")
    gateway = start_child(*tailrace_command("serve", "-c", str(file), "--json")).wait_ready(30)
    admin = str(gateway.ready["admin"])
    _until_said(gateway, "one of only the slowest 2 %")  # said at the start
    shown = _canary("status", admin)
    assert shown.returncode == 0, shown.stderr
    assert "Canary canary: running, share 10%" in shown.stdout
    assert "a uniform slow-down of 30 % is found within" in shown.stdout
    pinned = _canary("pin", admin, "--share", "0.25", "--json")
    assert json.loads(pinned.stdout)["canary"]["share"] == 0.25
    with urllib.request.urlopen(f"{admin}/metrics") as answer:
        metrics = answer.read().decode()
    assert "tailrace_canary_share 0.25" in metrics
    assert 'tailrace_canary_state{state="pinned"} 1.0' in metrics
    assert 'tailrace_canary_changes_total{kind="pinned"} 1.0' in metrics
    file.write_text(file.read_text().replace("requests_per_s: 20", "min_requests: 7"), encoding="utf-8")
    os.kill(gateway.pid, signal.SIGHUP)
    until = time.monotonic() + 10
    while (view := _view(admin))["min_requests"] != 7:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert (view["state"], view["share"]) == ("pinned", 0.25)  # a reload keeps its place
    elsewhere = _canary("status", str(gateway.ready["url"]))
    assert "no gateway's admin port" in elsewhere.stderr
    _canary("abort", admin)
    refused = _canary("pause", admin)
    assert refused.returncode == 2
    assert "resume" in refused.stderr


def test_nobody_there_is_said_so() -> None:
    gone = _canary("http://127.0.0.1:9")
    assert gone.returncode == 2
    assert "does not answer" in gone.stderr
