"""A simulated load behind the gateway's own governor: lanes from a gateway's configuration, engines as models."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path

import msgspec
import numpy as np

from tailrace.gateway.config import Config, load_config
from tailrace.govern.admission import Admission
from tailrace.govern.engine_room import EngineRoomPolicy
from tailrace.govern.engine_rooms import EngineRooms
from tailrace.govern.lane import LanePolicy
from tailrace.govern.sharing import Sharing
from tailrace.model.errors import InputError
from tailrace.model.thresholds import Objectives, S
from tailrace.simulate.clients import Call, ClientPolicy, calls_from_plan, calls_from_trace
from tailrace.simulate.cost import StepCost
from tailrace.simulate.governed import GovernedRun
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.records import Keep
from tailrace.simulate.run import MOONCAKE_BLOCK_TOKENS
from tailrace.simulate.seat import EngineSeat
from tailrace.workload.arrivals import ArrivalKind
from tailrace.workload.plan import Workload, generators, plan

_CLIENT_PHASE = 2
"""Randomness of clients, apart from that of the workload (phase 0) and a probe's warm-up (phase 1)."""


class Governance(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the engines, and how the clients behave."""

    policies: list[LanePolicy]
    governed: bool = True
    """False: the same load without a gateway; lanes then only sort the results."""
    engines: tuple[str, ...] = ("simulated",)
    """The names of the engines, by which lanes choose among them."""
    total_running: int | None = None
    sharing: Sharing | None = None
    room: EngineRoomPolicy | None = None
    """A limit that follows the engines' own state."""
    scrape_ns: int = S
    """How often that state is read."""
    client: ClientPolicy = ClientPolicy()
    max_tokens: int | None = None
    """What every request allows, where clients say so; the governor cannot know how long an answer will be."""


def governance_from(path: str | Path) -> tuple[Governance, Config]:
    """Lanes, budgets and objectives of a gateway's configuration, and one engine for each of its backends.

    Raises `ConfigError` as the gateway does.
    """
    config = load_config(path)
    room = config.engine_room
    governance = Governance(
        policies=config.lane_policies(),
        engines=tuple(backend.name for backend in config.backends),
        total_running=config.total_running,
        sharing=config.governor(),
        room=None if room is None else room.resolve(),
        scrape_ns=int(config.scrape.period),
    )
    return governance, config


def with_engines(governance: Governance, count: int) -> Governance:
    """The same before `count` engines. Those beyond the configuration's backends get names of their own."""
    names = [*governance.engines, *(f"more-{number + 1}" for number in range(count))]
    return msgspec.structs.replace(governance, engines=tuple(names[:count]))


def lane_objectives(policies: list[LanePolicy]) -> Objectives:
    """The objectives of every lane as a run file states them: `lane/metric`."""
    return Objectives(
        bounds={
            f"{policy.name}/{metric}": bounds
            for policy in policies
            for metric, bounds in policy.objectives.bounds.items()
        }
    )


def governed_run(
    governance: Governance, knobs: EngineKnobs, cost: StepCost, *, model: str, backend: str, unix_ns: int, seed: int,
    keep_timelines: Keep, keep_decisions: bool = False,
) -> GovernedRun:  # fmt: skip
    """The gateway and its engines, ready to run."""
    named = [backend] if len(governance.engines) == 1 else governance.engines
    rooms = None if governance.room is None else EngineRooms(governance.room, named)
    return GovernedRun(
        governance.policies,
        [EngineSeat(name, knobs, cost) for name in named],
        admission=Admission(
            governance.policies, total_running=governance.total_running, sharing=governance.sharing, rooms=rooms
        ),
        scrape_ns=0 if rooms is None else governance.scrape_ns,
        governed=governance.governed,
        client=governance.client,
        rng=np.random.default_rng(np.random.SeedSequence([seed, _CLIENT_PHASE])),
        model=model,
        unix_ns=unix_ns,
        keep_timelines=keep_timelines,
        keep_decisions=keep_decisions,
    )


def calls_of(
    workload: Workload,
    *,
    seed: int,
    requests: int | None,
    duration_ns: int | None,
    max_model_len: int,
    max_tokens: int | None = None,
) -> Iterator[Call]:
    """The calls of an open-loop workload. Raises `InputError` for one that is none, or that never ends."""
    if workload.arrivals.kind is ArrivalKind.CLOSED:
        raise InputError("a simulation needs arrivals", place="--rate", remedy="Give --rate 5, or --trace FILE.")
    calls: Iterator[Call]
    if workload.arrivals.kind is ArrivalKind.TRACE:
        calls = calls_from_trace(workload.trace, prefix_tokens=MOONCAKE_BLOCK_TOKENS)
    else:
        if requests is None and duration_ns is None:
            raise InputError("the workload never ends", place="--requests", remedy="Give --requests or --duration.")
        drawn = plan(workload, generators(seed))
        calls = calls_from_plan(drawn, max_model_len=max_model_len, max_tokens=max_tokens)
    if requests is not None:
        calls = islice(calls, requests)
    if duration_ns is not None:
        calls = takewhile(lambda call: call.at_ns < duration_ns, calls)
    return calls
