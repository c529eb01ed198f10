from __future__ import annotations

import json

import pytest

from tailrace.gateway.refusal import budget_refusal, error_body, lane_refusal
from tailrace.govern.admission import Decision, DecisionKind
from tailrace.govern.lane import LanePolicy
from tailrace.govern.wait_model import WaitPrediction
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Budgets, S

POLICY = LanePolicy(name="documents", running=4, queued=8, queued_tokens=9000, budgets=Budgets(queue_ns=2 * S))


def refused(reason: Reason, wait_ns: int | None, **more) -> Decision:
    predicted = None if wait_ns is None else WaitPrediction(wait_ns, wait_ns // 2, wait_ns * 2)
    return Decision(
        kind=DecisionKind.REFUSE,
        lane="documents",
        position=9,
        predicted_wait_ns=wait_ns,
        predicted=predicted,
        reason=reason,
        http_status=429,
        retry_after_s=1 if predicted is None else predicted.retry_after_s,
        **more,
    )


@pytest.mark.parametrize(
    ("reason", "wait_ns", "words"),
    [
        (Reason.QUEUE_FULL, 1500 * MS, "4 requests are running and 8 are waiting"),
        (Reason.TOKEN_BACKLOG, 1500 * MS, "9000 tokens"),
        (Reason.PREDICTED_WAIT, 3400 * MS, "3.4 s is longer than its queue budget of 2 s"),
        # The wait is within the lane's budget: it is the client's own deadline that it does not fit.
        (Reason.PREDICTED_WAIT, 1500 * MS, "the request's own deadline"),
    ],
)
def test_the_sentence_says_what_is_in_the_way_and_the_facts_when_to_come_back(reason, wait_ns, words):
    refusal = lane_refusal(refused(reason, wait_ns), POLICY)
    error = json.loads(error_body("/v1/chat/completions", refusal))["error"]
    assert words in error["message"]
    assert (error["code"], error["lane"], error["position"]) == (reason.value, "documents", 9)
    assert error["predicted_wait_ms"] == wait_ns / MS
    assert error["predicted_wait_range_ms"] == [wait_ns / MS / 2, wait_ns / MS * 2]
    assert error["retry_after_s"] == -(-wait_ns // S)


def test_what_is_not_known_is_null_and_has_no_range():
    error = json.loads(error_body("/v1/chat/completions", lane_refusal(refused(Reason.QUEUE_FULL, None), POLICY)))
    assert error["error"]["predicted_wait_ms"] is None
    assert "predicted_wait_range_ms" not in error["error"]
    assert error["error"]["retry_after_s"] == 1


def test_one_whose_queue_budget_is_over_is_told_how_long_the_queue_is_now():
    refusal = budget_refusal(Reason.QUEUE_TIMEOUT, "over", "queue", "documents", 2300 * MS)
    error = json.loads(error_body("/v1/messages", refusal))["error"]
    assert (refusal.status, error["predicted_wait_ms"], error["retry_after_s"]) == (429, 2300.0, 3)
    assert "position" not in error
