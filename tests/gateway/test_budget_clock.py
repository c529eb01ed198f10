"""Which budget is over when, without a socket or a clock."""

from __future__ import annotations

import pytest

from tailrace.gateway.budget_clock import NEVER, BudgetClock
from tailrace.gateway.verdict import Phase
from tailrace.measure.dialects import dialect_for
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import Budgets, S

BUDGETS = Budgets(queue_ns=2 * S, first_token_ns=5 * S, idle_ns=2 * S, total_ns=120 * S, unstreamed_total_ns=30 * S)
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


def streaming(*, sent_at: int | None = 1 * S) -> BudgetClock:
    clock = BudgetClock(0, BUDGETS)
    clock.streamed = True
    clock.sent_at = sent_at
    return clock


def meter_at(*stamps: int) -> StreamMeter:
    meter = StreamMeter(dialect_for("/v1/chat/completions"), origin_ns=0)
    for stamp in stamps:
        meter.feed(TOKEN, stamp)
    return meter


def reason(
    clock: BudgetClock, phase: Phase, now: int, meter: StreamMeter | None = None, *, blocked: bool = False
) -> str:
    over = clock.over(phase, meter, now, blocked=blocked)
    return "" if over is None else over.budget


def test_the_first_token_budget_counts_from_the_send() -> None:
    clock = streaming()
    assert reason(clock, Phase.WAITING, 6 * S - 1) == ""
    assert reason(clock, Phase.WAITING, 6 * S) == "first_token"
    assert clock.next_check(Phase.WAITING, None, NEVER) == 6 * S


def test_the_idle_budget_counts_from_the_last_token_and_not_while_the_client_blocks() -> None:
    clock, meter = streaming(), meter_at(2 * S, 3 * S)
    assert reason(clock, Phase.STREAMING, 5 * S - 1, meter) == ""
    assert reason(clock, Phase.STREAMING, 5 * S, meter) == "idle"
    assert reason(clock, Phase.STREAMING, 5 * S, meter, blocked=True) == ""
    clock.unblocked_at = 4 * S
    assert reason(clock, Phase.STREAMING, 5 * S, meter) == ""
    assert reason(clock, Phase.STREAMING, 6 * S, meter) == "idle"


def test_an_answer_in_one_piece_has_a_total_of_its_own() -> None:
    clock = BudgetClock(0, BUDGETS)
    assert reason(clock, Phase.WAITING, 30 * S) == "unstreamed_total"
    clock.timed_only = True
    assert reason(clock, Phase.WAITING, 30 * S) == ""
    assert reason(clock, Phase.WAITING, 120 * S) == "total"


def test_a_deadline_only_shortens() -> None:
    clock = streaming(sent_at=None)
    clock.deadline_at = 1 * S
    assert clock.total_at() == 1 * S
    assert reason(clock, Phase.QUEUED, 1 * S) == "deadline"
    assert clock.queue_over(1 * S).reason is Reason.DEADLINE
    assert clock.length_ns("deadline") == 1 * S
    clock.deadline_at = 500 * S
    assert clock.total_at() == 120 * S
    assert clock.queue_over(3 * S).reason is Reason.QUEUE_TIMEOUT


@pytest.mark.parametrize("hold", [NEVER, 1 * S])
def test_the_hold_of_the_head_is_looked_at_in_time(hold: int) -> None:
    assert streaming().next_check(Phase.WAITING, None, hold) == min(hold, 6 * S)
