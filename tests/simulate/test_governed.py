"""A governed run: exact against the plain engine, no request lost, no limit or budget broken, whatever the load."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.lane import LaneMatch, LanePolicy, Order
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tailrace.model.thresholds import MS, Budgets, S
from tailrace.simulate.clients import Call, ClientPolicy, backoff_ns
from tailrace.simulate.governed import SWEEP_NS, GovernedRun
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest
from tailrace.simulate.run import VirtualRun
from tailrace.simulate.seat import EngineSeat
from tailrace.simulate.tries import Step

A100 = preset("a100-llama3-8b")
TIGHT = msgspec.structs.replace(A100.knobs, num_gpu_blocks=1200)


def calls_of(seed=1, count=300, rate=8.0, longest=3000, kinds=("a",), streamed=0.8):
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, count) * S).astype(int).tolist()
    return [
        Call(
            name=f"c{i}",
            at_ns=at[i],
            prompt_tokens=int(rng.integers(1, longest)),
            output_tokens=int(rng.integers(1, 200)),
            kind=str(rng.choice(kinds)),
            stream=bool(rng.random() < streamed),
        )
        for i in range(count)
    ]


def seats_of(count=1, knobs=A100.knobs):
    return [EngineSeat(f"sim-{i}", knobs, A100.cost()) for i in range(count)]


def plain(calls, knobs):
    run = VirtualRun(knobs, A100.cost(), keep_timelines="all")
    requests = [SimRequest(c.name, c.prompt_tokens, c.output_tokens, c.at_ns * 1000) for c in calls]
    return {record.request_id: record for record in run.records(requests)}


def test_without_governance_an_engine_does_exactly_what_it_does_alone():
    calls = calls_of(streamed=1.0)
    run = GovernedRun([LanePolicy()], seats_of(knobs=TIGHT), governed=False, keep_timelines="all")
    alone = plain(calls, TIGHT)
    records = list(run.records(calls))
    assert len(records) == 300
    assert sum(record.preemptions for record in records) > 0
    for record in records:
        other = alone[record.request_id]
        assert record.timeline == other.timeline
        assert (record.queue_ns, record.prefill_ns, record.decode_ns) == (
            other.queue_ns, other.prefill_ns, other.decode_ns,
        )  # fmt: skip


def test_engines_beside_each_other_share_the_clock_exactly():
    calls = calls_of(rate=16.0, streamed=1.0)
    seats = seats_of(3)
    turn = {call.name: i % 3 for i, call in enumerate(calls)}
    run = GovernedRun(
        [LanePolicy()],
        seats,
        governed=False,
        keep_timelines="all",
        choose=lambda seats, facts: seats[turn[facts.request_id]],
    )
    records = {record.request_id: record for record in run.records(calls)}
    for i in range(3):
        mine = [call for call in calls if turn[call.name] == i]
        for name, record in plain(mine, A100.knobs).items():
            assert records[name].timeline == record.timeline
            assert records[name].backend == f"sim-{i}"


def test_a_place_that_one_engine_frees_is_taken_at_another_at_once():
    """The other engine may skip over many steps, but never over the moment in which somebody is sent to it."""
    policies = [LanePolicy(running=2, budgets=Budgets(queue_ns=60 * S, first_token_ns=60 * S))]
    calls = [
        Call(name="long", at_ns=0, prompt_tokens=10, output_tokens=2000),
        Call(name="short", at_ns=0, prompt_tokens=10, output_tokens=50),
        Call(name="next", at_ns=1, prompt_tokens=10, output_tokens=5),
    ]
    seats = seats_of(2)
    run = GovernedRun(policies, seats, choose=lambda seats, facts: seats[facts.request_id == "short"])
    records = {record.request_id: record for record in run.records(calls)}
    freed = records["short"].e2e_ns
    # Its prefill begins at the next boundary of the engine that decodes, a step of about 13 ms away at most.
    assert freed <= records["next"].queue_ns + 1 < freed + 15 * MS
    assert records["next"].queue_gateway_ns + 1 == freed


def test_records_say_where_a_request_was_and_why_it_ended():
    policies = [
        LanePolicy(name="docs", match=LaneMatch(min_prompt_tokens=2000), running=1, queued=1),
        LanePolicy(name="chat", running=4, queued=8, budgets=Budgets(queue_ns=500 * MS)),
    ]
    run = GovernedRun(policies, seats_of(), keep_timelines="all")
    records = list(run.records(calls_of(rate=20.0)))
    assert len(records) == 300
    assert {record.lane for record in records} == {"docs", "chat"}
    for record in records:
        assert not broken_invariants(record)
        assert record.lane == ("docs" if record.prompt_tokens >= 2000 else "chat")
    reasons = Counter(record.reason for record in records)
    assert reasons[Reason.QUEUE_FULL] > 10
    assert reasons[Reason.PREDICTED_WAIT] > 10
    late = [record for record in records if record.reason is Reason.QUEUE_TIMEOUT]
    assert late
    for record in late:
        assert record.budget == "queue"
        assert record.queue_gateway_ns == record.e2e_ns


def test_budgets_cut_what_the_engine_holds_and_the_record_says_which():
    budgets = Budgets(queue_ns=S, first_token_ns=300 * MS, total_ns=3 * S, unstreamed_total_ns=2 * S)
    run = GovernedRun([LanePolicy(budgets=budgets)], seats_of(), keep_timelines="all")
    records = list(run.records(calls_of(rate=20.0, longest=6000)))
    cut = {record.budget: record for record in records if record.budget}
    assert set(cut) == {"first_token", "total", "unstreamed_total"}
    for record in records:
        assert not broken_invariants(record)
        if record.budget == "first_token":
            assert record.ttft_ns is None
            assert record.reason is Reason.FIRST_TOKEN_TIMEOUT
        if record.budget.endswith("total"):
            assert record.outcome is OutcomeKind.TIMED_OUT
            limit = 3 * S if record.stream else 2 * S
            assert limit <= record.e2e_ns <= limit + SWEEP_NS
    assert run.seats[0].engine.running == run.seats[0].engine.waiting == 0


def test_a_preempted_stream_is_cut_by_its_idle_budget():
    budgets = Budgets(
        queue_ns=S, first_token_ns=600 * S, idle_ns=100 * MS, total_ns=600 * S, unstreamed_total_ns=600 * S
    )
    few = msgspec.structs.replace(A100.knobs, num_gpu_blocks=400)
    run = GovernedRun([LanePolicy(budgets=budgets)], seats_of(knobs=few))
    records = list(run.records(calls_of(rate=20.0, longest=600, streamed=1.0)))
    idle = [record for record in records if record.reason is Reason.IDLE_TIMEOUT]
    assert idle
    assert all(record.preemptions and record.ttft_ns for record in idle)


def test_clients_leave_and_what_they_asked_for_is_not_computed():
    clients = {"a": ClientPolicy(first_token_ns=200 * MS), "b": ClientPolicy(total_ns=2 * S)}
    run = GovernedRun([LanePolicy(running=8)], seats_of(), clients=clients)
    records = list(run.records(calls_of(rate=20.0, kinds=("a", "b"))))
    left = [record for record in records if record.reason is Reason.CLIENT_DISCONNECT]
    assert {record.died_in for record in left} >= {"queue", "decode"}
    waited = [note for note in run.decisions if note.step is Step.LEAVE]
    assert waited
    sent = {note.request_id for note in run.decisions if note.step in (Step.GRANT, Step.ADMIT)}
    assert not sent & {note.request_id for note in waited}
    assert run.served_calls + run.abandoned_calls == run.calls == 300


def test_a_told_deadline_ends_a_request_in_time():
    run = GovernedRun([LanePolicy(running=4)], seats_of(), clients={"a": ClientPolicy(deadline_ns=700 * MS)})
    records = list(run.records(calls_of(rate=20.0)))
    over = [record for record in records if record.reason is Reason.DEADLINE]
    assert {record.outcome for record in over} == {OutcomeKind.CANCELLED}
    assert {record.died_in for record in over} >= {"queue", "decode"}
    assert max(record.e2e_ns for record in records) <= 700 * MS + SWEEP_NS


def test_clients_that_obey_retry_after_come_back_when_told_and_no_sooner():
    policies = [LanePolicy(running=2, queued=2)]
    clients = {"a": ClientPolicy(retries=3)}
    run = GovernedRun(policies, seats_of(), clients=clients, rng=np.random.default_rng(3))
    records = {record.request_id: record for record in run.records(calls_of(rate=4.0))}
    refused = {refusal.request_id: refusal for refusal in run.refusals}
    again = [record for record in records.values() if record.retries]
    assert again
    for record in again:
        name, _, number = record.request_id.partition(".")
        before = name if number == "1" else f"{name}.{int(number) - 1}"
        if before in refused:
            told = refused[before]
            assert record.run_offset_ns == told.at_ns + told.retry_after_s * S
    assert max(record.retries for record in again) == 3
    assert any(record.outcome is OutcomeKind.COMPLETED for record in again)
    assert run.served_calls + run.abandoned_calls == 300


def test_backoff_is_that_of_the_sdk():
    rng = np.random.default_rng(1)
    obeys, ignores = ClientPolicy(retries=9), ClientPolicy(retries=9, obeys_retry_after=False)
    assert backoff_ns(obeys, 1, 7, rng) == 7 * S
    assert all(0.375 * S <= backoff_ns(ignores, 1, 7, rng) <= 0.5 * S for _ in range(100))
    assert all(6 * S <= backoff_ns(obeys, 9, None, rng) <= 8 * S for _ in range(100))
    # Longer than a minute is no advice.
    assert backoff_ns(obeys, 1, 600, rng) <= S


def test_a_try_again_needs_a_generator():
    run = GovernedRun([LanePolicy(running=1, queued=0)], seats_of(), clients={"a": ClientPolicy(retries=1)})
    with pytest.raises(ValueError, match="random generator"):
        list(run.records(calls_of(count=20)))


def test_the_same_seed_gives_the_same_run():
    def once():
        policies = [LanePolicy(running=3, queued=4)]
        clients = {"a": ClientPolicy(retries=2, obeys_retry_after=False)}
        run = GovernedRun(policies, seats_of(2), clients=clients, rng=np.random.default_rng(3))
        return list(run.records(calls_of(rate=20.0))), run.decisions

    assert once() == once()


lane_st = st.builds(
    LanePolicy,
    name=st.just("default"),
    running=st.integers(1, 6),
    queued=st.integers(0, 10),
    order=st.sampled_from(list(Order)),
    budgets=st.builds(
        Budgets,
        queue_ns=st.integers(1, 3000).map(lambda ms: ms * MS),
        first_token_ns=st.integers(50, 3000).map(lambda ms: ms * MS),
        idle_ns=st.just(S),
        total_ns=st.integers(100, 5000).map(lambda ms: ms * MS),
        unstreamed_total_ns=st.integers(100, 5000).map(lambda ms: ms * MS),
    ),
)
client_st = st.builds(
    ClientPolicy,
    first_token_ns=st.none() | st.integers(1, 2000).map(lambda ms: ms * MS),
    total_ns=st.none() | st.integers(1, 4000).map(lambda ms: ms * MS),
    deadline_ns=st.none() | st.integers(1, 4000).map(lambda ms: ms * MS),
    retries=st.integers(0, 3),
    obeys_retry_after=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(lane_st, lane_st, client_st, st.integers(1, 3), st.integers(0, 1000), st.floats(2.0, 60.0))
def test_nothing_hangs_and_nothing_is_exceeded(docs, rest, client, engines, seed, rate):
    docs = msgspec.structs.replace(docs, name="docs", match=LaneMatch(min_prompt_tokens=1500))
    policies = {"docs": docs, "default": rest}
    run = GovernedRun(
        [docs, rest],
        seats_of(engines, TIGHT),
        clients={"a": client},
        rng=np.random.default_rng(seed),
        keep_timelines="none",
    )
    records = list(run.records(calls_of(seed=seed, count=80, rate=rate)))
    assert run.live == 0
    assert run.served_calls + run.abandoned_calls == 80
    assert len({record.request_id for record in records}) == len(records) == 80 + sum(r.retries > 0 for r in records)
    for seat in run.seats:
        assert not seat.work
        assert seat.tokens == 0
        assert seat.engine.running == seat.engine.waiting == 0
    for name, peak in run.peak_running.items():
        assert peak <= policies[name].running
    for record in records:
        assert not broken_invariants(record)
        budgets = policies[record.lane].budgets
        assert (record.queue_gateway_ns or 0) <= budgets.queue_ns + SWEEP_NS
        assert record.e2e_ns <= (budgets.total_ns if record.stream else budgets.unstreamed_total_ns) + SWEEP_NS
    assert all(refusal.retry_after_s >= 1 for refusal in run.refusals)
