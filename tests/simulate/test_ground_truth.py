"""Recorded vLLM runs, replayed: the scheduler's rules and the kernel tables against 300 real requests."""

from __future__ import annotations

import pytest

from tailrace.simulate.knobs import EngineKnobs
from tests.simulate.tables import Replay, p99, table_cost

pytestmark = pytest.mark.needs("shared")

RTX4090 = EngineKnobs(max_num_seqs=256, max_num_batched_tokens=2048, num_gpu_blocks=2588, max_model_len=32_768)
PRO6000 = EngineKnobs(max_num_seqs=128, max_num_batched_tokens=2048, num_gpu_blocks=30_000, max_model_len=32_768)


def test_rtx4090_without_a_fitted_parameter():
    replay = Replay("RTX4090", RTX4090, table_cost("RTX4090"))
    assert abs(replay.makespan / replay.real_makespan - 1) < 0.03
    assert abs(replay.error("tpot")) < 0.03
    assert abs(replay.error("latency")) < 0.03
    assert abs(replay.error("latency", p99)) < 0.03
    assert abs(replay.error("ttft")) < 0.05
    assert abs(replay.error("ttft", p99)) < 0.05
    assert replay.engine.counters.preemptions > 0


def test_more_blocks_shift_the_wait_from_queue_to_decode():
    knobs = EngineKnobs(max_num_seqs=256, max_num_batched_tokens=2048, num_gpu_blocks=3400, max_model_len=32_768)
    replay = Replay("RTX4090", knobs, table_cost("RTX4090"))
    assert -0.28 < replay.error("ttft") < -0.15
    assert 0.07 < replay.error("tpot") < 0.16


def test_resuming_without_the_prefix_cache_costs_more():
    import msgspec

    with_hits = Replay("RTX4090", RTX4090, table_cost("RTX4090"))
    without = Replay("RTX4090", msgspec.structs.replace(RTX4090, enable_prefix_caching=False), table_cost("RTX4090"))
    assert without.simulated["ttft"].mean() > with_hits.simulated["ttft"].mean() * 1.01


def test_rtx_pro_6000_with_one_overhead_fitted_on_half_of_the_requests():
    def replay(overhead: float) -> Replay:
        cost = table_cost("RTXPRO6000", attention_model="mixed", prefill_step_s=overhead)
        return Replay("RTXPRO6000", PRO6000, cost)

    fitted, held_out = slice(0, None, 2), slice(1, None, 2)
    low, high = 0.0, 0.03
    for _ in range(7):
        middle = (low + high) / 2
        if replay(middle).error("tpot", where=fitted) < 0:
            low = middle
        else:
            high = middle
    best = replay((low + high) / 2)
    assert abs(best.error("tpot", where=held_out)) < 0.05
    assert abs(best.error("latency", where=held_out)) < 0.05
    assert abs(best.error("latency", p99, where=held_out)) < 0.05
