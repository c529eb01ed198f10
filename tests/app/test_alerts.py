"""A gateway whose objective is in danger tells its receivers, with the cause; real processes, a real receiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_serve import ask, get
from tests.children import child_env, tailrace_command


class Receiver:
    """Takes what alerts are sent; refuses as often as it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.refuse = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.refuse:
                    outer.refuse -= 1
                    self.send_response(503)
                else:
                    outer.got.append((self.path, dict(self.headers), json.loads(body)))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, path: str) -> list[Any]:
        return [body for where, _, body in self.got if where == path]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    out = Receiver()
    try:
        yield out
    finally:
        out.close()


def until(what: Any, within_s: float = 40.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def serve(start_tailrace: Any, tmp_path: Any, receiver: Receiver, **more: Any) -> dict[str, Any]:
    engine = start_tailrace("engine", "--port", "0", "--json")
    config = tmp_path / "tailrace.yaml"
    config.write_text(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "backends": [{"url": engine.ready["url"]}],
                "records": {"dir": str(tmp_path / "records")},
                # Nothing real answers within 1 ms: every request passes it.
                "objectives": {"e2e_p99": "1ms"},
                "alerts": {
                    "every": "1s",
                    "burn": [{"rate": 14.4, "long": "5m", "short": "30s", "severity": "page"}],
                    "quantile_window": "30s",
                    "receivers": [
                        {"url": f"{receiver.url}/ours", "token": "secret"},
                        {"url": f"{receiver.url}/am", "form": "alertmanager", "severities": ["page"]},
                        {"url": f"{receiver.url}/slack", "form": "slack"},
                    ],
                },
                "diagnosis": {"every": "2s"},
                **more,
            }
        )
    )
    ready: dict[str, Any] = start_tailrace("serve", "-c", str(config), "--json").ready
    return ready


@pytest.mark.long("three processes, and an alarm that needs its window", timeout=90)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_objective_in_danger_is_told_with_its_diagnosis(start_tailrace, tmp_path, receiver, workers):
    receiver.refuse = 1  # the first try of one of them: it is tried again
    ready = serve(start_tailrace, tmp_path, receiver, workers=workers)
    for number in range(12):
        ask(ready["url"], f"question {number}")
    page = until(lambda: [one for one in receiver.of("/ours") if one["severity"] == "page"])[0]
    assert (page["state"], page["lane"], page["objective"]) == ("firing", "default", "e2e_p99")
    assert page["missed"] >= 10
    assert page["burn_rate"] == pytest.approx(100.0)
    assert page["diagnosis"]["schema"] == 1
    assert page["diagnosis"]["trigger"].startswith("alert ")
    assert until(lambda: receiver.of("/slack"))[0]["text"].startswith("[")
    told = until(lambda: receiver.of("/am"))
    assert all(one[0]["labels"]["severity"] == "page" for one in told)
    assert any(headers.get("Authorization") == "Bearer secret" for path, headers, _ in receiver.got if path == "/ours")

    alerts = json.loads(get(f"{ready['admin']}/alerts")[1])
    assert {one["severity"] for one in alerts["firing"]} >= {"page"}
    until(lambda: sum(one["delivered"] for one in json.loads(get(f"{ready['admin']}/alerts")[1])["receivers"]) >= 4)
    assert not [one for one in alerts["receivers"] if one["receiver"] != receiver.url], "no path of a webhook is shown"
    metrics = get(f"{ready['admin']}/metrics")[1].decode()
    assert 'tailrace_alerts_firing{lane="default",objective="e2e_p99",severity="page"} 1.0' in metrics
    config = json.loads(get(f"{ready['admin']}/config")[1])
    shown = config["alerts"]["receivers"][0]
    assert (shown["url"], shown["token"]) == (f"{receiver.url}/***", "***")


@pytest.mark.long("a gateway that fires, ends and starts again", timeout=90)
@pytest.mark.tier("ci")
def test_a_restart_forgets_no_alarm(start_tailrace, tmp_path, receiver):
    ready = serve(start_tailrace, tmp_path, receiver)
    for number in range(12):
        ask(ready["url"], f"question {number}")
    until(lambda: [one for one in receiver.of("/ours") if one["severity"] == "page"])
    urllib.request.urlopen(f"{ready['admin']}/healthz", timeout=5).close()
    os.kill(ready["pid"], signal.SIGTERM)
    until(lambda: not Path(f"/proc/{ready['pid']}").exists() or "Z" in Path(f"/proc/{ready['pid']}/stat").read_text())
    before = len(receiver.of("/ours"))
    again = start_tailrace("serve", "-c", str(tmp_path / "tailrace.yaml"), "--json").ready
    page = until(lambda: [one for one in receiver.of("/ours")[before:] if one["severity"] == "page"])[0]
    assert page["state"] == "firing"
    assert page["missed"] >= 12, "nobody has asked since"
    assert json.loads(get(f"{again['admin']}/alerts")[1])["firing"]


@pytest.mark.long("waits for diagnoses that are made by themselves", timeout=60)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.tier("ci"))])
def test_the_diagnosis_is_made_by_itself(start_tailrace, tmp_path, receiver, workers):
    # What is older than two periods is made anew for whoever asks: on a busy machine a short one never holds.
    every = {"diagnosis": {"every": "2s" if workers == 1 else "8s"}}
    ready = serve(start_tailrace, tmp_path, receiver, objectives={"e2e_p99": "60s"}, workers=workers, **every)
    for number in range(5):
        ask(ready["url"], f"question {number}")

    def made() -> Any:
        found = json.loads(get(f"{ready['admin']}/diagnosis")[1])
        return found if found.get("trigger") == "period" else None

    found = until(made)
    assert found["window_s"] == 600.0
    assert found["history"]
    assert found["age_s"] < 10
    fresh = json.loads(get(f"{ready['admin']}/diagnosis?now")[1])
    assert "trigger" not in fresh
    assert not receiver.got


def test_a_receiver_that_never_answers_holds_nobody_up(start_tailrace, tmp_path, receiver):
    ready = serve(
        start_tailrace, tmp_path, receiver,
        alerts={
            "every": "1s",
            "quantile_window": "30s",
            "receivers": [{"url": "http://127.0.0.1:9/x", "timeout": "1s"}],
        },
    )  # fmt: skip
    for number in range(12):
        ask(ready["url"], f"question {number}")
    found = until(
        lambda: [one for one in json.loads(get(f"{ready['admin']}/alerts")[1])["receivers"] if one["error"]], 15
    )
    assert found[0]["receiver"] == "http://127.0.0.1:9"
    with urllib.request.urlopen(f"{ready['admin']}/healthz", timeout=5) as answer:
        assert answer.status == 200


def test_rules_that_can_never_fire_are_refused_at_the_start(tmp_path):
    config = tmp_path / "tailrace.yaml"
    config.write_text(
        "backends: [{url: 'http://127.0.0.1:9'}]\nobjectives: {ttft_p90: 1s}\n"
        "alerts: {burn: [{rate: 14.4, long: 1h, short: 5m}]}\n"
    )
    result = subprocess.run(
        tailrace_command("serve", "-c", str(config)),
        capture_output=True, text=True, timeout=20, env=child_env(), check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "can never fire for ttft_p90" in result.stderr
    assert "alerts.burn[0]" in result.stderr
