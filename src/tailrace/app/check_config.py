"""A gateway's configuration against itself, its objectives and its engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.app.check_canary import judge_canary
from tailrace.engines.facts import EngineFacts
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.config_values import human
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.errors import ConfigError
from tailrace.model.finding import Evidence
from tailrace.model.thresholds import Objectives

_GUESSES: Final = 2.0


def wrong_config(error: ConfigError, name: str) -> CheckFinding:
    """A file that the gateway refuses, as a finding."""
    return CheckFinding(
        code="CONFIG_REFUSED",
        weight=Weight.ERROR,
        about=name,
        subject=error.place,
        statement=f"The gateway refuses this file: {error.message}.",
        evidence=[Evidence(error.message, name, error.place)],
        advice=error.remedy,
        effect="`tailrace serve -c` starts with it.",
        price="None.",
        verify=f"tailrace check {name}",
    )


def objectives_of(config: Config) -> Objectives:
    """The configuration's own objectives, of all lanes together."""
    return parse_objectives(config.objectives)


def judge_config(config: Config, name: str, engine: EngineFacts | None = None) -> Iterator[CheckFinding]:
    """What a valid configuration does that was hardly meant."""
    yield from _budgets(config, name)
    yield from _limits(config, name, engine)
    yield from judge_canary(config, name)
    if not config.backends:
        yield _finding(
            "CONFIG_NO_BACKEND",
            Weight.WARNING,
            name,
            "backends",
            "No engine is named: the file alone starts nothing, only with `--upstream URL`.",
            advice="backends: [{name: main, url: 'http://127.0.0.1:8000'}]",
            effect="`tailrace serve -c` is enough.",
            price="None.",
        )
    if int(config.slow.gap) > int(config.budgets.idle):
        yield _finding(
            "CONFIG_SLOW_ABOVE_BUDGET",
            Weight.WARNING,
            name,
            "slow.gap",
            "A gap counts as slow only beyond the idle budget, which ends the request first: none is ever reported.",
            advice="slow: {gap: 150ms}",
            effect="Stalls are seen before they end requests.",
            price="None.",
        )


def _finding(
    code: str,
    weight: Weight,
    name: str,
    subject: str,
    statement: str,
    *,
    advice: str = "",
    effect: str = "",
    price: str = "",
) -> CheckFinding:
    return CheckFinding(
        code=code,
        weight=weight,
        about=name,
        subject=subject,
        statement=statement,
        evidence=[Evidence(subject, name, subject)],
        advice=advice,
        effect=effect,
        price=price,
        verify=f"tailrace check {name}" if advice else "",
    )


def _budgets(config: Config, name: str) -> Iterator[CheckFinding]:
    budgets = config.budgets
    for key, value in sorted(config.objectives.items()):
        limit_key, limit = ("first_token", budgets.first_token) if key.startswith("ttft") else ("total", budgets.total)
        if key.startswith(("ttft", "e2e")) and int(limit) < int(value):
            yield _finding(
                "CONFIG_BUDGET_BELOW_OBJECTIVE",
                Weight.WARNING,
                name,
                f"budgets.{limit_key}",
                f"The budget ends a request after {human(limit)}, and the objective {key} allows {human(value)}: "
                "requests die that would have met it.",
                advice=f"budgets: {{{limit_key}: {human(type(value)(int(int(value) * _GUESSES)))}}}",
                effect="Only requests beyond the objective are ended.",
                price="A hopeless request holds its place longer.",
            )
    if int(budgets.first_token) > int(budgets.total) or int(budgets.idle) > int(budgets.total):
        yield _finding(
            "CONFIG_BUDGET_ORDER",
            Weight.WARNING,
            name,
            "budgets.total",
            f"The total budget ({human(budgets.total)}) is shorter than a part of it: first_token "
            f"{human(budgets.first_token)}, idle {human(budgets.idle)}. The parts never end anything.",
            advice="A total above first_token, for example 120s.",
            effect="A timeout names the stage that took too long.",
            price="None.",
        )


def _limits(config: Config, name: str, engine: EngineFacts | None) -> Iterator[CheckFinding]:
    lanes = config.lane_policies()
    running = config.total_running or sum(lane.running for lane in lanes)
    seqs = (engine.number("max_num_seqs") or engine.number("slots")) if engine is not None else None
    if engine is None or seqs is None:
        return
    source = next((fact.source for key in ("max_num_seqs", "slots") if (fact := engine.get(key)) is not None), "")
    evidence = [
        Evidence(f"{running} running over all lanes", f"{name}: lanes", "running", float(running)),
        Evidence(f"the engine runs {seqs:.0f}", source, "max_num_seqs", seqs),
    ]
    if running > seqs * 1.5:
        yield CheckFinding(
            code="CONFIG_LANES_ABOVE_ENGINE",
            weight=Weight.WARNING,
            about=name,
            subject="lanes: running",
            statement=f"The lanes let {running} requests through at once, and the engine runs {seqs:.0f}: the rest "
            "waits inside the engine, where nobody orders, bounds or cancels it.",
            evidence=evidence,
            advice=f"total_running: {int(seqs)}",
            effect="The line stands in the gateway: short requests first, 429 when it is full, cancelled ones cost "
            "nothing.",
            price="None for throughput as long as the engine stays full.",
            verify=f"tailrace check {name}",
        )
    elif running < seqs / 2:
        yield CheckFinding(
            code="CONFIG_LANES_BELOW_ENGINE",
            weight=Weight.ADVICE,
            about=name,
            subject="lanes: running",
            statement=f"The lanes let {running} requests through at once, and the engine would run {seqs:.0f}.",
            evidence=evidence,
            advice=f"Raise `running` step by step towards {int(seqs)} while p99 stays within the objectives.",
            effect="Less queueing in the gateway, more throughput.",
            price="Larger batches: more time per output token.",
            verify="tailrace bench through the gateway before and after; tailrace compare",
        )
