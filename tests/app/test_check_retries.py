from __future__ import annotations

from typing import NamedTuple

import pytest

from tailrace.app.check_retries import judge_retries
from tailrace.gateway.config_sections import BudgetsConfig
from tailrace.gateway.config_values import Duration
from tailrace.model.thresholds import MS, S


class Retry(NamedTuple):
    attempts: int = 3
    backoff: int = 50 * MS
    backoff_max: int = 2 * S
    wait_max: int = 2 * S
    budget: float = 0.1
    reserve: int = 3


def found(retry: Retry, **budgets: int) -> dict[str, str]:
    held = BudgetsConfig(**{key: Duration(value) for key, value in budgets.items()})
    return {one.code: one.subject for one in judge_retries(retry, held, "t.yaml")}


def test_the_defaults_fit_into_the_default_budgets():
    assert found(Retry()) == {}


@pytest.mark.parametrize(
    ("retry", "budgets", "code", "subject", "near"),
    [
        # 3 attempts of 5 s, and waits of 50 and 100 ms
        (Retry(), {"total": 15 * S}, "CONFIG_RETRIES_BEYOND_BUDGET", "retry.attempts", {"total": 15 * S + 150 * MS}),
        (Retry(wait_max=30 * S), {}, "CONFIG_RETRY_WAIT_BEYOND_BUDGET", "retry.wait_max", {"unstreamed_total": 31 * S}),
        (
            Retry(backoff_max=4 * S),
            {"unstreamed_total": 4 * S},
            "CONFIG_RETRY_WAIT_BEYOND_BUDGET",
            "retry.backoff_max",
            {"unstreamed_total": 5 * S},
        ),
    ],
)
def test_each_rule_and_its_near_miss(retry, budgets, code, subject, near):
    assert found(retry, **budgets) == {code: subject}
    assert found(retry, **near) == {}


def test_retries_that_nothing_grants():
    assert found(Retry(budget=0.0, reserve=0)) == {"CONFIG_RETRIES_NEVER": "retry.attempts"}
    assert found(Retry(budget=0.0, reserve=1)) == {}
    assert found(Retry(attempts=1, budget=0.0, reserve=0, wait_max=99 * S)) == {}
