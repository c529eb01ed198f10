"""Every row of the truth server's pass list: what happens, and what must be reported of it.

The server stamps each write; its own judge compares, request by request, what it sent with what the run file says.
Beside that, each row's own figures are looked for in the summary that a person reads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tailrace.model.measurement import MetricSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tests.probe.truth_server import REQUESTS, TOKENS, Played, truth_report

pytestmark = pytest.mark.needs("shared")

SCENARIOS = (
    "plain", "mixed", "fast", "spec", "burst_write", "split", "crlf", "role_early", "empty_first", "pings",
    "late_usage", "late_done", "no_usage", "cont_usage", "usage_with_finish", "reasoning", "reasoning_alt",
    "early_eos", "one_token", "reject", "drop", "error_event",
)  # fmt: skip
# Failures that hit one request in five would be too few in a short run.
MODELS = {name: f"{name}:{name}_prob=0.5" for name in ("reject", "drop", "error_event")}
FAILURES = {"reject": Reason.RATE_LIMITED, "drop": Reason.STREAM_CUT, "error_event": Reason.ENGINE_CRASH}

Play = Callable[[str], Played]


def named(played: Play, scenario: str) -> Played:
    return played(MODELS.get(scenario, scenario))


def near(metric: MetricSummary, want_ms: float, *, at: str = "mean", within_ms: float = 25.0) -> bool:
    """The mean, because eight requests have no percentiles to show."""
    got = getattr(metric, at)
    return got is not None and abs(got - want_ms) <= within_ms


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_judge_finds_no_fault(scenario: str, played: Play):
    result = named(played, scenario)
    assert result.wrong_facts == []
    assert result.complaints == []
    failed = [record for record in result.records if record.outcome is not OutcomeKind.COMPLETED]
    assert sum(result.summary.errors.values()) == len(failed)
    assert bool(failed) == (scenario in MODELS)


@pytest.mark.parametrize(("scenario", "ttft", "gap"), [("plain", 100, 20), ("fast", 20, 5)])
def test_the_plain_ones_have_their_figures(scenario: str, ttft: float, gap: float, played: Play):
    metrics = named(played, scenario).summary.metrics
    assert near(metrics["ttft_ms"], ttft)
    assert near(metrics["chunk_gap_ms"], gap, within_ms=3)
    assert near(metrics["tpot_ms"], gap, within_ms=3)
    assert metrics["chunk_gap_ms"].n == REQUESTS * (TOKENS - 1)


def test_mixed_shows_its_stalls_where_a_mean_would_hide_them(played: Play):
    result = played("mixed:stall_prob=0.05")  # of 312 gaps about 15; at 1 % a run this short may have none
    true = truth_report(result.sent)
    assert true["gaps"]["p99"] > 180
    gaps = result.summary.metrics["chunk_gap_ms"]
    assert near(gaps, true["gaps"]["mean"], within_ms=2)
    assert near(gaps, true["gaps"]["max"], at="max", within_ms=25)
    tpot = result.summary.metrics["tpot_ms"]
    assert tpot.max is not None
    assert tpot.max < 60, "the mean gap of no request comes near a stall"


def test_spec_counts_tokens_and_not_events(played: Play):
    result = played("spec")
    assert near(result.summary.metrics["tpot_ms"], 13.3, within_ms=2)
    assert near(result.summary.metrics["chunk_gap_ms"], 40, within_ms=5)
    assert {record.output_tokens for record in result.records} == {40}


def test_burst_write_has_three_gaps_of_nothing_in_four(played: Play):
    for record in played("burst_write").records:
        assert record.timeline is not None
        stamps = record.timeline.token_stamps()
        gaps = [b - a for a, b in pairwise(stamps)]
        assert sum(gap == 0 for gap in gaps) >= 30, "tokens of one write that came apart were stamped apart"


def test_split_is_stamped_by_the_half_that_completes_the_event(played: Play):
    result = played("split")
    # Its first half leaves 1 ms earlier; the server stamps the second.
    sent = {row["client_id"]: row for row in result.sent}
    for record in result.records:
        row = sent[record.request_id]
        true_ms = next(at for at, n in zip(row["sent_us"], row["n"], strict=True) if n) / 1e3
        assert record.ttft_ns is not None
        assert record.ttft_ns / 1e6 >= true_ms - 0.05


def test_crlf_and_pings_fail_nothing(played: Play):
    for scenario in ("crlf", "pings"):
        assert played(scenario).summary.errors == {}
    assert near(played("pings").summary.metrics["ttft_ms"], 300)


@pytest.mark.parametrize("scenario", ["role_early", "empty_first"])
def test_what_carries_no_token_is_no_first_token(scenario: str, played: Play):
    result = played(scenario)
    assert near(result.summary.metrics["ttft_ms"], 300)
    assert (result.summary.metrics["ttft_ms"].min or 0) >= 299
    assert near(result.summary.metrics["tpot_ms"], 20, within_ms=3)
    assert result.summary.metrics["chunk_gap_ms"].n == REQUESTS * 39


@pytest.mark.parametrize(("scenario", "done_ms"), [("late_usage", 1480), ("late_done", 1380)])
def test_a_late_end_is_apart_from_the_last_token(scenario: str, done_ms: float, played: Play):
    metrics = played(scenario).summary.metrics
    assert near(metrics["tpot_ms"], 20, within_ms=3)
    assert near(metrics["e2e_last_token_ms"], 880, within_ms=60)
    assert near(metrics["e2e_ms"], done_ms, within_ms=60)


@pytest.mark.parametrize(
    ("scenario", "source"),
    [("no_usage", "chunks"), ("cont_usage", "usage"), ("usage_with_finish", "usage"), ("plain", "usage")],
)
def test_the_count_of_tokens_says_where_it_comes_from(scenario: str, source: str, played: Play):
    for record in played(scenario).records:
        assert (record.output_tokens, record.output_tokens_source) == (40, source)


@pytest.mark.parametrize("scenario", ["reasoning", "reasoning_alt"])
def test_reasoning_is_output_and_content_has_a_time_of_its_own(scenario: str, played: Play):
    metrics = played(scenario).summary.metrics
    assert near(metrics["ttft_ms"], 100)
    assert near(metrics["ttft_content_ms"], 700, within_ms=60)
    assert near(metrics["tpot_ms"], 20, within_ms=3)
    assert metrics["chunk_gap_ms"].n == REQUESTS * 39


def test_an_early_end_has_the_tokens_that_came(played: Play):
    assert {record.output_tokens for record in played("early_eos").records} == {25}


def test_one_token_has_no_tpot_at_all(played: Play):
    result = played("one_token")
    tpot = result.summary.metrics["tpot_ms"]
    assert (tpot.n, tpot.mean, tpot.p50) == (0, None, None)
    assert tpot.reason
    assert {record.tpot_ns for record in result.records} == {None}


@pytest.mark.parametrize("scenario", list(FAILURES))
def test_failures_are_counted_by_reason_and_are_in_no_latency(scenario: str, played: Play):
    result = named(played, scenario)
    failed = [record for record in result.records if record.outcome is not OutcomeKind.COMPLETED]
    assert {record.reason for record in failed} == {FAILURES[scenario]}
    assert result.summary.errors == {FAILURES[scenario].value: len(failed)}
    assert {record.output_tokens for record in failed} == ({None} if scenario == "reject" else {21})
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "e2e_last_token_ms"):
        assert result.summary.metrics[name].n == REQUESTS - len(failed)
