"""Budgets against objectives, against one another, and against the patience of clients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tailrace.app.config_finding import config_finding
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.config_sections import BudgetsConfig
from tailrace.gateway.config_values import Duration, human
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.thresholds import S

SDK_TIMEOUT_NS: Final = 600 * S
"""How long the OpenAI SDK waits by default: for the next byte of a stream, for the first of a whole answer."""
_GUESSES: Final = 2.0
_FAR: Final = 20
"""A budget so many times the objective ends nothing before everybody has given up; the defaults stand at 10."""


def judge_budgets(config: Config, name: str, client_timeout_ns: int | None) -> Iterator[CheckFinding]:
    """The file's own budgets, and those of every lane that has some."""
    yield from _judge(config.budgets, config.objectives, "", name, client_timeout_ns)
    yield from _objectives(config.objectives, "objectives", name)
    for index, lane in enumerate(config.lanes):
        place = f"lanes[{index}]."
        if lane.objectives:
            yield from _objectives(lane.objectives, f"{place}objectives", name)
        if lane.budgets is not None:
            yield from _judge(lane.budgets, lane.objectives or config.objectives, place, name, client_timeout_ns)
        elif lane.objectives:
            # Held by the file's budgets: only what these two say of each other is new.
            yield from _against_objectives(config.budgets, lane.objectives, "", name, of=f" of lane {lane.name!r}")


def _judge(
    budgets: BudgetsConfig, objectives: dict[str, Duration], place: str, name: str, client_timeout_ns: int | None
) -> Iterator[CheckFinding]:
    yield from _against_objectives(budgets, objectives, place, name)
    yield from _order(budgets, place, name)
    yield from _against_clients(budgets, place, name, client_timeout_ns)


def _against_objectives(
    budgets: BudgetsConfig, objectives: dict[str, Duration], place: str, name: str, *, of: str = ""
) -> Iterator[CheckFinding]:
    for key, value in sorted(objectives.items()):
        limit_key, limit = ("first_token", budgets.first_token) if key.startswith("ttft") else ("total", budgets.total)
        if not key.startswith(("ttft", "e2e")):
            continue
        if int(limit) < int(value):
            yield config_finding(
                "CONFIG_BUDGET_BELOW_OBJECTIVE",
                Weight.WARNING,
                name,
                f"{place}budgets.{limit_key}",
                f"The budget ends a request after {human(limit)}, and the objective {key}{of} allows {human(value)}: "
                "requests die that would have met it.",
                advice=f"budgets: {{{limit_key}: {human(int(int(value) * _GUESSES))}}}",
                effect="Only requests beyond the objective are ended.",
                price="A hopeless request holds its place longer.",
            )
        elif int(limit) > int(value) * _FAR:
            yield config_finding(
                "CONFIG_BUDGET_FAR_ABOVE_OBJECTIVE",
                Weight.ADVICE,
                name,
                f"{place}budgets.{limit_key}",
                f"The budget ends a request after {human(limit)}, {int(limit) / int(value):.0f} times what the "
                f"objective {key}{of} allows ({human(value)}): a hopeless request holds its place long after its "
                "client has given up.",
                advice=f"budgets: {{{limit_key}: {human(int(value) * 10)}}}",
                effect="Hopeless requests make room sooner, and their clients hear of it.",
                price="A request that would have come through very late is ended.",
            )


def _order(budgets: BudgetsConfig, place: str, name: str) -> Iterator[CheckFinding]:
    parts = {"queue": budgets.queue, "first_token": budgets.first_token, "idle": budgets.idle}
    longer = [f"{key} {human(value)}" for key, value in parts.items() if int(value) > int(budgets.total)]
    if longer:
        yield config_finding(
            "CONFIG_BUDGET_ORDER",
            Weight.WARNING,
            name,
            f"{place}budgets.total",
            f"The total budget ({human(budgets.total)}) is shorter than a part of it: {', '.join(longer)}. "
            "The parts never end anything.",
            advice=f"budgets: {{total: {human(2 * sum(int(value) for value in parts.values()))}}}, or shorter parts",
            effect="A timeout names the stage that took too long.",
            price="None.",
        )


def _against_clients(
    budgets: BudgetsConfig, place: str, name: str, client_timeout_ns: int | None
) -> Iterator[CheckFinding]:
    """A client's timeout runs until the next byte, so each budget that can be all silence is held against it."""
    patience = SDK_TIMEOUT_NS if client_timeout_ns is None else client_timeout_ns
    whose = "the OpenAI SDK's default" if client_timeout_ns is None else "--client-timeout"
    first = int(budgets.queue) + int(budgets.first_token)
    silences = [
        ("unstreamed_total", int(budgets.unstreamed_total), "A whole answer may take"),
        ("first_token", first, "With its time in the queue, the first token of a stream may take"),
        ("idle", int(budgets.idle), "Between two tokens a stream may be silent for"),
    ]
    for key, length, what in silences:
        if length > patience:
            yield config_finding(
                "CONFIG_BUDGET_BEYOND_CLIENT",
                Weight.WARNING,
                name,
                f"{place}budgets.{key}",
                f"{what} {human(length)}, and clients wait for {human(patience)} ({whose}): they leave, and most ask "
                "again, before the gateway says what is wrong and when to come back.",
                advice=f"A budget below {human(patience)}, or clients that wait longer.",
                effect="Clients get an answer with a reason and a Retry-After, and retries do not pile up.",
                price="Requests end that a more patient client would have had.",
            )


def _objectives(objectives: dict[str, Duration], place: str, name: str) -> Iterator[CheckFinding]:
    for metric, bounds in parse_objectives(objectives).bounds.items():
        ordered = sorted(bounds.items())
        for (low, of_low), (high, of_high) in pairwise(ordered):
            if of_low > of_high:
                low_key, high_key = (_key(objectives, metric, of) for of in (of_low, of_high))
                yield config_finding(
                    "CONFIG_OBJECTIVES_ORDER",
                    Weight.WARNING,
                    name,
                    f"{place}.{low_key}",
                    f"{low_key} allows {human(of_low)} and {high_key} {human(of_high)}: a quantile of {low:g} is never "
                    f"above one of {high:g}, so {low_key} says nothing.",
                    advice=f"{low_key}: a value below {human(of_high)}",
                    effect="Both objectives are judged.",
                    price="None.",
                )


def _key(objectives: dict[str, Duration], metric: str, value: int) -> str:
    return next(key for key, bound in objectives.items() if key.startswith(metric) and int(bound) == value)
