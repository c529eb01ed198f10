"""MIX_SHIFT and DECODE_SLOWDOWN: what changed between two windows."""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.causes.compute.decode_slowdown import DecodeSlowdown
from tailrace.model.finding import Action, Layer, Level
from tests.diagnose.simulated import answer, as_gateway, codes, evidence, found, served, without_state

MIX = "MIX_SHIFT"
SLOW = "DECODE_SLOWDOWN"


def one_lane(records):
    return [msgspec.structs.replace(r, lane="default") for r in records]


def before():
    return one_lane(as_gateway(served(1, rate=2.0, n=2500, long_share=0.02)))


def test_more_documents_are_a_mix_shift():
    after = one_lane(as_gateway(served(2, rate=2.0, n=2500, long_share=0.12)))
    result = answer(after, before=before())
    finding = found(result, MIX)
    assert finding is not None
    assert (finding.layer, finding.level) == (Layer.MIX, Level.CONSISTENT)
    assert "the mix explains +" in finding.statement
    assert "prompts of 4096 to 8192 tokens" in " ".join(item.text for item in finding.evidence)
    assert SLOW not in codes(result)


def test_the_same_traffic_served_slower_is_not_a_mix_shift():
    after = one_lane(as_gateway(served(2, rate=2.0, n=2500, long_share=0.02, speed=0.5)))
    assert MIX not in codes(answer(after, before=before()))


def test_another_seed_of_the_same_traffic_is_nothing():
    after = one_lane(as_gateway(served(3, rate=2.0, n=2500, long_share=0.02)))
    result = answer(after, before=before())
    assert result.findings == []
    assert result.action is Action.NONE


def test_without_prompt_lengths_lanes_are_all_that_is_known():
    def blind(records):
        return [msgspec.structs.replace(r, prompt_tokens=None, prompt_bytes=None) for r in records]

    lanes = as_gateway(served(1, rate=2.0, n=2500, long_share=0.02))
    more = as_gateway(served(2, rate=2.0, n=2500, long_share=0.12))
    finding = found(answer(blind(more), before=blind(lanes)), MIX)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert finding.missing == ["prompt lengths (only lanes are known)"]


def test_without_a_window_from_before_neither_can_run():
    result = answer(as_gateway(served(rate=25.0, long_share=0.0, max_num_seqs=32)))
    for code in (MIX, SLOW):
        assert f"{code}: a window from before (--before FILE)" in result.needs


def steady(speed=1.0, seed=1, rate=2.0):
    return as_gateway(served(seed, rate=rate, n=800, long_share=0.0, speed=speed))


def equal_batch(records, running=4):
    return [msgspec.structs.replace(r, running_at_first_token=running, running_at_admission=running) for r in records]


def test_every_token_slower_at_an_equal_batch():
    result = answer(equal_batch(steady(0.7)), before=equal_batch(steady()))
    finding = found(result, SLOW)
    assert finding is not None
    assert (finding.layer, finding.level, finding.action) == (Layer.COMPUTE, Level.CONSISTENT, Action.FIX)
    assert "tokens" in finding.relation
    # Excess a token x its tokens, of the very requests of the tail: they are what it explains.
    assert result.tail.by_finding[SLOW] > 0.8 * result.tail.lost_ms
    tokens = evidence(steady(0.7)).now
    pace = next(item.value for item in finding.evidence if item.name == "pace_ms")
    mean = float(tokens.done.column("output_tokens")[tokens.tail].mean())
    assert result.tail.by_finding[SLOW] == pytest.approx(0.3 * pace * mean, rel=0.35)


def test_a_new_version_says_roll_back():
    old = [msgspec.structs.replace(r, engine_version="0.9.1") for r in equal_batch(steady())]
    new = [msgspec.structs.replace(r, engine_version="0.9.2") for r in equal_batch(steady(0.7))]
    finding = found(answer(new, before=old), SLOW)
    assert finding is not None
    assert finding.action is Action.ROLLBACK


def test_a_larger_batch_is_not_a_slower_accelerator():
    # The near miss: the same GPU with three times the batch gives every token more time, too.
    slow = equal_batch(steady(0.7), running=12)
    assert SLOW not in codes(answer(slow, before=equal_batch(steady())))


def test_five_percent_are_not_a_slowdown():
    # Asked of the rule itself: so small a change is no symptom, and no rule would be asked.
    def judge(speed):
        return DecodeSlowdown().judge(evidence(equal_batch(steady(speed)), before=equal_batch(steady())))

    assert judge(0.95) is None
    assert judge(0.85) is not None


def test_one_slower_length_is_not_a_slower_accelerator():
    def with_long(records):
        return [
            msgspec.structs.replace(r, prompt_tokens=r.prompt_tokens + 2000 * (i % 2)) for i, r in enumerate(records)
        ]

    old = with_long(equal_batch(steady()))
    slower = [
        msgspec.structs.replace(
            r, chunk_gap_p50_ns=round(r.chunk_gap_p50_ns * (1.4 if r.prompt_tokens > 2000 else 1.0))
        )
        for r in old
    ]
    assert DecodeSlowdown().judge(evidence(slower, before=old)) is None


@pytest.mark.parametrize(("spread", "fires"), [(0.05, True), (1.2, False)])
def test_a_slowdown_that_may_be_chance_is_none(spread, fires):
    """80 requests a window, slower by a tenth and more in every bucket: whether it is so depends on their spread."""
    steady_batch = equal_batch(steady())[:80]

    def window(factor, seed):
        draws = np.random.default_rng(seed).lognormal(0.0, spread, len(steady_batch)) * factor
        return [
            msgspec.structs.replace(record, chunk_gap_p50_ns=round(record.chunk_gap_p50_ns * draw))
            for record, draw in zip(steady_batch, draws, strict=True)
        ]

    seen = evidence(window(1.4, 52), before=window(1.0, 2))
    assert (DecodeSlowdown().judge(seen) is not None) is fires


def test_without_the_batch_it_is_only_suspected():
    finding = found(answer(without_state(steady(0.7)), before=without_state(steady())), SLOW)
    assert finding is not None
    assert finding.level is Level.SUSPECTED


def test_the_same_accelerator_is_not_slower():
    assert SLOW not in codes(answer(steady(seed=2), before=steady()))
