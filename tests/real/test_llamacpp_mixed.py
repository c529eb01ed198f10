"""Two hundred mixed requests on eight slots: no more than 2 % of a request's time, or 10 ms, is left unexplained."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.store.query import RecordStore
from tests.real.mixed import apart_over, at_p99, drive, unexplained_over
from tests.real.stream_client import body

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread computes 200 requests", timeout=400),
]

REQUESTS = 200
CLIENTS = 12
"""More than the engine has slots, so that some requests of each moment wait."""


def _mixed(draw: random.Random, number: int) -> dict[str, Any]:
    words = draw.choice((6, 12, 12, 24, 90))
    prompt = f"Request {number}: " + " ".join(draw.choice(("river", "stone", "lamp", "seven")) for _ in range(words))
    asked = body(prompt, draw.choice((2, 8, 16, 24)), cache_prompt=draw.random() < 0.2)
    if draw.random() < 0.2:
        del asked["stream_options"]
        asked["stream"] = False
    return asked


@pytest.fixture(scope="module")
def records(stack) -> list[RequestRecord]:
    draw = random.Random(11)
    ids = drive(stack.url, [_mixed(draw, number) for number in range(REQUESTS)], clients=CLIENTS)
    # At rest, which is a moment after they are in the gateway's memory.
    deadline = time.monotonic() + 20
    while len(found := [one for one in RecordStore(stack.folder).records() if one.request_id in ids]) < REQUESTS:
        assert time.monotonic() < deadline, f"{len(found)} records of {REQUESTS}"
        time.sleep(0.1)
    return found


def test_every_request_is_there_and_adds_up(records):
    assert len(records) == REQUESTS
    assert {record.outcome for record in records} == {OutcomeKind.COMPLETED}
    assert {record.stream for record in records} == {True, False}
    assert [broken for record in records for broken in broken_invariants(record)] == []


def test_next_to_nothing_is_unattributed(records):
    over = unexplained_over(records)
    assert at_p99(over) <= 0, over[-5:]


def test_the_engines_prefill_agrees_with_our_stamps(records):
    """The engine's `prompt_ms` against the time between its status line and its first token."""
    pairs = []
    for record in records:
        if record.stream:
            assert record.stage_sources["prefill"].startswith("reported(timings.prompt_ms")
            pairs.append((record.prefill_ns, record.ttft_upstream_ns - record.headers_ns))
    over = apart_over(pairs)
    assert np.quantile(over, 0.95) <= 0, over[-10:]
