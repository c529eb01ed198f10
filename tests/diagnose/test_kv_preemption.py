import msgspec

from tailrace.model.engine_state import EngineState
from tailrace.model.finding import Level
from tests.diagnose.simulated import answer, as_gateway, codes, found, served, without_state

CODE = "SCHED_KV_PREEMPTION"
FULL = {"rate": 15.0, "long_share": 0.0, "num_gpu_blocks": 700}


def test_preemptions_of_a_small_cache():
    result = answer(as_gateway(served(**FULL)))
    first = result.findings[0]
    assert (first.code, first.level) == (CODE, Level.CONSISTENT)
    assert "preemptions per 100 requests" in first.relation
    assert "max_num_seqs" in first.advice
    # The queue is there too, and its rival is named.
    queue = found(result, "SCHED_QUEUE_SATURATION")
    assert queue is None or queue.rivals == [CODE]


def test_the_counter_of_two_scrapes_is_enough():
    states = [
        EngineState(
            at_ns=0, preemptions_total=100.0, kv_usage=0.9, names={"preemptions_total": "vllm:num_preemptions"}
        ),
        EngineState(
            at_ns=9, preemptions_total=450.0, kv_usage=0.99, names={"preemptions_total": "vllm:num_preemptions"}
        ),
    ]
    finding = found(answer(without_state(as_gateway(served(**FULL))), states=states), CODE)
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert any("350 preemptions" in item.text for item in finding.evidence)
    assert any(item.source == "metric:vllm:num_preemptions" for item in finding.evidence)


def test_usage_without_the_counter_is_only_suspected():
    records = [msgspec.structs.replace(r, preemptions=None) for r in as_gateway(served(**FULL))]
    finding = found(answer(records), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert finding.missing == ["the preemption counter (two scrapes of /metrics)"]


def test_a_large_cache_under_the_same_load_is_not_it():
    assert CODE not in codes(answer(as_gateway(served(rate=15.0, long_share=0.0))))


def test_a_full_cache_that_preempts_nobody_is_not_it():
    records = [msgspec.structs.replace(r, preemptions=0) for r in as_gateway(served(**FULL))]
    assert CODE not in codes(answer(records))


def test_without_any_signal_it_cannot_run():
    result = answer(without_state(as_gateway(served(**FULL))))
    assert CODE not in codes(result)
    assert any(need.startswith(f"{CODE}: the engine's preemption counter") for need in result.needs)


def test_a_cache_that_is_nearly_full_is_not_it_without_the_counter():
    records = [
        msgspec.structs.replace(r, preemptions=None, kv_usage_at_admission=0.9, kv_usage_at_first_token=0.9)
        for r in as_gateway(served(**FULL))
    ]
    assert CODE not in codes(answer(records))


def test_preemptions_that_cost_the_tail_nothing_are_not_it():
    records = as_gateway(served(rate=4.0, long_share=0.0))
    assert CODE not in codes(answer([msgspec.structs.replace(r, preemptions=1) for r in records]))
