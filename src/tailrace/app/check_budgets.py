"""Budgets against the objectives that they serve and the clients that wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.gateway.config import Config
from tailrace.gateway.config_sections import BudgetsConfig
from tailrace.gateway.config_values import Duration, human
from tailrace.govern.objectives import objective_name
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

FAR: Final = 20.0
"""A budget this many times its objective waits for requests that have failed their users long before. The defaults
stand at 4 (queue) and 10 (first token) times."""
_SUGGESTED: Final = 10.0


def judge_budgets(config: Config, name: str, client_timeout_ns: int | None = None) -> Iterator[CheckFinding]:
    """Budgets of every lane. `client_timeout_ns`: how long the clients wait for the next byte, where that is known."""
    seen: set[tuple[str, int]] = set()
    for place, budgets, objectives in _lanes(config):
        for key, bound in objectives.items():
            parsed = objective_name(key)
            if parsed is None:
                continue
            for budget in {"ttft": ("queue", "first_token"), "e2e": ("total", "unstreamed_total")}.get(parsed[0], ()):
                length = int(getattr(budgets, budget))
                if length > FAR * int(bound) and (place + budget, length) not in seen:
                    seen.add((place + budget, length))
                    yield _far(name, f"{place}budgets.{budget}", length, key, int(bound))
        if client_timeout_ns is not None:
            yield from _beyond_client(name, place, budgets, client_timeout_ns)
    ladder = config.degradation
    watched = [lane for lane in config.lane_policies() if lane.priority <= 0] if ladder.lanes is None else ladder.lanes
    if ladder.enabled and not watched:
        yield _finding(
            "CONFIG_LADDER_BLIND",
            name,
            "degradation.lanes",
            "The ladder watches no lane: all are of low priority. Only the engine's own signals can move it.",
            advice="degradation: {lanes: [NAME]}",
            effect="Waits and first tokens of that lane take rungs.",
            price="None.",
        )


def _lanes(config: Config) -> Iterator[tuple[str, BudgetsConfig, dict[str, Duration]]]:
    yield "", config.budgets, config.objectives
    for index, lane in enumerate(config.lanes):
        if lane.budgets is not None or lane.objectives is not None:
            objectives = config.objectives if lane.objectives is None else lane.objectives
            yield f"lanes[{index}].", lane.budgets or config.budgets, objectives


def _far(name: str, subject: str, length: int, objective: str, bound: int) -> CheckFinding:
    budget = subject.rpartition(".")[2]
    return _finding(
        "CONFIG_BUDGET_FAR_ABOVE_OBJECTIVE",
        name,
        subject,
        f"The budget ends a request after {human(length)}, and the objective {objective} is {human(bound)}: a request "
        f"that has missed it holds its place for up to {length / bound:.0f} times as long.",
        advice=f"budgets: {{{budget}: {human(int(bound * _SUGGESTED))}}}",
        effect="Under overload, places go to requests that can still meet the objective.",
        price="Requests between the two lengths fail instead of being late.",
    )


def _beyond_client(name: str, place: str, budgets: BudgetsConfig, timeout_ns: int) -> Iterator[CheckFinding]:
    """Each stretch in which a client sees nothing of us: it gives up, and we go on, or say why to nobody."""
    until_first = int(budgets.queue) + int(budgets.first_token)
    stretches = (
        ("first_token", until_first, "queue and first_token together"),
        ("idle", int(budgets.idle), "idle"),
        ("unstreamed_total", int(budgets.unstreamed_total), "unstreamed_total"),
    )
    for budget, length, said in stretches:
        if length >= timeout_ns:
            yield _finding(
                "CONFIG_BUDGET_BEYOND_CLIENT",
                name,
                f"{place}budgets.{budget}",
                f"The clients give up after {human(timeout_ns)} without a byte, and the gateway after "
                f"{human(length)} ({said}): they never read why, and their retry meets the first try still at work.",
                advice=f"Budgets below the clients' timeout, or a client timeout above {human(length)}.",
                effect="A late request ends with its stage and budget, and a Retry-After where one helps.",
                price="None.",
            )


def _finding(
    code: str, name: str, subject: str, statement: str, *, advice: str, effect: str, price: str
) -> CheckFinding:
    return CheckFinding(
        code=code,
        weight=Weight.WARNING,
        about=name,
        subject=subject,
        statement=statement,
        evidence=[Evidence(subject, name, subject)],
        advice=advice,
        effect=effect,
        price=price,
        verify=f"tailrace check {name}",
    )
