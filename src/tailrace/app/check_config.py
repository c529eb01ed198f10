"""A gateway's configuration against itself, its objectives and its engine."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.app.check_budgets import judge_budgets
from tailrace.app.check_cache import judge_cache
from tailrace.app.check_canary import judge_canary
from tailrace.app.check_ladder import judge_ladder
from tailrace.app.check_lanes import judge_lanes
from tailrace.app.check_never import judge_never
from tailrace.app.check_retries import Retries, judge_retries
from tailrace.app.check_sharing import judge_sharing
from tailrace.app.config_finding import config_finding
from tailrace.engines.facts import EngineFacts
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.plain_yaml import YamlLines
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.errors import ConfigError
from tailrace.model.finding import Evidence
from tailrace.model.thresholds import Objectives


def wrong_config(error: ConfigError, name: str, lines: YamlLines | None = None) -> CheckFinding:
    """A file that the gateway refuses, as a finding."""
    path = error.place.rpartition(": ")[2]
    return CheckFinding(
        line=None if lines is None else lines.at(path),
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


def judge_config(
    config: Config, name: str, engine: EngineFacts | None = None, *, client_timeout_ns: int | None = None
) -> Iterator[CheckFinding]:
    """What a valid configuration does that was hardly meant.

    `client_timeout_ns`: how long clients wait for a byte; without it, as long as the OpenAI SDK does by default.
    """
    yield from judge_lanes(config, name)
    yield from judge_never(config, name)
    yield from judge_sharing(config, name)
    yield from judge_budgets(config, name, client_timeout_ns)
    yield from judge_cache(config, name)
    yield from judge_ladder(config, name)
    retry: Retries | None = getattr(config, "retry", None)  # only where several engines can be asked
    if retry is not None:
        yield from judge_retries(retry, config.budgets, name)
    yield from _limits(config, name, engine)
    yield from judge_canary(config, name)
    if not config.backends:
        yield config_finding(
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
        yield config_finding(
            "CONFIG_SLOW_ABOVE_BUDGET",
            Weight.WARNING,
            name,
            "slow.gap",
            "A gap counts as slow only beyond the idle budget, which ends the request first: none is ever reported.",
            advice="slow: {gap: 150ms}",
            effect="Stalls are seen before they end requests.",
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
