"""llama.cpp with its reports hidden: inferred prefill against its own `timings`, inferred queue against its wait.

Its status line comes when a slot starts, so `headers_ns` is the queue; the plain adapter knows nothing of that.
"""

from __future__ import annotations

import statistics

import pytest
import uvloop

from tailrace.model.thresholds import MS
from tests.real.stream_client import body
from tests.wire.inference_load import Outcome, load, stated_ns

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread computes some 5,000 tokens", timeout=300),
]

REQUESTS = 60


@pytest.fixture(scope="module")
def outcome(engine: str) -> Outcome:
    asked = [
        (0.4, body(f"Story {number}: " + "and then " * (10 + 37 * number % 160), 24)) for number in range(REQUESTS)
    ]
    return uvloop.run(load(engine, asked, tells='"timings"'))


def test_what_is_shown_is_near_to_what_it_says(outcome: Outcome):
    off, covered = [], []
    for record, event in outcome.told:
        if record.prefill_ns is None:
            continue
        error = abs(record.prefill_ns / MS - event["timings"]["prompt_ms"])
        off.append(error / (record.ttft_upstream_ns or 1) * MS)
        covered.append(error <= stated_ns(record, "prefill") / MS)
    print(outcome.view)
    print(len(off), "of", len(outcome.told), "shown; error over wait: median", off and statistics.median(off))
    print("covered", sum(covered), "of", len(covered))
    assert outcome.view["asked"] >= REQUESTS - 2
    if off:
        assert statistics.median(off) <= 0.35
