"""Each condition of a rule alone decides: a real case in which only that one number is moved over its bound."""

import msgspec
import numpy as np
import pytest

from tailrace.analyze.attribution.mix_split import NAMED_SHARE
from tailrace.cli.objectives import parse_objectives
from tailrace.diagnose.causes.mix.mix_shift import MixShift
from tailrace.diagnose.causes.scheduler.hol_long_prefill import HolLongPrefill, waits_behind_prefill
from tailrace.diagnose.causes.scheduler.prefill_steals_decode import PrefillStealsDecode
from tailrace.diagnose.prefill_stalls import prefill_stalls
from tests.diagnose.simulated import UNCHUNKED, answer, as_client, as_gateway, codes, evidence, served
from tests.diagnose.test_before_after_causes import MIX, before, one_lane
from tests.diagnose.test_gateway_causes import LANE, READER, held, slow_readers


def judged(cause, compute, view, changes, **load):
    seen = evidence(view(served(**load)))
    # The window remembers an answer by the function that computes it: every rule that asks gets the moved one.
    seen.now.answers[compute.__wrapped__] = compute(seen.now)._replace(**changes(compute(seen.now)))
    return cause.judge(seen)


STOLEN = {
    "nothing moved": (lambda _: {}, True),
    "two prefills that stall are chance": (lambda _: {"stalling": 2}, False),
    "most stalls lie elsewhere": (lambda _: {"covered_share": 0.3, "chance_share": 0.0}, False),
    "no more stalls in prefills than chance": (lambda _: {"covered_share": 0.6, "chance_share": 0.5}, False),
    "one stream of many stalls": (lambda _: {"streams_hit": 0.1}, False),
    "most prefills stop nobody": (lambda found: {"prefills": 20 * found.stalling}, False),
    "a short chunk of many": (lambda _: {"fill": 0.2, "stall_ms": 200.0}, False),
    "a chunk of half a second": (lambda _: {"fill": 0.2, "stall_ms": 700.0}, True),
    "stalls that cost the tail nothing": (lambda found: {"excess_by_row": 0 * found.excess_by_row}, False),
}


@pytest.mark.parametrize(("changes", "fires"), STOLEN.values(), ids=STOLEN)
def test_prefill_steals_decode(changes, fires):
    finding = judged(PrefillStealsDecode(), prefill_stalls, as_gateway, changes, **UNCHUNKED)
    assert (finding is not None) == fires


def test_prefill_steals_decode_from_a_client_needs_the_proportion():
    def loose(found):
        assert found.relation is not None
        return {"relation": found.relation._replace(error=0.5)}

    def judge(changes):
        return judged(PrefillStealsDecode(), prefill_stalls, as_client, changes, **UNCHUNKED)

    assert judge(lambda _: {}) is not None
    assert judge(loose) is None
    assert judge(lambda _: {"relation": None}) is None


BEHIND = {
    "nothing moved": (lambda _: {}, True),
    "hardly anybody waits": (lambda _: {"waiters": 9}, False),
    "most of the wait lies elsewhere": (lambda _: {"covered_share": 0.4}, False),
    "the wait does not grow with the tokens ahead": (lambda _: {"correlation": 0.2}, False),
    "waits that cost the tail nothing": (lambda found: {"behind_ms": 0 * found.behind_ms}, False),
}


@pytest.mark.parametrize(("changes", "fires"), BEHIND.values(), ids=BEHIND)
def test_hol_long_prefill(changes, fires):
    load = {"rate": 6.0, "max_num_batched_tokens": 512}
    finding = judged(HolLongPrefill(), waits_behind_prefill, as_gateway, changes, **load)
    assert (finding is not None) == fires


SATURATION = "SCHED_QUEUE_SATURATION"


def waited(records, ms, share=0.3):
    """Some requests wait in the engine's queue, on an engine that has room."""
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        wait = int(rng.uniform(0.5, 1.5) * ms * 1e6) if rng.random() < share else 0
        line = record.timeline
        out.append(
            msgspec.structs.replace(
                record,
                queue_ns=record.queue_ns + wait,
                queue_engine_ns=record.queue_engine_ns + wait,
                e2e_ns=record.e2e_ns + wait,
                ttft_ns=record.ttft_ns + wait,
                e2e_last_token_ns=record.e2e_last_token_ns + wait,
                timeline=msgspec.structs.replace(line, at_ns=[at + wait for at in line.at_ns]),
            )
        )
    return out


