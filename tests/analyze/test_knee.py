"""The knee, and saturation: found where they are, and not where they are not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tailrace.analyze.knee import FEWEST, find_knee
from tailrace.analyze.saturation import growing, saturation
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.store.table import RecordTable


def curve(x: np.ndarray, knee: float, rng: np.random.Generator, noise: float = 0.03) -> np.ndarray:
    return 100 * np.exp(0.01 * x + 0.15 * np.clip(x - knee, 0, None) + noise * rng.standard_normal(x.size))


def test_the_interval_of_the_knee_holds_it():
    x = np.linspace(2, 40, 14)
    found = [find_knee(x, curve(x, 22, np.random.default_rng(seed))) for seed in range(100)]
    held = sum(one.at is not None and one.low <= 22 <= one.high for one in found)  # type: ignore[operator]
    assert held >= 90
    assert all(one.low <= one.at <= one.high for one in found if one.at is not None)  # type: ignore[operator]


def test_a_line_has_no_knee():
    x = np.linspace(2, 40, 14)
    found = [find_knee(x, curve(x, 1000, np.random.default_rng(seed))) for seed in range(100)]
    assert sum(one.at is not None for one in found) <= 5
    assert all("no knee within the range" in one.why for one in found if one.at is None)


def test_a_curve_that_flattens_has_no_knee():
    x = np.linspace(2, 40, 14)
    assert find_knee(x, 100 * np.exp(0.1 * np.minimum(x, 20))).at is None


def test_few_points_show_nothing():
    x = np.arange(1.0, FEWEST)
    assert f"{FEWEST} are the fewest" in find_knee(x, np.exp(x)).why


def test_the_bound_of_growth_is_that_of_students_t():
    x = np.arange(20.0)
    rng = np.random.default_rng(0)
    flat = sum(growing(x, rng.standard_normal(20))[1] > 0 for _ in range(2000))
    assert 5 <= flat <= 60  # 1 % of one side, widened for correlation
    assert growing(x, 0.5 * x + rng.standard_normal(20))[1] > 5
    assert growing(x, -0.5 * x + rng.standard_normal(20))[1] == 0
    assert growing(x[:5], x[:5]) == (0.0, 0.0)


def queue(rate: float, capacity: float, seconds: float, seed: int = 0) -> RecordTable:
    """One server in virtual time; TTFT is the wait and half the work."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, int(rate * seconds)))
    free, records = 0.0, []
    for i, begin in enumerate(at.tolist()):
        work = float(rng.exponential(1 / capacity))
        start = max(free, begin)
        free = start + work
        records.append(
            RequestRecord(
                vantage="client", request_id=f"r{i}", outcome=OutcomeKind.COMPLETED, run_offset_ns=round(begin * S),
                intended_to_sent_ns=0, ttft_ns=round((start + work / 2 - begin) * S), e2e_ns=round((free - begin) * S),
                start_unix_ns=round(begin * S),
            )
        )  # fmt: skip
    return RecordTable.from_records(records)


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_that_grows_is_saturation(seed: int):
    found = saturation(queue(30, 20, 60, seed))
    assert found.saturated
    assert "the queue grew by" in found.why
    assert found.slope == pytest.approx(10, rel=0.35)


def test_a_busy_queue_that_does_not_grow_is_none():
    assert sum(saturation(queue(10, 20, 60, seed)).saturated for seed in range(40)) <= 1


def constant(rate: float, answer_s: float, seconds: float, warmup_s: float = 0.0) -> RecordTable:
    """A server with room for everything: every answer takes `answer_s`, whatever else is in flight."""
    at = np.arange(0, seconds, 1 / rate)
    return RecordTable.from_records(
        RequestRecord(
            vantage="client", request_id=f"r{i}", outcome=OutcomeKind.COMPLETED, run_offset_ns=round(begin * S),
            intended_to_sent_ns=0, ttft_ns=S // 50, e2e_ns=round(answer_s * S), start_unix_ns=round(begin * S),
            lane="warmup" if begin < warmup_s else "chat",
        )
        for i, begin in enumerate(at.tolist())
    )  # fmt: skip


@pytest.mark.parametrize("answer_s", [0.5, 3.0, 5.0, 8.0])
@pytest.mark.parametrize("warmup_s", [0.0, 1.2])
def test_a_server_that_fills_up_is_not_full(answer_s: float, warmup_s: float):
    assert not saturation(constant(8, answer_s, 6, warmup_s)).saturated


def test_a_warm_up_hides_no_queue_that_grows():
    records = list(queue(30, 20, 60, 1).records())
    warm = [msgspec.structs.replace(one, lane="warmup" if one.run_offset_ns < 10 * S else "chat") for one in records]
    found = saturation(RecordTable.from_records(warm))
    assert found.saturated
    assert found.slope == pytest.approx(10, rel=0.35)


def test_few_requests_say_nothing():
    assert not saturation(queue(30, 1, 1)).saturated
