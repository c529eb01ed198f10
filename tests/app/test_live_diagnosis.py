"""Which of a gateway's own diagnoses is still an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.app import live_diagnosis
from tailrace.app.live_diagnosis import LiveDiagnosis
from tailrace.gateway.config import Config


class Made(LiveDiagnosis):
    """Whose child process answers at once."""

    async def _ask(self, since: int | None, limit: int, before: int | None) -> dict[str, Any]:
        return {"at_unix_ms": 0, "findings": [], "summary": f"of {limit}"}


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(live_diagnosis, "monotonic", lambda: now.s)
    return now


def test_the_last_one_stands_while_no_request_has_ended_since(clock):
    """A diagnosis of a full window takes long on a busy machine: what is still so need not be made again."""
    counters = {"acknowledged": 5}

    async def flush() -> None:
        """Nothing waits."""

    live = Made(SimpleNamespace(config=Config.for_upstream("http://127.0.0.1:1")), lambda: counters, flush)
    assert live.latest() is None
    asyncio.run(live.of_window("period"))
    live._seen = 5
    clock.s += 500.0
    found = live.latest()
    assert found is not None
    assert (found["age_s"], found["trigger"], len(found["history"])) == (500.0, "period", 1)
    clock.s += 101.0
    assert live.latest() is None, "its window of ten minutes has moved on"
    clock.s -= 101.0
    counters["acknowledged"] = 6
    assert live.latest() is None, "it is older than two periods, and something has ended since"
    clock.s -= 400.0
    assert live.latest() is not None
