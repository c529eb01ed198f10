"""Which budget is over when, without a socket or a clock."""

from __future__ import annotations

import pytest

from tailrace.gateway.budget_clock import NEVER, BudgetClock, Overrun
from tailrace.gateway.verdict import Phase
from tailrace.govern.stream_guard import GapAction, StreamGuard, StreamWatch
from tailrace.measure.dialects import dialect_for
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import OutcomeKind, Reason
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


def test_a_lane_may_demand_more_of_a_stream_than_not_to_be_idle() -> None:
    told: list[tuple[int, int]] = []
    guard = StreamGuard(gap_ns=S // 2, gap_action=GapAction.ABORT, tokens_per_s=2.0, window_ns=4 * S)
    clock, meter = streaming(), meter_at(2 * S)
    clock.watch = StreamWatch(guard, lambda gap, at: told.append((gap, at)))
    assert clock.next_check(Phase.STREAMING, meter, NEVER) == 2 * S + S // 2
    assert reason(clock, Phase.STREAMING, 2 * S + S // 2 - 1, meter) == ""
    assert reason(clock, Phase.STREAMING, 2 * S + S // 2, meter) == "gap"
    assert told == [(S // 2, 2 * S + S // 2)]
    over = clock.over(Phase.STREAMING, meter_at(2 * S, 3 * S), 6 * S, blocked=False)
    assert over is not None
    assert over.budget == "idle"  # the budget comes first


def test_a_breach_says_what_was_demanded() -> None:
    clock = streaming()
    clock.watch = StreamWatch(StreamGuard(gap_ns=S // 2, tokens_per_s=2.0, window_ns=4 * S), lambda _gap, _at: None)
    gap = Overrun(OutcomeKind.TIMED_OUT, Reason.GAP_LIMIT, "gap")
    pace = Overrun(OutcomeKind.TIMED_OUT, Reason.SLOW_STREAM, "pace")
    assert clock.sentence(gap, "decode") == "the gap budget of 0.5 s is over in stage decode"
    assert clock.sentence(pace, "decode") == (
        "the stream brought fewer than the 2 tokens/s over 4 s that its lane demands, in stage decode"
    )


def test_once_all_text_is_out_nothing_more_is_demanded() -> None:
    clock, meter = streaming(), meter_at(2 * S)
    clock.watch = StreamWatch(StreamGuard(gap_ns=S // 2, gap_action=GapAction.ABORT), lambda _gap, _at: None)
    meter.feed(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', 2 * S)
    assert reason(clock, Phase.STREAMING, 3 * S, meter) == ""


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
