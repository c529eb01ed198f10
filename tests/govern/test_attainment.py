"""How far a lane's objectives were met: worked numbers, windows, and who counts as missed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tailrace.govern.attainment import CELL_NS, WINDOWS, Attainment, met_all
from tailrace.govern.objectives import METRICS, QUANTILES, objective_name, objective_text
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, Objectives, S

OBJECTIVES = Objectives(bounds={"ttft": {0.99: 500 * MS, 0.5: 100 * MS}, "tpot": {0.99: 80 * MS}})


def row(
    *, outcome: OutcomeKind = OutcomeKind.COMPLETED, stream: bool = True, ttft_ns: int | None = 50 * MS
) -> RequestRecord:
    return RequestRecord(
        request_id="r", start_unix_ns=0, e2e_ns=S, outcome=outcome, stream=stream, ttft_ns=ttft_ns, tpot_ns=20 * MS
    )


def test_the_burn_rate_is_the_share_that_missed_over_the_share_that_may() -> None:
    seen = Attainment(OBJECTIVES)
    for number in range(200):
        seen.heard(row(ttft_ns=600 * MS if number < 4 else 50 * MS), S)
    view = seen.view(S)
    assert view["burn_rate"]["ttft_p99"] == {"5m": 2.0, "1h": 2.0}  # 2 % missed of 1 % allowed
    assert view["burn_rate"]["ttft_p50"] == {"5m": 0.04, "1h": 0.04}
    assert view["burn_rate"]["tpot_p99"] == {"5m": 0.0, "1h": 0.0}
    assert view["attainment"]["5m"] == {"requests": 200, "met": 196}
    assert (seen.requests, seen.met) == (200, 196)


def test_a_window_forgets() -> None:
    seen = Attainment(OBJECTIVES)
    seen.heard(row(ttft_ns=600 * MS), 0)
    assert seen.view(9 * CELL_NS)["burn_rate"]["ttft_p99"]["5m"] == pytest.approx(100.0)
    later = seen.view(10 * CELL_NS)
    assert later["attainment"]["5m"] == {"requests": 0, "met": 0}
    assert later["burn_rate"]["ttft_p99"] == {"1h": pytest.approx(100.0)}
    assert seen.view(120 * CELL_NS)["burn_rate"] == {}
    seen.heard(row(ttft_ns=MS), 2000 * CELL_NS)
    assert len(seen._fine) == 1


@pytest.mark.parametrize(
    "outcome",
    [OutcomeKind.REJECTED, OutcomeKind.CANCELLED, OutcomeKind.TIMED_OUT, OutcomeKind.FAILED],
)
def test_who_got_no_answer_met_nothing(outcome: OutcomeKind) -> None:
    assert not met_all(row(outcome=outcome, ttft_ns=MS), OBJECTIVES)


def test_of_several_quantiles_the_strictest_bound_counts() -> None:
    assert met_all(row(ttft_ns=99 * MS), OBJECTIVES)
    assert not met_all(row(ttft_ns=101 * MS), OBJECTIVES)


def test_a_stream_without_a_token_missed_and_an_answer_in_one_piece_has_no_ttft_to_miss() -> None:
    assert not met_all(row(stream=True, ttft_ns=None), OBJECTIVES)
    assert met_all(row(stream=False, ttft_ns=None), OBJECTIVES)


def test_names_go_both_ways() -> None:
    for metric in METRICS:
        for quantile in QUANTILES.values():
            assert objective_name(objective_text(metric, quantile)) == (metric, quantile)


def test_windows_are_what_counting_one_by_one_gives() -> None:
    rng = np.random.default_rng(4)
    seen, ends = Attainment(OBJECTIVES), []
    now = 10**14
    for number in range(3000):
        now += int(rng.exponential(60 * S))
        slow = bool(rng.random() < 0.3)
        seen.heard(row(ttft_ns=(900 if slow else 9) * MS), now)
        ends.append((now // CELL_NS, slow))
        if number % 100 == 0:
            at = now + int(rng.integers(0, 3600)) * S
            windows = {"7m": 420 * S, "6h": 6 * 3600 * S}
            said = seen.view(at, windows)["missed"]["ttft_p99"]
            for name, length in {**WINDOWS, **windows}.items():
                inside = [one for cell, one in ends if at // CELL_NS - length // CELL_NS < cell <= at // CELL_NS]
                assert said[name] == {"requests": len(inside), "missed": sum(inside)}, (name, number)
    assert len(seen._fine) <= 2 * 720
    assert len(seen._coarse) <= 2 * 336


def test_no_window_holds_more_misses_than_requests() -> None:
    """A request that passed one bound long ago and another just now is judged by each in its own window."""
    seen = Attainment(Objectives(bounds={"ttft": {0.99: 500 * MS}, "e2e": {0.99: 60 * S}}))
    for number in range(20):
        seen.passed(f"r{number}", "ttft", S, S)
    for number in range(20):
        seen.passed(f"r{number}", "e2e", 61 * S, 400 * S)
    said = seen.view(400 * S)["missed"]
    assert said["ttft_p99"]["5m"] == {"requests": 0, "missed": 0}
    assert said["e2e_p99"]["5m"] == {"requests": 20, "missed": 20}
    assert said["ttft_p99"]["1h"] == said["e2e_p99"]["1h"] == {"requests": 20, "missed": 20}
    assert seen.view(400 * S)["burn_rate"]["e2e_p99"]["5m"] == pytest.approx(100.0)
    for number in range(20):  # they end: nobody is judged twice
        seen.heard(msgspec.structs.replace(row(ttft_ns=S), request_id=f"r{number}", e2e_ns=500 * S), 500 * S)
    assert seen.view(500 * S)["missed"]["ttft_p99"]["1h"] == {"requests": 20, "missed": 20}
    assert seen.view(500 * S)["attainment"]["1h"] == {"requests": 20, "met": 0}
