"""`tailrace canary` against a served gateway, as a person and as a script use it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.long("five processes of Python start one after the other", timeout=60)
def test_an_operator_sees_and_steers_it(start_child: Callable[..., Child], tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.replace("DIR", str(tmp_path / "data")), encoding="utf-8")
    gateway = start_child(*tailrace_command("serve", "-c", str(file), "--json")).wait_ready(30)
    admin = str(gateway.ready["admin"])
    shown = _canary("status", admin)
    assert shown.returncode == 0, shown.stderr
    assert "Canary canary: running, share 10%" in shown.stdout
    assert "a uniform slow-down of 30 % is found within" in shown.stdout
    pinned = _canary("pin", admin, "--share", "0.25", "--json")
    assert json.loads(pinned.stdout)["canary"]["share"] == 0.25
    _canary("abort", admin)
    refused = _canary("pause", admin)
    assert refused.returncode == 2
    assert "resume" in refused.stderr
    assert _canary("fly", admin).returncode == 2


def test_nobody_there_is_said_so() -> None:
    gone = _canary("http://127.0.0.1:9")
    assert gone.returncode == 2
    assert "does not answer" in gone.stderr
