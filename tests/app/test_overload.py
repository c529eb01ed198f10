"""Overload in virtual time: what the example's lanes promise at twice the load that the engine sustains."""

from __future__ import annotations

import functools

import msgspec
import pytest
from bench.govern.scene import CHAT, CONFIG, SUSTAINABLE, Measured, calls, keeps_up, lanes, measure, play

from tailrace.analyze.bench_summary import met_objectives
from tailrace.app.governed_simulation import lane_objectives
from tailrace.govern.adaptive_limit import AdaptiveLimitPolicy
from tailrace.govern.lane import LaneMatch, LanePolicy
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tailrace.model.thresholds import MS, Budgets, Objectives, S
from tailrace.simulate.clients import Call, ClientPolicy
from tailrace.simulate.governed import SWEEP_NS
from tailrace.simulate.search import best_of_grid
from tailrace.store.table import RecordTable

OBJECTIVE_MS = 500.0
HALF, TWICE = SUSTAINABLE / 2, SUSTAINABLE * 2


@functools.cache
def governed(rate: float) -> Measured:
    return measure(rate)


def without(policy: str, seconds: float) -> Measured:
    return measure(TWICE, seconds=seconds, governed=False, policy=policy)


def test_the_load_is_what_it_is_called():
    """15 requests a second are what the engine keeps up with, and chat alone is a third of what twice that would be."""
    assert keeps_up(0.9 * SUSTAINABLE, seconds=300)
    assert not keeps_up(1.2 * SUSTAINABLE, seconds=300)
    chat = 0.9 * TWICE
    assert keeps_up(chat / 0.6, seconds=60, mix=CHAT), "interactive alone is more than 60 % of capacity"


def test_interactive_requests_keep_their_first_token_at_twice_the_sustainable_load():
    half, twice = governed(HALF), governed(TWICE)
    assert twice.run.calls > 17_000
    assert twice.ttft_p99_ms <= OBJECTIVE_MS
    assert twice.ttft_p99_ms <= 1.3 * half.ttft_p99_ms
    interactive = twice.lanes["interactive"]
    assert interactive.completed == interactive.n
    assert interactive.tpot_p99_ms <= 80
    # And at half of it nearly nobody is refused: the lanes cost little where there is room.
    assert half.refusals.n <= 0.05 * half.lanes["document"].n


def test_every_refusal_says_when_to_come_back_and_is_about_right():
    refusals = governed(TWICE).refusals
    assert refusals.n > 1000
    assert refusals.with_retry_after == refusals.n
    assert refusals.judged > 0.9 * refusals.n
    assert refusals.median_error < 0.3
    for refusal in governed(TWICE).run.refusals:
        assert refusal.http_status == 429
        if refusal.predicted_wait_ns is not None:
            assert refusal.retry_after_s >= refusal.predicted_wait_ns / S


def test_nobody_waits_beyond_a_budget_and_nothing_hangs():
    twice = governed(TWICE)
    budgets = {policy.name: policy.budgets for policy in lanes()}
    assert twice.run.live == 0
    assert twice.run.served_calls + twice.run.abandoned_calls == twice.run.calls == len(twice.records)
    assert twice.run.seats[0].engine.running == twice.run.seats[0].engine.waiting == 0
    for record in twice.records:
        assert (record.queue_gateway_ns or 0) <= budgets[record.lane].queue_ns + SWEEP_NS
        assert record.e2e_ns <= budgets[record.lane].total_ns + SWEEP_NS
    assert not any(broken_invariants(record) for record in twice.records[::50])
    for policy in lanes():
        assert twice.run.peak_running.get(policy.name, 0) <= policy.running


def test_the_same_load_without_governance_serves_nobody_in_time():
    """Beside it: the engine alone, first come first served, and with its own priority scheduling."""
    beside(180)


@pytest.mark.tier("ci")
@pytest.mark.long("ten simulated minutes of a queue that only grows", timeout=120)
def test_nor_does_it_over_ten_minutes():
    beside(600)


def beside(seconds: float) -> None:
    twice, fcfs, priority = measure(TWICE, seconds=seconds), without("fcfs", seconds), without("priority", seconds)
    assert len({measured.run.calls for measured in (twice, fcfs, priority)}) == 1
    assert fcfs.ttft_p99_ms > 100 * OBJECTIVE_MS
    # Priority helps those that come first in its order, within what a batch full of documents leaves them.
    assert 2 * OBJECTIVE_MS < priority.ttft_p99_ms < 0.1 * fcfs.ttft_p99_ms
    assert fcfs.goodput < 0.1 * twice.goodput
    assert priority.goodput < 0.1 * twice.goodput


def static(point: tuple[int, ...], seconds: float) -> Measured:
    """Lanes with nothing but fixed running limits: documents at work, chat at work."""
    documents, chat = point
    return measure(
        TWICE,
        seconds=seconds,
        policies=[
            msgspec.structs.replace(
                policy, running=documents if policy.name == "document" else chat, prefill_requests=None
            )
            for policy in lanes()
        ],
    )


DOCUMENTS, CHATS = (1, 4, 8, 16), (16, 64, 200)


