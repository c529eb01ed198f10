import msgspec
import pytest

from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.triage import RULES, triage
from tests.diagnose.machines import gpu
from tests.diagnose.simulated import UNCHUNKED, as_client, as_gateway, evidence, served


def rules(records, **extra):
    return triage(evidence(records, **extra))


def test_one_long_prompt_makes_everything_stutter():
    assert "R9" in rules(as_gateway(served(**UNCHUNKED)))
    assert "R9" not in rules(as_gateway(served(max_num_batched_tokens=512)))


def test_a_queue_is_r1_and_two_seconds_are_r11():
    fired = rules(as_gateway(served(rate=25.0, long_share=0.0, max_num_seqs=32)))
    assert {"R1", "R11"} <= set(fired)
    assert "R2" not in fired


def test_unsplit_slow_first_tokens_are_r2():
    assert "R2" in rules(as_client(served(rate=25.0, long_share=0.0, max_num_seqs=32)))


def test_a_healthy_window_fires_nothing():
    assert rules(as_gateway(served(rate=4.0, long_share=0.0))) == []


def test_fast_first_and_slow_later_tokens_are_r3():
    assert rules(as_gateway(served(rate=2.0, long_share=0.0, speed=0.16))) == ["R3"]


def test_only_the_tail_worse_is_r4_and_more_failures_are_r7():
    before = as_gateway(served(rate=3.0, n=800, long_share=0.0))
    slow = [
        msgspec.structs.replace(r, e2e_ns=r.e2e_ns * 5, decode_ns=r.e2e_ns * 5 - r.ttft_ns) if i % 50 == 0 else r
        for i, r in enumerate(before)
    ]
    assert "R4" in rules(slow, before=before)
    failed = [
        msgspec.structs.replace(r, outcome="failed", reason="engine_error") if i % 20 == 0 else r
        for i, r in enumerate(before)
    ]
    fired = rules(failed, before=before)
    assert "R7" in fired
    assert "R4" not in fired


def test_both_worse_on_a_full_engine_is_r6():
    before = as_gateway(served(rate=3.0, n=800, long_share=0.0))
    after = as_gateway(served(rate=15.0, n=800, long_share=0.0, num_gpu_blocks=700))
    assert "R6" in rules(after, before=before)
    assert "R6" not in rules(before, before=before)


def test_one_slow_request_among_fast_neighbours_is_r10():
    records = as_gateway(served(rate=4.0, long_share=0.0))
    lonely = [
        msgspec.structs.replace(r, tpot_ns=r.tpot_ns * 6) if i in (100, 300) else r for i, r in enumerate(records)
    ]
    assert "R10" in rules(lonely)
    assert "R10" not in rules(records)


@pytest.mark.parametrize("seed", range(3))
def test_rules_that_fire_are_known_and_ordered(seed):
    fired = rules(as_gateway(served(seed, rate=8.0, **UNCHUNKED)))
    assert set(fired) <= set(RULES)
    assert fired == sorted(fired, key=lambda rule: int(rule[1:]))


def test_a_busy_device_behind_a_queue_and_an_idle_one_before_slow_requests_are_r12():
    queued = as_gateway(served(rate=25.0, long_share=0.0, max_num_seqs=32))
    calm = as_gateway(served(rate=4.0, long_share=0.0))

    def device(records, use):
        readings = gpu(records, lambda _: False)
        return Hardware(gpus=[msgspec.structs.replace(state, utilisation=use) for state in readings.gpus])

    assert "R12" in rules(queued, hardware=device(queued, 0.97))
    assert "R12" in rules(queued, hardware=device(queued, 0.02))
    assert "R12" not in rules(queued, hardware=device(queued, 0.6))
    assert "R12" not in rules(queued)
    assert rules(calm, hardware=device(calm, 1.0)) == []
