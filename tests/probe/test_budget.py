"""What the load generator promises of its own accuracy, on two cores that it shares with the server.

On a machine that is busy with other things nobody can keep that promise; what holds there is that a run says of itself
that the client was the limit. So runs that say so are set aside, and the median of the others is held to the bounds.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pytest

from tailrace.model.thresholds import MS
from tailrace.store.run_file import read_run
from tests.children import child_env, health_code, tailrace_command
from tests.conftest import TIER
from tests.probe.truth_server import TruthServer, truth_report

pytestmark = [pytest.mark.needs("shared"), pytest.mark.tier("ci")]

STREAMS, TOKENS = 128, 100
RUNS, ENOUGH = 15, 5
PATIENCE_S = 180.0
"""A machine on which fifteen runs take longer than this has no five healthy ones to give."""
TTFT_SHARE, TTFT_MS, GAP_SHARE = 0.03, 3.0, 0.02


class Outcome(NamedTuple):
    """One run beside the truth (ms)."""

    limited: str
    ttft: tuple[float, float]
    gap: tuple[float, float]

    @property
    def ttft_excess(self) -> float:
        """The error of the TTFT p99 over its bound: 1 is just within."""
        said, true = self.ttft
        return abs(said - true) / max(TTFT_SHARE * true, TTFT_MS)

    @property
    def gap_excess(self) -> float:
        said, true = self.gap
        return abs(said - true) / (GAP_SHARE * true)

    @property
    def within(self) -> bool:
        return self.ttft_excess <= 1 and self.gap_excess <= 1


def kept(outcomes: list[Outcome]) -> bool:
    """Whether their median is within the bounds."""
    return all(median(excess) <= 1 for excess in zip(*((o.ttft_excess, o.gap_excess) for o in outcomes), strict=True))


def bench(truth: TruthServer, folder: Path, *args: str) -> dict:
    """`tailrace bench` as a user starts it, against a truth server that has forgotten what was before."""
    truth.reset()
    command = tailrace_command("bench", truth.url, *args, "--json", "--out", "a.run")
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=folder, env=child_env(), check=False)
    assert done.returncode == health_code(folder / "a.run"), done.stderr
    return json.loads(done.stdout)


def one_run(truth: TruthServer, folder: Path) -> Outcome:
    load = ("--concurrency", str(STREAMS), "--requests", str(2 * STREAMS), "--output-tokens", str(TOKENS))
    # A first wave outside the figures: the server makes up each answer when it is asked, a millisecond or two, and of
    # 128 that come at once the last one has been waiting for its turn before the server's clock starts.
    summary = bench(truth, folder, "--model", "mixed", "--warmup", str(STREAMS), *load)
    assert summary["errors"] == {}
    records = read_run(folder / "a.run").records
    measured = {record.request_id for record in records}
    true = truth_report([row for row in truth.sent() if row["client_id"] in measured])
    # The p99 of so few requests is not shown; the same estimator on both sides compares all the same.
    said = float(np.quantile([(record.ttft_ns or 0) / MS for record in records], 0.99))
    client = summary["client"]
    return Outcome(
        limited=client["why"] if client["limited"] else "",
        ttft=(said, true["ttft"]["p99"]),
        gap=(summary["metrics"]["chunk_gap_ms"]["p99"], true["gaps"]["p99"]),
    )


@pytest.mark.long("up to fifteen runs of ten seconds, until five were healthy", timeout=300)
def test_128_streams_of_50_tokens_a_second_are_measured_as_they_were(truth: TruthServer, tmp_path: Path):
    outcomes: list[Outcome] = []
    healthy: list[Outcome] = []
    began = time.monotonic()
    while len(outcomes) < RUNS and time.monotonic() - began < PATIENCE_S:
        outcomes.append(one_run(truth, tmp_path))
        healthy = [one for one in outcomes if not one.limited]
        if len(healthy) >= ENOUGH and kept(healthy[-ENOUGH:]):
            return
    told = "\n".join(f"{one.ttft_excess:.2f} {one.gap_excess:.2f} {one}" for one in outcomes)
    assert len(healthy) < ENOUGH, f"no five healthy runs in a row had a median within the bounds:\n{told}"
    unsaid = [one for one in healthy if not one.within]
    assert not unsaid, f"off, and it did not say that the client was the limit:\n{told}"
    if TIER == "test":
        pytest.skip(f"only {len(healthy)} of {len(outcomes)} runs found the machine free enough to be judged")


@pytest.mark.long("six runs of four seconds at most", timeout=120)
def test_500_requests_a_second_keep_their_schedule_or_say_that_they_cannot(truth: TruthServer, tmp_path: Path):
    """In an open loop, answers of eight tokens: within 1 % of the rate at the server, and no drift."""
    seen = []
    for _ in range(6):
        load = ("--rate", "500", "--arrival", "constant", "--requests", "2000", "--output-tokens", "8")
        summary = bench(truth, tmp_path, "--model", "plain:ttft_ms=20,itl_ms=5", *load)
        at = [row["body_ns"] for row in truth.sent()]
        assert len(at) == summary["n"] == 2000
        got = (len(at) - 1) / (at[-1] - at[0]) * 1e9
        seen.append((got, summary["client"]))
        if abs(got / 500 - 1) <= 0.01 and not summary["client"]["limited"]:
            return
        assert summary["client"]["limited"], f"{got:.1f} of 500 a second, and it did not say so: {summary['client']}"
    if TIER == "test":
        pytest.skip(f"the machine was never free enough: {seen}")