def test_goodput_is_near_the_best_that_static_lanes_reach():
    """A search over the limits of both lanes, on one simulated minute; the long version below takes all ten."""
    best = best_of_grid(lambda point: static(point, 60).goodput, (DOCUMENTS, CHATS))
    assert len(best.tried) >= 6
    assert measure(TWICE, seconds=60).goodput >= 0.9 * best.value
    assert best.value > 1.5 * min(best.tried.values())


@pytest.mark.tier("ci")
@pytest.mark.long("a search over ten simulated minutes a point", timeout=400)
def test_goodput_is_near_the_best_over_ten_minutes():
    best = best_of_grid(lambda point: static(point, 600).goodput, (DOCUMENTS, CHATS), starts=((4, 64), (16, 16)))
    assert governed(TWICE).goodput >= 0.9 * best.value


def test_the_promise_does_not_hang_on_a_seed():
    ratios, errors = [], []
    for seed in (1, 2, 3):
        half, twice = measure(HALF, seconds=300, seed=seed), measure(TWICE, seconds=120, seed=seed)
        assert twice.ttft_p99_ms <= OBJECTIVE_MS
        ratios.append(twice.ttft_p99_ms / half.ttft_p99_ms)
        errors.append(twice.refusals.median_error)
    # Two minutes are few for a p99, and the wait is still being learnt in them: the promise is about the middle one.
    assert sorted(ratios)[1] <= 1.3
    assert sorted(errors)[1] < 0.3


def test_clients_that_come_back_when_told_are_served_in_the_end():
    """Documents at the sustainable rate in bursts: those that obey Retry-After get in; those that do not ask more."""
    obeying = measure(1.2 * SUSTAINABLE, seconds=120, client=ClientPolicy(retries=6))
    hasty = measure(1.2 * SUSTAINABLE, seconds=120, client=ClientPolicy(retries=6, obeys_retry_after=False))
    assert obeying.run.served_calls >= hasty.run.served_calls
    assert len(obeying.records) < len(hasty.records)
    # Coming back does not hurt those who need not.
    assert obeying.ttft_p99_ms <= OBJECTIVE_MS


def test_a_burst_of_forty_at_four_and_four():
    policy = msgspec.structs.replace(lanes()[1], match=LaneMatch(), running=4, queued=4, prefill_requests=None)
    burst = [msgspec.structs.replace(call, at_ns=0) for call in calls(40, 30)[:40]]
    measured = play(burst, seconds=1, policies=[policy])
    kinds = [record.outcome for record in measured.records]
    assert kinds.count(OutcomeKind.COMPLETED) == 8
    refused = [record for record in measured.records if record.reason is Reason.QUEUE_FULL]
    assert len(refused) == 32
    assert all(record.e2e_ns < 50 * MS for record in refused)
    assert measured.run.peak_running == {policy.name: 4}
    assert all(refusal.retry_after_s >= 1 for refusal in measured.run.refusals)


ALTERNATE_S = 30


def alternating(seconds: int) -> list[Call]:
    """Chat that would need a large batch, then documents that a small one serves in time: by turns."""
    out = []
    for turn in range(seconds // ALTERNATE_S):
        mix, rate = ((CHAT, 110.0), ("long", 3.0))[turn % 2]
        start = turn * ALTERNATE_S * S
        out += [
            msgspec.structs.replace(call, name=f"{turn}-{call.name}", at_ns=call.at_ns + start)
            for call in calls(rate, ALTERNATE_S, mix=mix, seed=5 + turn)
        ]
    return out


def one_lane(running: int, adaptive: AdaptiveLimitPolicy | None = None) -> list[LanePolicy]:
    return [
        LanePolicy(
            name="interactive",
            running=running,
            queued=2000,
            budgets=Budgets(queue_ns=5 * S, first_token_ns=30 * S),
            objectives=Objectives(bounds={"ttft": {0.99: 8 * S}, "tpot": {0.99: 50 * MS}}),
            adaptive=adaptive,
        )
    ]


def test_an_adaptive_limit_does_better_than_any_fixed_one_where_the_work_changes():
    seconds = 120
    asked = alternating(seconds)
    fixed = {running: play(asked, seconds=seconds, policies=one_lane(running)).goodput for running in (32, 128, 200)}
    policy = AdaptiveLimitPolicy(minimum=1, maximum=256, start=32, tpot_ns=50 * MS)
    adaptive = play(asked, seconds=seconds, policies=one_lane(256, policy))
    assert adaptive.goodput > max(fixed.values())
    # The fixed limit matters: one that is too small for chat costs a quarter.
    assert max(fixed.values()) > 1.25 * fixed[32]


def test_who_met_the_objectives_is_judged_as_a_load_test_judges_it():
    """Two readings of the same records: the lanes' figures here, the columns of a table there."""
    measured = measure(SUSTAINABLE, seconds=60)
    table = RecordTable.from_records(measured.records)
    met = met_objectives(table, lane_objectives(lanes()))
    assert 0 < met.sum() < len(table)
    assert met.sum() == pytest.approx(60 * measured.goodput)


def test_the_page_shows_the_lanes_that_were_measured():
    page = (CONFIG.parents[2] / "docs" / "overload.md").read_text()
    shown = CONFIG.read_text()
    assert shown[shown.index("objectives:") :] in page
