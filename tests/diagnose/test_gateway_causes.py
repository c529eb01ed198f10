"""GW_LANE_QUEUE and CLIENT_SLOW_READER: what the gateway did to requests that the engine served well."""

import msgspec
import numpy as np

from tailrace.model.finding import Action, Layer, Level
from tests.diagnose.simulated import answer, as_client, as_gateway, codes, found, served, without_state

LANE = "GW_LANE_QUEUE"
READER = "CLIENT_SLOW_READER"


def held(records, ms, share=0.3, **state):
    """Some requests wait in the gateway before they go to the engine."""
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        wait = int(rng.uniform(0.5, 1.5) * ms * 1e6) if rng.random() < share else 0
        line = record.timeline
        out.append(
            msgspec.structs.replace(
                record,
                queue_ns=record.queue_ns + wait,
                queue_gateway_ns=wait,
                e2e_ns=record.e2e_ns + wait,
                ttft_ns=record.ttft_ns + wait,
                e2e_last_token_ns=record.e2e_last_token_ns + wait,
                timeline=msgspec.structs.replace(line, at_ns=[at + wait for at in line.at_ns]),
                **state,
            )
        )
    return out


def slow_readers(records, ms, share=0.03, factor=1.0):
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        blocked = int(rng.uniform(0.5, 1.5) * ms * 1e6) if rng.random() < share else 0
        out.append(
            msgspec.structs.replace(
                record,
                response_ns=blocked,
                client_blocked_ns=blocked,
                e2e_ns=record.e2e_ns + blocked,
                stage_sources={**record.stage_sources, "response": "measured"},
                chunk_gap_p50_ns=int(record.chunk_gap_p50_ns * (factor if blocked else 1.0)),
            )
        )
    return out


def calm():
    return as_gateway(served(rate=4.0, long_share=0.0))


def test_a_lane_that_holds_back_while_the_engine_has_room():
    result = answer(held(calm(), 2000))
    first = result.findings[0]
    assert (first.code, first.layer, first.level) == (LANE, Layer.GATEWAY, Level.CONSISTENT)
    assert first.stage == "queue.gateway"
    assert "'short'" in first.advice
    assert first.action is Action.TUNE


def test_a_full_engine_behind_the_lane_is_not_the_lanes_fault():
    assert LANE not in codes(answer(held(calm(), 2000, waiting_at_admission=7)))
    assert LANE not in codes(answer(held(calm(), 2000, kv_usage_at_admission=0.95)))


def test_without_the_engines_state_the_lane_is_suspected():
    finding = found(answer(held(without_state(calm()), 2000)), LANE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert len(finding.missing) == 2


def test_a_short_lane_queue_is_not_a_finding():
    assert answer(held(calm(), 20)).findings == []


def test_a_client_cannot_know_the_gateways_lane():
    result = answer(as_client(served(rate=25.0, long_share=0.0, max_num_seqs=32)))
    assert any(need.startswith(LANE) for need in result.needs)
    assert any(need.startswith(READER) for need in result.needs)


def objectives():
    from tailrace.cli.objectives import parse_objectives

    return parse_objectives(["e2e_p99=8s"])


def test_readers_that_do_not_take_their_answers():
    result = answer(slow_readers(calm(), 9000), objectives=objectives())
    first = result.findings[0]
    assert (first.code, first.layer, first.level) == (READER, Layer.GATEWAY, Level.CONSISTENT)
    assert first.stage == "response"
    assert first.action is Action.FIX


def test_an_engine_that_was_slow_for_them_too_is_not_the_readers_fault():
    assert READER not in codes(answer(slow_readers(calm(), 9000, factor=3.0), objectives=objectives()))


def test_without_the_engines_gaps_the_reader_is_suspected():
    records = [msgspec.structs.replace(r, chunk_gap_p50_ns=None, timeline=None) for r in slow_readers(calm(), 9000)]
    finding = found(answer(records, objectives=objectives()), READER)
    assert finding is not None
    assert finding.level is Level.SUSPECTED


def test_readers_with_normal_backpressure_are_not_a_finding():
    assert answer(slow_readers(calm(), 30), objectives=objectives()).findings == []
