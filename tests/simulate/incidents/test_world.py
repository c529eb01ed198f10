"""A site in virtual time: its account adds up, the same seed gives the same, and without a fault it is the engine."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from tailrace.govern.lane import LanePolicy
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.engine import Engine
from tailrace.simulate.incidents.incident import _run
from tailrace.simulate.incidents.setting import draw_setting, settled
from tailrace.simulate.incidents.site import (
    PATIENT,
    Batcher,
    ClientSide,
    FrontEnd,
    GatewaySide,
    Hop,
    Service,
    Site,
    Wear,
)
from tailrace.simulate.incidents.traffic import Class, Traffic, calls
from tailrace.simulate.incidents.world import World
from tailrace.simulate.incidents.writer import RecordWriter
from tailrace.simulate.knobs import knobs_from
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest

CHAT = Class(name="chat", share=0.9, prompt=300, output=100)
DOCUMENT = Class(name="document", share=0.1, prompt=3000, output=80)
TRAFFIC = Traffic(n=200, rate=5.0, classes=(CHAT, DOCUMENT))


def seen_of(site=None, traffic=TRAFFIC, seed=1):
    return World(site or Site(), traffic, np.random.default_rng(seed)).run()


def records_of(site=None, traffic=TRAFFIC, seed=1):
    site = site or Site()
    seen = seen_of(site, traffic, seed)
    return RecordWriter(site, seen, np.random.default_rng(seed + 1), wall_ns=10**18).records()


def times(records, name):
    return np.array([getattr(record, name) for record in records if getattr(record, name) is not None]) / 1e6


EVERYTHING = Site(
    knobs={"num_gpu_blocks": 1500, "max_num_batched_tokens": 1024},
    replicas=2,
    wear=Wear(compute=0.5, every_s=8.0, for_s=3.0, pause_every_s=5.0, pause_ms=300.0, position_us=0.02, jit_ms=500.0),
    front=FrontEnd(on_loop=True, token_us=20.0, hold_at=20, hold_tokens=15, held_share=0.5),
    service=Service(workers=2, before_ms=30.0, lock_ms=10.0, encode_ms=5.0, after_ms=20.0),
    batcher=Batcher(window_ms=40.0, preferred=4),
    hop=Hop(latency_ms=5.0, jitter_ms=3.0, loss=0.01, hold_share=0.2, hold_ms=800.0, timeout_s=12.0, idle_s=4.0),
    gateway=GatewaySide(
        lanes=(LanePolicy(budgets=PATIENT, running=14, queued=30),),
        pool=5,
        block_every_s=3.0,
        block_ms=200.0,
        retries=1,
        balance="round_robin",
    ),
    client=ClientSide(
        late_share=0.1, late_ms=400.0, slow_share=0.3, slow_bytes_per_s=4000.0, window_bytes=8192, timeout_s=20.0,
        leave_share=0.1, leave_s=2.0, resend=2,
    ),
    fails_share=0.1,
)  # fmt: skip
BUSY = msgspec.structs.replace(TRAFFIC, grammar=0.3, tools=0.3, choices=0.2, sessions=20, shared_tokens=512)


@pytest.mark.parametrize("reach", [True, False])
def test_every_call_leaves_records_that_add_up_whatever_happens(reach):
    site = msgspec.structs.replace(EVERYTHING, cancels_reach=reach)
    records = records_of(site, BUSY)
    assert [text for record in records for text in broken_invariants(record)] == []
    assert len({record.request_id for record in records}) == len(records) >= TRAFFIC.n
    assert len({record.request_id[:16] for record in records}) == TRAFFIC.n
    outcomes = {record.outcome for record in records}
    assert {OutcomeKind.COMPLETED, OutcomeKind.CANCELLED, OutcomeKind.FAILED} <= outcomes


def test_the_same_seed_gives_the_same_records_and_another_gives_others():
    one, two = records_of(EVERYTHING, BUSY), records_of(EVERYTHING, BUSY)
    assert [msgspec.structs.astuple(record) for record in one] == [msgspec.structs.astuple(record) for record in two]
    other = records_of(EVERYTHING, BUSY, seed=2)
    assert [record.e2e_ns for record in one] != [record.e2e_ns for record in other]


def test_records_say_only_what_a_gateway_can_know():
    records = records_of(Site(), BUSY)
    for record in records:
        assert record.vantage == "gateway"
        assert record.engine == "vllm"
        assert record.run_offset_ns is record.intended_to_sent_ns is None
        for stage, origin in record.stage_sources.items():
            assert "simulat" not in origin, stage
    # A scrape tells the batch only where one came between the send and the first token.
    assert any(record.batch_size is None for record in records)
    kept = [record for record in records if record.timeline is not None]
    assert len(kept) < 0.2 * len(records)
    assert all(record.slow or record.keep_reason == "sampled" for record in kept if record.outcome == "completed")
    assert {token for record in kept for token in record.timeline.tokens} <= {-1}


def test_without_wear_the_core_gives_the_engines_own_times():
    site = Site(client=ClientSide(latency_ms=0.0, up_bytes_per_s=1e15), hop=Hop(latency_ms=0.0, jitter_ms=0.0))
    seen = seen_of(site)
    chosen = preset(site.preset)
    engine = Engine(knobs_from(chosen.knobs, {}), chosen.cost())
    handed = {flow.ident: flow for flow in seen.flows}
    order = sorted(handed.values(), key=lambda flow: flow.requests[0].arrival)
    for flow in order:
        request = flow.requests[0]
        engine.submit(SimRequest(flow.ident, request.prompt, request.output, request.arrival, prefix=request.prefix))
    engine.advance()
    assert len(engine.ended) == len(seen.flows)
    for request in engine.ended:
        assert handed[request.label].requests[0].ended_at == request.ended_at
        assert handed[request.label].requests[0].first_at == request.first_at


def test_a_changed_site_meets_the_same_calls():
    calm, worn = seen_of(), seen_of(Site(wear=Wear(compute=0.4, memory=0.4)))
    assert [flow.call for flow in calm.flows] == [flow.call for flow in worn.flows]
    assert [flow.draw for flow in calm.flows] == [flow.draw for flow in worn.flows]
    slower = times(records_of(Site(wear=Wear(compute=0.4, memory=0.4))), "tpot_ns")
    assert np.median(slower) > 1.8 * np.median(times(records_of(), "tpot_ns"))


def test_a_pause_of_the_core_is_in_every_stream_that_runs_and_no_token_falls_into_it():
    site = Site(wear=Wear(hang_at=0.5, hang_s=3.0))
    seen = seen_of(site)
    pairs = [pair for flow in seen.flows for pair in pairwise(flow.delivered.read.tolist())]
    gaps = [(a, b) for a, b in pairs if b - a > 2e9]
    assert len(gaps) >= 3
    assert max(begin for begin, _ in gaps) - min(begin for begin, _ in gaps) < 0.2e9
    begin, end = max(begin for begin, _ in gaps) + 10_000_000, min(end for _, end in gaps) - 10_000_000
    assert not any(begin < stamp < end for flow in seen.flows for stamp in flow.delivered.read.tolist())


def test_a_front_that_stands_still_hands_out_what_the_core_went_on_making():
    site = Site(wear=Wear(pause_every_s=6.0, pause_ms=800.0, pause_in="front"))
    flows = seen_of(site).flows
    assert max(int(flow.chunks.tokens.max()) for flow in flows) > 10
    assert max(int(flow.chunks.tokens.max()) for flow in seen_of().flows) == 1


def test_compiling_happens_once_a_shape():
    site = Site(wear=Wear(jit_ms=2000.0), knobs={"max_num_batched_tokens": 2048})
    starts = seen_of(site).replicas[0].core
    shapes = starts._cost._shapes
    assert 2 <= len(shapes) <= 13
    assert starts._cost.compiled_ps == len(shapes) * 2000 * 1_000_000 * PS_PER_NS


def test_a_cost_that_grows_with_the_position_slows_late_tokens_only():
    long = msgspec.structs.replace(
        TRAFFIC, classes=(Class(name="a", share=1.0, prompt=100, output=900),), n=40, rate=0.5
    )
    plain = seen_of(Site(), long).flows
    grown = seen_of(Site(wear=Wear(position_us=8.0)), long).flows

    def rise(flows):
        gaps = [np.diff(flow.delivered.read) for flow in flows if flow.delivered.read.size > 500]
        return np.median([np.median(one[400:500]) / np.median(one[5:60]) for one in gaps])

    assert rise(grown) > 1.15 * rise(plain)


def test_a_pool_of_connections_makes_requests_wait_in_the_gateway_and_says_so():
    records = records_of(Site(gateway=GatewaySide(pool=4)))
    waited = [record for record in records if record.pool_wait_ns]
    assert len(waited) > 50
    assert all(record.pool_wait_ns <= record.queue_ns for record in waited)
    assert max(record.running_at_admission or 0 for record in records) <= 4


def test_clients_that_time_out_are_cancelled_and_come_again():
    site = Site(client=ClientSide(timeout_s=0.8, resend=1, latency_ms=1.0))
    records = records_of(site)
    left = [record for record in records if record.reason is Reason.CLIENT_DISCONNECT]
    assert len(left) > 20
    assert all(0.7 < record.e2e_ns / 1e9 < 0.85 for record in left)
    assert len(records) > TRAFFIC.n


def test_an_engine_that_is_not_told_goes_on():
    site = Site(client=ClientSide(timeout_s=0.8, latency_ms=1.0), cancels_reach=False)
    deaf, told = seen_of(site), seen_of(msgspec.structs.replace(site, cancels_reach=True))
    assert deaf.replicas[0].engine.counters.generation_tokens > 1.3 * told.replicas[0].engine.counters.generation_tokens


def test_calls_of_one_seed_differ_only_in_what_is_changed():
    plain = calls(TRAFFIC, np.random.default_rng(5))
    with_grammar = calls(msgspec.structs.replace(TRAFFIC, grammar=0.5), np.random.default_rng(5))
    assert [(one.at, one.prompt, one.output) for one in plain] == [
        (one.at, one.prompt, one.output) for one in with_grammar
    ]
    assert sum(one.grammar for one in with_grammar) > 50


def test_windows_of_one_incident_share_their_calls():
    """The twin without the fault meets the same calls: the generator must not remember what it has spawned."""
    seed = np.random.SeedSequence(3).spawn(1)[0]
    setting = settled(draw_setting(np.random.default_rng(1)), longest=200)
    one, two = _run(setting, seed), _run(setting, seed)
    assert [flow.call for flow in one.flows] == [flow.call for flow in two.flows]
    assert [flow.end for flow in one.flows] == [flow.end for flow in two.flows]
