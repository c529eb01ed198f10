"""What the ladder measures: tails that are surely so, over the objective, of the lanes that it watches."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.govern.ladder import Signal
from tailrace.govern.ladder_signals import KEPT, LadderSignals, surely
from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import MS, Objectives, S

BOUND = 500 * MS
CHAT = Objectives(bounds={"ttft": {0.99: BOUND}})


def signals(**lanes: Objectives) -> LadderSignals:
    return LadderSignals(lanes or {"chat": CHAT}, window_ns=10 * S)


def test_one_outlier_is_no_tail() -> None:
    for n in (2, 3, 10, 50, 99):
        fast = [1.0] * (n - 1)
        assert surely([*fast, 100.0], 0.99) in (1.0, None)
    assert surely([], 0.99) is None
    assert surely([5.0], 0.5) is None


@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("n", [5, 20, 100, 500])
def test_the_tail_is_hardly_ever_overstated(quantile: float, n: int) -> None:
    """Sampled from a known distribution, at most about one in twenty lies above the true quantile."""
    rng = np.random.default_rng(7)
    true = -np.log(1 - quantile)
    over = sum((surely(sorted(rng.exponential(size=n)), quantile) or 0.0) > true for _ in range(2000))
    assert over / 2000 < 0.09  # the normal approximation is coarse where few values are above


def test_a_tail_that_is_there_is_seen() -> None:
    """A third of the requests beyond the objective: ten of them are enough."""
    seen = signals()
    lane = seen.lane("chat")
    assert lane is not None
    for number in range(10):
        lane.first_token(2 * BOUND if number % 3 == 0 else BOUND // 2, number * 100 * MS)
    assert seen.read(S)[Signal.TTFT] == 2.0


def test_those_without_a_token_count_once_they_are_over() -> None:
    seen = signals()
    assert seen.read(S, without_token={"chat": [BOUND // 2] * 50})[Signal.TTFT] is None
    assert seen.read(S, without_token={"chat": [3 * BOUND] * 5})[Signal.TTFT] == 3.0


def test_the_worst_lane_speaks_and_unwatched_ones_do_not() -> None:
    slow = Objectives(bounds={"ttft": {0.99: 10 * BOUND}})
    seen = signals(chat=CHAT, documents=slow, batch=Objectives(bounds={}))
    assert seen.lane("elsewhere") is None
    for name in ("chat", "documents", "batch"):
        lane = seen.lane(name)
        assert lane is not None
        for _ in range(10):
            lane.first_token(2 * BOUND, S)
            lane.waited(BOUND, S)
    read = seen.read(S, predicted={"chat": BOUND // 4, "documents": 20 * BOUND, "batch": 1 << 50, "x": 1 << 50})
    assert (read[Signal.TTFT], read[Signal.QUEUE_WAIT], read[Signal.PREDICTED_WAIT]) == (2.0, 1.0, 2.0)


def test_what_is_old_or_of_another_step_is_forgotten() -> None:
    seen = signals()
    lane = seen.lane("chat")
    assert lane is not None
    for _ in range(10):
        lane.first_token(9 * BOUND, S)
        seen.gap(S)
        seen.answered(S, refused=True)
    assert seen.read(2 * S)[Signal.TTFT] == 9.0
    assert seen.read(2 * S)[Signal.GAPS_PER_S] == 2.0
    assert seen.read(2 * S)[Signal.TURNED_AWAY] == 1.0
    later = seen.read(12 * S)
    assert (later[Signal.TTFT], later[Signal.GAPS_PER_S], later[Signal.TURNED_AWAY]) == (None, 0.0, 0.0)
    lane.first_token(9 * BOUND, 12 * S)
    lane.first_token(9 * BOUND, 12 * S)
    lane.first_token(9 * BOUND, 12 * S)
    assert seen.read(12 * S)[Signal.TTFT] == 9.0
    seen.stepped(13 * S)
    assert seen.read(13 * S)[Signal.TTFT] is None


def test_of_engines_the_one_with_room_counts() -> None:
    states = [EngineState(at_ns=0, waiting=9, kv_usage=0.5), EngineState(at_ns=0, waiting=19), EngineState(at_ns=0)]
    read = signals().read(0, engines=states, loop_lag_ns=30 * MS)
    assert (read[Signal.ENGINE_WAITING], read[Signal.KV_USAGE], read[Signal.LOOP_LAG_MS]) == (9, 0.5, 30.0)
    assert signals().read(0)[Signal.ENGINE_WAITING] is None


def test_memory_is_bounded() -> None:
    seen = signals()
    lane = seen.lane("chat")
    assert lane is not None
    for number in range(10 * KEPT):
        lane.first_token(BOUND, number)
        lane.waited(BOUND, number)
        seen.gap(number)
        seen.answered(number, refused=False)
    assert len(lane._first_tokens) == len(lane._waits) == len(seen._gaps) == len(seen._answers) == KEPT
