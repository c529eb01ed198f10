"""Clients that leave, and how long an engine goes on for them: straight at the engine, and through the gateway."""

from __future__ import annotations

import http.client
import json
import re
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TOKEN = re.compile(rb'"content":"(?!")')
WITHIN_S = 0.05
"""How much later than for a client of its own the engine's slot may be free."""
GIVEN_UP_S = 30.0


class Leaving(NamedTuple):
    """How a client asks, and where it leaves."""

    asked: dict[str, Any]
    after_tokens: int = 0
    after_s: float = 0.0
    """So long after its request was sent: engines look for clients that have left in a rhythm that begins there."""


class Metrics:
    """An engine's `/metrics` on a connection that is kept."""

    def __init__(self, engine: str) -> None:
        parts = urlsplit(engine)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)

    def read(self, *names: str) -> int:
        """The sum of gauges."""
        self._connection.request("GET", "/metrics")
        text = self._connection.getresponse().read().decode()
        return round(
            sum(
                float(line.rpartition(" ")[2])
                for line in text.splitlines()
                if line.startswith(names) and line.partition("{")[0].partition(" ")[0] in names
            )
        )

    def close(self) -> None:
        self._connection.close()


def _request(url: str, asked: dict[str, Any]) -> bytes:
    body = json.dumps(asked).encode()
    host = urlsplit(url).netloc
    head = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + body


def begin(url: str, leaving: Leaving) -> socket.socket:
    """Ask, and come to the place where this client leaves."""
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=30)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent = time.monotonic()
    client.sendall(_request(url, leaving.asked))
    seen = b""
    while len(TOKEN.findall(seen)) < leaving.after_tokens:
        data = client.recv(65536)
        assert data, seen[-500:]
        seen += data
    time.sleep(max(0.0, sent + leaving.after_s - time.monotonic()))
    return client


def until_free(url: str, leaving: Leaving, busy: Callable[[], int]) -> float:
    """Seconds from a client's leaving to the engine's being as idle as before it came."""
    before = busy()
    with closing(begin(url, leaving)):
        assert busy() > before, "it was not with the engine when it left"
        left = time.monotonic()
    return fallen(busy, before) - left


def fallen(busy: Callable[[], int], to: int) -> float:
    """The instant at which the engine is seen to work on no more than `to` requests."""
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        now = busy()
        answered = time.monotonic()
        if now <= to:
            return (asked + answered) / 2
        assert answered - began < GIVEN_UP_S, "the engine went on for a client that had left"
        time.sleep(0.002)


def cpu_s(pid: int) -> float:
    """What all threads of a process have computed so far (s)."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def compare(direct: str, through: str, take: Callable[[str], float], *, times: int) -> tuple[float, float]:
    """Medians (s) of what `take` measures direct and through, in turns."""
    taken: dict[str, list[float]] = {direct: [], through: []}
    for number in range(times):
        order = (direct, through) if number % 2 else (through, direct)
        for url in order:
            taken[url].append(take(url))
    print({"direct_ms": [round(s * 1e3, 1) for s in taken[direct]]})
    print({"through_ms": [round(s * 1e3, 1) for s in taken[through]]})
    return statistics.median(taken[direct]), statistics.median(taken[through])
