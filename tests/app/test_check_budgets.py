"""Budgets against objectives and clients: what is flagged, where, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.app.check_budgets import judge_budgets
from tailrace.gateway.config import config_from
from tailrace.model.thresholds import S


def found(client_timeout_ns: int | None = None, **keys: Any) -> list[tuple[str, str]]:
    config = config_from({"backends": [{"url": "http://127.0.0.1:8000"}], **keys})
    findings = list(judge_budgets(config, "t.yaml", client_timeout_ns))
    for one in findings:
        assert one.advice
        assert one.effect
        assert one.price
        assert one.verify == "tailrace check t.yaml"
    return [(one.code.removeprefix("CONFIG_"), one.subject) for one in findings]


def test_the_defaults_are_not_flagged() -> None:
    assert found() == []
    assert found(client_timeout_ns=600 * S) == []  # the OpenAI SDK's own timeout


@pytest.mark.parametrize("budget", ["queue", "first_token"])
def test_a_wait_far_above_the_objective(budget: str) -> None:
    assert found(budgets={budget: "10s"}) == []
    assert found(budgets={budget: "10001ms"}) == [("BUDGET_FAR_ABOVE_OBJECTIVE", f"budgets.{budget}")]
    assert found(budgets={budget: "30s"}, objectives={"ttft_p99": "2s"}) == []


def test_a_total_far_above_its_objective() -> None:
    flagged = found(objectives={"e2e_p99": "5s"}, budgets={"unstreamed_total": "20s"})
    assert flagged == [("BUDGET_FAR_ABOVE_OBJECTIVE", "budgets.total")]


def test_a_lane_has_its_own() -> None:
    lanes = [{"name": "a", "objectives": {"ttft_p99": "100ms"}}, {"name": "b", "budgets": {"first_token": "60s"}}]
    assert found(lanes=lanes) == [
        ("BUDGET_FAR_ABOVE_OBJECTIVE", "lanes[0].budgets.first_token"),
        ("BUDGET_FAR_ABOVE_OBJECTIVE", "lanes[1].budgets.first_token"),
    ]


def test_clients_that_give_up_before_the_gateway_says_why() -> None:
    assert found(client_timeout_ns=5 * S) == [
        ("BUDGET_BEYOND_CLIENT", "budgets.first_token"),  # 2 s in the queue and 5 s for the token
        ("BUDGET_BEYOND_CLIENT", "budgets.unstreamed_total"),
    ]
    assert found(client_timeout_ns=1 * S)[1] == ("BUDGET_BEYOND_CLIENT", "budgets.idle")
    fitting = {"queue": "1s", "first_token": "3500ms", "idle": "2s", "unstreamed_total": "4s"}
    assert found(client_timeout_ns=5 * S, budgets=fitting) == []


def test_a_ladder_that_sees_no_requests() -> None:
    low = [{"name": "default", "priority": "low"}]
    assert found(lanes=low, degradation={"enabled": True}) == [("LADDER_BLIND", "degradation.lanes")]
    assert found(lanes=low, degradation={"enabled": True, "lanes": ["default"]}) == []
    assert found(lanes=low) == []
