"""Liveness from progress, and preemption from its signs."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.liveness import Liveness
from tailrace.engines.odometer import Reading
from tailrace.engines.preemption import PreemptionWatch
from tailrace.model.thresholds import S


def reading(at_s: float, running: int | None = 1, waiting: int = 0, tokens: float | None = 0, **more: float) -> Reading:
    counters = {} if tokens is None else {"generation_tokens": {"": tokens}}
    counters.update({noun: {"": value} for noun, value in more.items() if noun != "kv"})
    names = dict.fromkeys(counters, "vllm:generation_tokens_total")
    return Reading(round(at_s * S), counters, {}, {}, names, running=running, waiting=waiting, kv_usage=more.get("kv"))


def test_health_200_but_frozen() -> None:
    """A worker stood still for 4.3 s while `/health` said 200: running 1, tokens constant at 7472."""
    liveness = Liveness(after_ns=4 * S)
    assert liveness.look(reading(0, tokens=7000)) is None
    assert liveness.look(reading(1, tokens=7472)) is None
    assert liveness.look(reading(2, tokens=7472)) is None
    still = liveness.look(reading(5.3, tokens=7472))
    assert still is not None
    assert "runs 1 requests and has computed nothing for 4.3 s" in still.text
    assert liveness.look(reading(6, tokens=7473)) is None, "it went on"
    assert liveness.frozen is None


def test_prompts_and_steps_are_progress_too() -> None:
    liveness = Liveness(after_ns=2 * S)
    for second in range(10):
        assert liveness.look(reading(second, tokens=5, steps=second)) is None
    for second in range(10, 20):
        assert liveness.look(reading(second, tokens=5, steps=9, prompt_tokens=second)) is None


def test_an_engine_without_work_or_without_counts_is_not_frozen() -> None:
    liveness = Liveness(after_ns=2 * S)
    for second in range(10):
        assert liveness.look(reading(second, running=0)) is None
    assert liveness.look(reading(10)) is None, "it has only just begun"
    assert liveness.look(reading(12)) is not None
    for second in range(20, 30):
        assert liveness.look(reading(second, running=None)) is None
        assert liveness.look(reading(second, tokens=None)) is None


def test_one_long_answer_of_an_engine_that_counts_at_the_end_is_no_stand_still() -> None:
    """SGLang adds a request's tokens when it ends; its KV usage and its running tokens move meanwhile."""
    liveness = Liveness(after_ns=2 * S)
    for second in range(10):
        told = reading(second, tokens=5)
        told = msgspec.structs.replace(told, names={"generation_tokens": "sglang:generation_tokens_total"})
        assert liveness.look(told) is None, "no counter that moves with every step: nobody can say"
    names = {"computed_tokens": "sglang:realtime_tokens_total"}
    for second in range(10, 20):
        told = reading(second, tokens=5, kv=second / 100)
        assert liveness.look(msgspec.structs.replace(told, names=names)) is None
    assert liveness.look(msgspec.structs.replace(reading(30, tokens=5, kv=0.19), names=names)) is not None


def test_requests_that_wait_while_none_runs() -> None:
    liveness = Liveness(after_ns=2 * S)
    liveness.look(reading(0, running=0, waiting=3))
    still = liveness.look(reading(3, running=0, waiting=3))
    assert still is not None
    assert "3 requests wait" in still.text


def test_an_engine_that_does_not_answer_its_metrics_either() -> None:
    """A stopped llama.cpp answers nothing: its metrics come from the loop that computes."""
    liveness = Liveness(after_ns=4 * S)
    assert liveness.late(100 * S) is None, "never seen with work"
    liveness.look(reading(0, running=2, tokens=5))
    assert liveness.late(2 * S) is None, "one late answer is a long step"
    still = liveness.late(5 * S)
    assert still is not None
    assert still.text == "the engine had 2 requests and has not answered its metrics for 5.0 s"
    assert liveness.frozen is None, "silence is no proof"
    assert liveness.look(reading(6, running=2, tokens=6)) is None
    assert liveness.silent is None
    liveness.look(reading(7, running=0, tokens=6))
    assert liveness.late(60 * S) is None, "it had nothing to do"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)), max_size=40))
def test_frozen_means_work_without_progress_for_so_long(told: list[tuple[int, int, int]]) -> None:
    liveness = Liveness(after_ns=3 * S)
    at, tokens, history = 0, 0, []
    for pause, running, moved in told:
        at += pause
        tokens += moved
        history.append((at, running, tokens))
        frozen = liveness.look(reading(at, running=running, tokens=tokens))
        since = at
        for then, had, seen in reversed(history):
            if had != running or seen != tokens:
                break
            since = then
        assert (frozen is not None) == (running > 0 and at - since >= 3)


def test_preemption_wait_attributed() -> None:
    """Four of eight preempted: the counter stays at 0 while they wait, and jumps to 4 when they resume."""
    watch = PreemptionWatch()
    assert not watch.look(reading(0, 8, 0, kv=0.7, preemptions=0)).suspected
    sign = watch.look(reading(1, 4, 4, kv=0.98, preemptions=0))
    assert sign.suspected
    assert sign.counted == 0
    assert sign.text == "preemption is suspected: 4 requests wait with others running and 98% of the KV cache in use"
    assert watch.look(reading(2, 4, 4, kv=0.97, preemptions=0)).since_ns == S
    sign = watch.look(reading(3, 8, 0, kv=0.9, preemptions=4))
    assert (sign.counted, sign.suspected, sign.text) == (4, False, "4 requests were preempted")
    assert watch.look(reading(4, 8, 0, kv=0.5, preemptions=4)).text == ""


def test_a_waiting_line_with_room_is_no_preemption() -> None:
    watch = PreemptionWatch()
    assert not watch.look(reading(0, 8, 5, kv=0.4, preemptions=0)).suspected
    assert not watch.look(reading(1, 8, 5, preemptions=0)).suspected, "no usage, no suspicion"
    assert not watch.look(reading(2, 0, 5, kv=0.99)).suspected, "nobody runs who could have been preferred"
    assert watch.look(reading(3, 4, 5, kv=0.99)).counted is None, "this engine counts none"