def test_a_queue_before_an_engine_with_room_is_no_saturation():
    assert SATURATION not in codes(answer(waited(as_gateway(served(rate=4.0, long_share=0.0)), 2000)))


def test_a_full_engine_whose_prefill_is_what_takes_long_is_no_saturation():
    full = as_gateway(served(rate=25.0, long_share=0.0, max_num_seqs=32))
    assert SATURATION in codes(answer(full))
    slow = 20 * max(record.queue_ns for record in full)
    records = [
        msgspec.structs.replace(
            record,
            prefill_ns=record.prefill_ns + slow,
            e2e_ns=record.e2e_ns + slow,
            ttft_ns=record.ttft_ns + slow,
            e2e_last_token_ns=record.e2e_last_token_ns + slow,
            timeline=msgspec.structs.replace(record.timeline, at_ns=[at + slow for at in record.timeline.at_ns]),
        )
        for record in full
    ]
    assert SATURATION not in codes(answer(records))


def test_what_waits_inside_a_long_prefill_is_not_charged_to_a_full_engine():
    # Every waiting request finds the engine at its cap, but where it waits is behind a document.
    records = [
        msgspec.structs.replace(record, running_at_admission=8, waiting_at_admission=1)
        for record in as_gateway(served(rate=6.0, max_num_batched_tokens=512))
    ]
    found = codes(answer(records))
    assert found[0] == "SCHED_HOL_LONG_PREFILL"
    assert SATURATION not in found


def behind_documents():
    """Slow for another reason than lane or reader, on an engine with room."""
    return [
        msgspec.structs.replace(record, waiting_at_admission=0, kv_usage_at_admission=0.1)
        for record in as_gateway(served(rate=6.0, max_num_batched_tokens=512))
    ]


def test_a_lane_that_takes_less_than_half_of_the_first_token_is_not_it():
    assert LANE not in codes(answer(held(behind_documents(), 600)))
    assert LANE in codes(answer(held(behind_documents(), 1000)))


def test_readers_that_take_less_than_a_third_of_the_loss_are_not_it():
    objectives = parse_objectives(["ttft_p99=500ms", "e2e_p99=8s"])
    found = {
        ms: codes(answer(slow_readers(behind_documents(), ms, share=1.0), objectives=objectives)) for ms in (300, 700)
    }
    assert found[300] == ["SCHED_HOL_LONG_PREFILL"]
    assert READER in found[700]


def test_more_documents_on_an_engine_that_also_slowed_down_are_no_mix_shift():
    after = one_lane(as_gateway(served(2, rate=2.0, n=2500, long_share=0.12, speed=0.5)))
    assert MIX not in codes(answer(after, before=before()))


def traffic(long, *, spread, seed):
    """3,000 short requests of about 100 ms TTFT, and `long` ones of 1 s and up to `spread` more."""
    rng = np.random.default_rng(seed)
    base = one_lane(as_gateway(served(1, rate=2.0, n=400, long_share=0.02)))
    rows = [(100, 100 * rng.uniform(0.9, 1.1)) for _ in range(3000)]
    rows += [(6000, 1000 * rng.uniform(1.0, 1.0 + spread)) for _ in range(long)]
    rng.shuffle(rows)
    return [
        msgspec.structs.replace(
            base[number % len(base)],
            request_id=str(number),
            prompt_tokens=int(tokens),
            ttft_ns=round(ttft * 1e6),
            start_unix_ns=1_700_000_000_000_000_000 + number * 100_000_000,
        )
        for number, (tokens, ttft) in enumerate(rows)
    ]


MIXES = {
    "large and certain": ((40, 0.5), (300, 0.5), True),
    "large, but at the edge of 1 % it may be chance": ((30, 0.5), (36, 0.5), False),
    "certain, but a hundredth of the p99": ((300, 0.1), (420, 0.1), False),
}


@pytest.mark.parametrize(("a", "b", "fires"), MIXES.values(), ids=MIXES)
def test_mix_shift_needs_size_and_certainty(a, b, fires):
    seen = evidence(traffic(b[0], spread=b[1], seed=2), before=traffic(a[0], spread=a[1], seed=1))
    split = seen.attributed.split("ttft")
    assert split.mix.value > abs(split.within.value), "size or certainty alone must decide"
    assert ((split.mix.value >= NAMED_SHARE * split.a) + (split.mix.low > 0)) == (2 if fires else 1)
    assert (MixShift()._metric(seen, "ttft") is not None) is fires
