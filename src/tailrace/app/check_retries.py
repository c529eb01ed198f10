"""Retries against the budgets that they must fit into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tailrace.app.config_finding import config_finding
from tailrace.gateway.config_sections import BudgetsConfig
from tailrace.gateway.config_values import human
from tailrace.model.check import CheckFinding, Weight


class Retries(Protocol):
    """When a request is sent again; times in ns."""

    @property
    def attempts(self) -> int:
        """Of one request, the first included."""

    @property
    def backoff(self) -> int:
        """The longest first wait; it doubles."""

    @property
    def backoff_max(self) -> int:
        """The longest of all."""

    @property
    def wait_max(self) -> int:
        """The longest `Retry-After` that is waited for."""

    @property
    def budget(self) -> float:
        """Retries as a share of the requests."""

    @property
    def reserve(self) -> int:
        """Retries in any case."""


def judge_retries(retry: Retries, budgets: BudgetsConfig, name: str, place: str = "retry") -> Iterator[CheckFinding]:
    """What of them can never happen within the budgets. `place`: the path of the section in the file."""
    if retry.attempts <= 1:
        return
    if retry.budget == 0 and retry.reserve == 0:
        yield config_finding(
            "CONFIG_RETRIES_NEVER",
            Weight.WARNING,
            name,
            f"{place}.attempts",
            f"A request may have {retry.attempts} attempts, and no retry is ever granted: budget and reserve are 0.",
            advice="budget: 0.1, or attempts: 1",
            effect="The file says what happens.",
            price="None.",
        )
        return
    waits = sum(min(int(retry.backoff) << at, int(retry.backoff_max)) for at in range(retry.attempts - 1))
    longest = retry.attempts * int(budgets.first_token) + waits
    if longest > int(budgets.total):
        fit = max(1, (int(budgets.total) + int(retry.backoff)) // (int(budgets.first_token) + int(retry.backoff)))
        yield config_finding(
            "CONFIG_RETRIES_BEYOND_BUDGET",
            Weight.WARNING,
            name,
            f"{place}.attempts",
            f"{retry.attempts} attempts of {human(budgets.first_token)} each for a first token, with the waits between "
            f"them, take up to {human(longest)}, and the total budget ends the request after {human(budgets.total)}: "
            "the last of them begin only to be cut.",
            advice=f"attempts: {fit}, or a first_token budget of {human(int(budgets.total) // (2 * retry.attempts))}",
            effect="An attempt that is made can come to its end.",
            price="Fewer attempts, or less patience with each.",
        )
    shortest_key, shortest = min(
        (("unstreamed_total", int(budgets.unstreamed_total)), ("total", int(budgets.total))), key=lambda pair: pair[1]
    )
    for key, wait in (("backoff_max", int(retry.backoff_max)), ("wait_max", int(retry.wait_max))):
        if wait >= shortest:
            yield config_finding(
                "CONFIG_RETRY_WAIT_BEYOND_BUDGET",
                Weight.WARNING,
                name,
                f"{place}.{key}",
                f"A retry may be waited for for {human(wait)}, and the {shortest_key} budget ends the request after "
                f"{human(shortest)}: it dies waiting.",
                advice=f"{key}: {human(min(shortest // 10, 2_000_000_000))}",
                effect="A request that cannot be retried in time is answered at once, with its Retry-After.",
                price="None.",
            )
