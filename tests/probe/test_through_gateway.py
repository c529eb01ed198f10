"""A load test of the gateway and one of the engine behind it have the same percentiles, within their intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tailrace.model.thresholds import MS
from tests.children import Child, tailrace_command
from tests.probe.both_ways import apart, in_turns
from tests.probe.truth_server import TruthServer

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("shared"),
    pytest.mark.long("eight runs of four seconds, through the gateway and without it", timeout=150),
]

LOAD = ("--model", "mixed:stall_prob=0.02", "--concurrency", "16", "--requests", "32", "--output-tokens", "60")


def test_the_percentiles_are_the_same_with_and_without_it(truth: TruthServer, tmp_path: Path):
    """Each run finds the truth server reset, so that it plays the same streams to both: even the tail may not move."""
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    gateway = Child(tailrace_command("serve", "--upstream", truth.url, *ports, "--json"))
    try:
        url = gateway.wait_ready(30).url
        for _ in range(2):
            direct, through = in_turns(truth.url, url, LOAD, tmp_path, rounds=4, before=truth.reset)
            complaints = apart(direct, through)
            if not complaints:
                break
    finally:
        gateway.stop()
    assert complaints == []
    assert len(direct) == len(through) == 128
    medians = [np.median([record.ttft_ns or 0 for record in records]) for records in (direct, through)]
    assert abs(medians[1] - medians[0]) < 15 * MS
