"""GW_LANE_QUEUE, GW_SELF_BOTTLENECK, CLIENT_SLOW_READER: what the gateway did to requests that were served well."""

import msgspec
import numpy as np

from tailrace.model.finding import Action, Layer, Level
from tailrace.model.host_state import Role
from tests.diagnose.machines import host
from tests.diagnose.simulated import answer, as_client, as_gateway, codes, found, served, without_state

LANE = "GW_LANE_QUEUE"
SELF = "GW_SELF_BOTTLENECK"
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


def lagging(records, ms, share=0.3, *, lag=1.0, rest_lag_ms=0.3, cpu=0.97):
    """The gateway's loop stands still while some requests wait for their first token; `lag`: the part of it seen."""
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        stood = int(rng.uniform(0.5, 1.5) * ms * 1e6) if rng.random() < share else 0
        line = record.timeline
        out.append(
            msgspec.structs.replace(
                record,
                loop_lag_ns=int(stood * lag) if stood else int(rest_lag_ms * 1e6),
                gateway_overhead_ns=200_000,
                gateway_cpu=cpu,
                unattributed_ns=stood,
                stage_sources={**record.stage_sources, "unattributed": "inferred(remainder)"},
                e2e_ns=record.e2e_ns + stood,
                ttft_ns=record.ttft_ns + stood,
                e2e_last_token_ns=record.e2e_last_token_ns + stood,
                timeline=msgspec.structs.replace(line, at_ns=[at + stood for at in line.at_ns]),
            )
        )
    return out


def slow_readers(records, ms, share=0.03, factor=1.0):
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        blocked = int(rng.uniform(0.5, 1.5) * ms * 1e6) if rng.random() < share else 0
        slower = int(record.decode_ns * (factor - 1.0)) if blocked else 0
        out.append(
            msgspec.structs.replace(
                record,
                response_ns=blocked,
                client_blocked_ns=blocked,
                decode_ns=record.decode_ns + slower,
                e2e_ns=record.e2e_ns + blocked + slower,
                e2e_last_token_ns=record.e2e_last_token_ns + slower,
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


def test_readers_who_came_while_the_engine_was_full_are_compared_with_those_beside_them():
    """More streams in a step make every token slower; the rest of the window, with few, is no measure for them."""
    records = calm()
    third = len(records) // 3
    full = slow_readers(records[:third], 9000, share=0.1)
    full = [
        msgspec.structs.replace(
            r,
            decode_ns=3 * r.decode_ns,
            e2e_ns=r.e2e_ns + 2 * r.decode_ns,
            e2e_last_token_ns=r.e2e_last_token_ns + 2 * r.decode_ns,
            chunk_gap_p50_ns=3 * r.chunk_gap_p50_ns,
        )
        for r in full
    ]
    finding = found(answer([*full, *slow_readers(records[third:], 0)], objectives=objectives()), READER)
    assert finding is not None
    assert any("ran beside them" in item.text for item in finding.evidence)


def test_without_the_engines_gaps_the_reader_is_suspected():
    records = [msgspec.structs.replace(r, chunk_gap_p50_ns=None, timeline=None) for r in slow_readers(calm(), 9000)]
    finding = found(answer(records, objectives=objectives()), READER)
    assert finding is not None
    assert finding.level is Level.SUSPECTED


def test_readers_with_normal_backpressure_are_not_a_finding():
    assert answer(slow_readers(calm(), 30), objectives=objectives()).findings == []


def test_a_gateway_whose_thread_is_full():
    result = answer(lagging(calm(), 800))
    first = result.findings[0]
    assert (first.code, first.layer, first.level) == (SELF, Layer.GATEWAY, Level.CONSISTENT)
    assert "more gateway processes" in first.advice
    assert first.action is Action.FIX
    assert first.explains_ms > 500


def test_a_gateway_that_is_held_up_gets_other_advice():
    first = answer(lagging(calm(), 800, cpu=0.1)).findings[0]
    assert (first.code, first.level) == (SELF, Level.CONSISTENT)
    assert "little CPU" in first.advice


def test_what_the_machine_says_of_it_makes_the_advice_plain():
    records = lagging(calm(), 800, cpu=0.1)
    always = [(0, 2**63)]
    stopped = found(answer(records, hardware=host(records, always, throttled=5, role=Role.GATEWAY)), SELF)
    assert "raise the CPU limit" in stopped.advice
    assert any(item.source == "host:cgroup" for item in stopped.evidence)
    waiting = found(answer(records, hardware=host(records, always, wait=0.4, role=Role.GATEWAY)), SELF)
    assert "cores of its own" in waiting.advice
    assert "others had it" in waiting.advice
    neither = found(answer(records, hardware=host(records, always, wait=0.05, role=Role.GATEWAY)), SELF)
    assert "look for what held it" in neither.advice


def test_overhead_alone_is_enough_where_it_is_a_share_of_the_request():
    records = [
        msgspec.structs.replace(r, loop_lag_ns=1000, gateway_overhead_ns=r.unattributed_ns)
        for r in lagging(calm(), 3000)
    ]
    assert answer(records).findings[0].code == SELF


def test_the_sum_of_a_long_streams_microseconds_is_none():
    records = [
        msgspec.structs.replace(r, loop_lag_ns=1000, gateway_overhead_ns=r.e2e_ns // 20) for r in lagging(calm(), 3000)
    ]
    assert SELF not in codes(answer(records))


def test_a_lag_that_explains_little_of_it_is_not_the_cause():
    assert SELF not in codes(answer(lagging(calm(), 2000, lag=0.08)))


def test_a_short_lag_is_not_a_finding():
    assert answer(lagging(calm(), 20)).findings == []


def test_a_lag_that_those_have_too_who_lost_nothing_is_not_the_cause():
    assert SELF not in codes(answer(lagging(calm(), 400, share=0.03, lag=1.0, rest_lag_ms=400)))


def test_what_is_lost_before_the_gateway_read_the_request_is_its_own_whoever_else_met_the_lag():
    def before_it_was_read(record):
        lost = record.unattributed_ns
        return msgspec.structs.replace(
            record, ingress_ns=lost, unattributed_ns=0, stage_sources={**record.stage_sources, "ingress": "measured"}
        )

    records = lagging(calm(), 800, rest_lag_ms=800)
    assert SELF not in codes(answer(records))
    assert SELF in codes(answer(list(map(before_it_was_read, records))))


def test_without_its_cpu_use_the_gateway_is_suspected():
    finding = found(answer(lagging(calm(), 800, cpu=None)), SELF)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert len(finding.missing) == 1


def test_without_lag_and_overhead_nothing_can_be_said_of_the_gateway():
    records = [msgspec.structs.replace(r, loop_lag_ns=None, gateway_overhead_ns=None) for r in lagging(calm(), 800)]
    result = answer(records)
    assert SELF not in codes(result)
    assert any(need.startswith(SELF) for need in result.needs)
