"""Incidents made on a real Triton: two scrapes of its metrics, a model's configuration, and what follows from them."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.children import run_tailrace

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("triton"),
    pytest.mark.long("a real Triton serves a few seconds of traffic", timeout=90),
]


def infer(url: str, model: str, number: int) -> None:
    body = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}]}
    ).encode()  # fmt: skip
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


class Scene:
    """Two scrapes around some traffic to one model."""

    def __init__(self, triton: Any, folder: Path, model: str) -> None:
        self.triton, self.folder, self.model = triton, folder, model

    def _scrape(self, name: str) -> str:
        """Of this model alone: the server has others."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.triton.child.ready['metrics']}/metrics", timeout=10
        ) as got:
            lines = got.read().decode().splitlines()
        out = self.folder / name
        mine = [line for line in lines if line.startswith("#") or f'model="{self.model}"' in line]
        out.write_text("\n".join(mine) + "\n")
        return str(out)

    def diagnose(self, offsets: list[float], *config: str, **facts: object) -> dict[str, Any]:
        """Send a request at each offset (s), and ask what was wrong."""
        before, begun = self._scrape("before.prom"), time.monotonic()
        threads = []
        for number, at in enumerate(offsets):
            time.sleep(max(0.0, begun + at - time.monotonic()))
            threads.append(threading.Thread(target=infer, args=(self.triton.url, self.model, number)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        window = time.monotonic() - begun
        after = self._scrape("after.prom")
        told = self.folder / "facts.json"
        told.write_text(json.dumps({"facts": 1, "context": {"window_s": round(window, 3), **facts}}))
        done = run_tailrace("diagnose", before, after, *config, str(told), "--json", timeout=40)
        assert done.returncode == 0, done.stderr
        out: dict[str, Any] = json.loads(done.stdout)
        return out


def first(told: dict[str, Any]) -> dict[str, Any]:
    assert told["findings"], told["summary"]
    finding: dict[str, Any] = told["findings"][0]
    return finding


def test_a_batcher_waits_for_requests_that_do_not_come(triton, tmp_path):
    """One request in 300 ms, and a batcher that waits 120 ms for a second one: all of it is waited for nothing."""
    config = str(triton.folder / "models" / "patient" / "config.pbtxt")
    told = Scene(triton, tmp_path, "patient").diagnose([0.3 * number for number in range(25)], config)
    found = first(told)
    assert found["code"] == "SCHED_BATCHER_WAIT", told["summary"]
    assert found["level"] in ("consistent", "proven")
    assert "max_queue_delay_microseconds" in found["advice"]


def test_one_instance_is_too_few(triton, tmp_path):
    """15 ms a request and one at a time make 66 a second; 80 are sent, and the processors have nothing to do."""
    told = Scene(triton, tmp_path, "double_alone").diagnose(
        [number / 80 for number in range(400)], instances=1, gpu_util_pct=0
    )
    assert first(told)["code"] in ("SCHED_INSTANCE_LIMIT", "SCHED_QUEUE_SATURATION"), told["summary"]
    assert "SCHED_INSTANCE_LIMIT" in [one["code"] for one in told["findings"][:2]]


def test_the_queue_is_of_bursts(triton, tmp_path):
    """25 a second are a third of what it can do; they come ten at a time."""
    told = Scene(triton, tmp_path, "double_alone").diagnose(
        [0.4 * burst for burst in range(20) for _ in range(10)], offered_rps=25
    )
    assert first(told)["code"] in ("MIX_BURSTY_ARRIVALS", "SCHED_QUEUE_SATURATION"), told["summary"]


def test_a_server_at_ease_is_left_alone(triton, tmp_path):
    told = Scene(triton, tmp_path, "double_alone").diagnose([0.1 * number for number in range(40)], instances=1)
    assert [one["code"] for one in told["findings"] if one["level"] != "insufficient"] == [], told["summary"]
