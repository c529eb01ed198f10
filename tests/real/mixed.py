"""Mixed requests from a few clients at once, and what their records leave unexplained."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tests.real.stream_client import stream


def whole(url: str, asked: dict[str, Any]) -> tuple[int, str]:
    """One answer in one piece: its status and our id."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("x-request-id") or ""
    finally:
        connection.close()


def drive(url: str, asked: Sequence[dict[str, Any]], *, clients: int) -> set[str]:
    """Send all, `clients` at a time; our ids. Every answer must be whole."""
    left = iter(asked)
    ids: set[str] = set()
    wrong: list[object] = []
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                one = next(left, None)
            if one is None:
                return
            if one["stream"]:
                answered = stream(url, one)
                good, request_id = answered["done"], answered["id"]
            else:
                status, request_id = whole(url, one)
                good = status == 200
            with lock:
                ids.add(request_id)
                if not good:
                    wrong.append(request_id)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert len(ids) == len(asked)
    return ids


def unexplained_over(records: Sequence[RequestRecord]) -> list[float]:
    """How far (ms) `unattributed` is above what it may be, max(2 % of the whole time, 10 ms); sorted."""
    over = [(record.unattributed_ns or 0) - max(0.02 * record.e2e_ns, 10 * MS) for record in records]
    return sorted(value / MS for value in over)


def at_p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99))


def apart_over(pairs: Sequence[tuple[int, int]]) -> list[float]:
    """How far (ms) pairs (reported, ours) are apart beyond 5 ms + 2 %; sorted."""
    return sorted((abs(reported - ours) - (5 * MS + 0.02 * ours)) / MS for reported, ours in pairs)
