"""What the clients do, and how far the engine's counters move meanwhile."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from engines import Engine, Running

SETTLE_S = 2.0
"""Engines publish what ended with the next step, and we look after that."""


@dataclass
class Did:
    """What was done, and the engine's counters before and after."""

    counts: dict[str, int] = field(default_factory=dict)
    before: str = ""
    after: str = ""

    @property
    def total(self) -> int:
        return sum(count for what, count in self.counts.items() if what != "preemptions")

    def moved(self, counter: str) -> str:
        """`name +3`, for a counter written as in the engine's text: a name, with or without labels."""
        moves = _value(self.after, counter) - _value(self.before, counter)
        return f"`{counter}` {moves:+g}"


def _value(text: str, counter: str) -> float:
    name, _, labels = counter.partition("{")
    wanted = re.findall(r'\w+="[^"]*"', labels)
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if re.match(rf"{re.escape(name)}[{{ ]", line) and all(label in line for label in wanted)
    )


class Traffic:
    """Clients of one running engine."""

    def __init__(self, running: Running, engine: Engine) -> None:
        self._running, self._engine = running, engine

    def do(self, scenario: str) -> Did:
        """`leaving` (completed, left), `burst` (refused) or `preemption`."""
        did = Did(before=self._metrics())
        {"leaving": self._leaving, "burst": self._burst, "preemption": self._preemption}[scenario](did)
        time.sleep(SETTLE_S)
        did.after = self._metrics()
        return did

    def _leaving(self, did: Did) -> None:
        slots = self._engine.slots
        finished = self._together([self._reader(tokens=12) for _ in range(3 * slots)])
        left = self._together([self._reader(tokens=400, leave_after=4) for _ in range(2 * slots)])
        did.counts = {"completed": finished.count("whole"), "left in mid-stream": left.count("left")}
        if not self._engine.queues:
            return
        held: list[str] = []
        hold = self._reader(tokens=120)
        holders = [threading.Thread(target=lambda: held.append(hold())) for _ in range(slots)]
        for thread in holders:
            thread.start()
        time.sleep(0.7)
        waiting = self._together([self._reader(tokens=8, leave_after_s=0.4) for _ in range(slots)])
        for thread in holders:
            thread.join()
        did.counts["completed"] += (held + waiting).count("whole")
        did.counts["left while waiting"] = waiting.count("left")

    def _burst(self, did: Did) -> None:
        ends = self._together([self._reader(tokens=24) for _ in range(self._engine.burst)])
        did.counts = {"completed": ends.count("whole"), "refused by the engine": ends.count("refused")}

    def _preemption(self, did: Did) -> None:
        ends = self._together([self._reader(tokens=self._engine.long) for _ in range(8)])
        did.counts = {"completed": ends.count("whole"), "preemptions": 0}

    def _metrics(self) -> str:
        with urllib.request.urlopen(self._running.metrics, timeout=20) as answer:
            return str(answer.read().decode())

    @staticmethod
    def _together(jobs: list[Callable[[], str]]) -> list[str]:
        ends: list[str] = []
        threads = [threading.Thread(target=lambda job=job: ends.append(job())) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ends

    def _reader(
        self, *, tokens: int, leave_after: int | None = None, leave_after_s: float | None = None
    ) -> Callable[[], str]:
        """One client; returns how it ended: `whole`, `left`, `refused`."""

        def run() -> str:
            where = urlsplit(self._running.url)
            path, body = self._engine.request(self._running.model, tokens)
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=leave_after_s or 120)
            try:
                connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 200:
                    answer.read()
                    return "refused"
                events = 0
                for line in answer:
                    events += line.startswith(b"data:") and _has_text(line[5:])
                    if leave_after is not None and events >= leave_after:
                        return "left"
            except TimeoutError:
                return "left"
            else:
                return "whole"
            finally:
                connection.close()

        return run


def _has_text(data: bytes) -> bool:
    if data.strip() == b"[DONE]":
        return False
    event: dict[str, Any] = json.loads(data)
    if event.get("text_output"):
        return True
    return any(choice.get("delta", {}).get("content") for choice in event.get("choices", []))
