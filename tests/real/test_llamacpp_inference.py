"""llama.cpp with its reports hidden: inferred prefill and queue against its own `timings` and its status line.

Its status line comes when a slot starts, so `headers_ns` is the queue; the plain adapter knows nothing of either.
"""

from __future__ import annotations

import statistics

import pytest
import uvloop

from tailrace.model.thresholds import MS
from tests.real.conftest import SLOTS
from tests.real.stream_client import body
from tests.wire.inference_load import Outcome, load, stated_ns

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread computes some 3,000 tokens", timeout=300),
]

REQUESTS = 48
AT_ONCE = SLOTS + 3
"""More than there are slots: some queue."""


@pytest.fixture(scope="module")
def outcome(engine: str) -> Outcome:
    asked = [(0.3, body(f"Story {number}: " + "and then " * (5 + 11 * number % 40), 10)) for number in range(REQUESTS)]
    return uvloop.run(load(engine, asked, tells='"timings"', at_once=AT_ONCE))


def test_what_is_shown_is_near_to_what_it_says(outcome: Outcome):
    assert outcome.view["asked"] >= REQUESTS - 2
    shown = 0
    for stage in ("queue.engine", "prefill"):
        errors, shares, covered = [], [], []
        for record, event in outcome.told:
            value, wait = record.stage_ns(stage), record.ttft_upstream_ns
            if value is None or wait is None:
                continue
            true = event["timings"]["prompt_ms"] if stage == "prefill" else (record.headers_ns or 0) / MS
            error = abs(value / MS - true)
            errors.append(error)
            shares.append(error / (wait / MS))
            covered.append(error <= stated_ns(record, stage) / MS)
        shown += len(errors)
        if errors:
            print(
                f"{stage}: {len(errors)} of {len(outcome.told)} shown, median {statistics.median(errors):.1f} ms off, "
                f"{statistics.median(shares):.1%} of the wait, covered {sum(covered) / len(covered):.0%}"
            )
            assert statistics.median(shares) <= 0.2, stage
    print(outcome.view)
    assert shown >= 5
