"""What lanes share: limits that never hold, weights without effect, callers that nobody is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.app.config_finding import config_finding
from tailrace.gateway.config import Config
from tailrace.gateway.config_sections import LaneConfig
from tailrace.gateway.config_values import human
from tailrace.model.check import CheckFinding, Weight

_SHARED: Final = {
    "running_tokens": "tokens",
    "running_kv_tokens": "kv_tokens",
    "prefill_requests": "prefill_requests",
    "prefill_tokens": "prefill_tokens",
}
"""A lane's limit -> that of all lanes together."""


def judge_sharing(config: Config, name: str) -> Iterator[CheckFinding]:
    """What of limits, weights and callers has no effect, or one that nobody can mean."""
    for index, lane in enumerate(config.lanes):
        yield from _limits(config, lane, f"lanes[{index}]", name)
        yield from _callers(config, lane, f"lanes[{index}]", name)
    yield from _turns(config, name)
    yield from _tenants(config, name)
    room = config.engine_room
    if room is not None and int(room.stale) < int(config.scrape.period):
        yield config_finding(
            "CONFIG_ROOM_ALWAYS_OLD",
            Weight.ERROR,
            name,
            "engine_room.stale",
            f"The engine is asked every {human(config.scrape.period)}, and what it says counts as old, and so as a "
            f"full engine, after {human(room.stale)}: between two answers nobody starts.",
            advice=f"stale: {human(int(config.scrape.period) * 3)}",
            effect="A full engine is one that says so.",
            price="The gateway notices later that an engine has gone silent.",
        )


def _limits(config: Config, lane: LaneConfig, place: str, name: str) -> Iterator[CheckFinding]:
    for own, shared in _SHARED.items():
        limit, whole = getattr(lane, own), getattr(config.sharing, shared)
        if limit is not None and whole is not None and limit > whole:
            yield config_finding(
                "CONFIG_LIMIT_ABOVE_SHARED",
                Weight.WARNING,
                name,
                f"{place}.{own}",
                f"Lane {lane.name!r} may have {own} {limit}, and all lanes together {whole} (sharing.{shared}): its "
                "own limit never holds.",
                advice=f"{own}: below {whole}",
                effect="Other lanes find room while this one is full.",
                price="This lane waits earlier.",
            )
    if lane.prefill_requests is not None and lane.prefill_requests > lane.running:
        yield config_finding(
            "CONFIG_PREFILL_ABOVE_RUNNING",
            Weight.WARNING,
            name,
            f"{place}.prefill_requests",
            f"{lane.prefill_requests} requests of lane {lane.name!r} may be in prefill, and {lane.running} may run: "
            "the limit on prefill never holds.",
            advice=f"prefill_requests: {max(1, lane.running // 4)}",
            effect="Long prompts do not stop the streams that run.",
            price="A prompt may wait for the one before it.",
        )
    budgets = lane.budgets or config.budgets
    if lane.patience is not None and int(lane.patience) > int(budgets.queue):
        yield config_finding(
            "CONFIG_PATIENCE_BEYOND_QUEUE",
            Weight.WARNING,
            name,
            f"{place}.patience",
            f"Whoever is overtaken in lane {lane.name!r} for {human(lane.patience)} has its turn, and the queue budget "
            f"ends it after {human(budgets.queue)}: large requests are overtaken until they die.",
            advice=f"patience: {human(int(budgets.queue) // 2)}",
            effect="Nobody starves.",
            price="Short ones wait behind a long one now and then.",
        )


def _callers(config: Config, lane: LaneConfig, place: str, name: str) -> Iterator[CheckFinding]:
    match = lane.match
    if match.key is not None and match.key not in config.keys:
        yield _nobody(
            name, f"{place}.match.key", f"Lane {lane.name!r} is for the key {match.key!r}, which is not there"
        )
    if match.tenant is not None and config.tenant_header is None and match.tenant not in _known_tenants(config):
        what = f"Lane {lane.name!r} is for the tenant {match.tenant!r}, whom no key belongs to and no header can name"
        yield _nobody(name, f"{place}.match.tenant", what)


def _tenants(config: Config, name: str) -> Iterator[CheckFinding]:
    if config.tenant_header is not None:
        return
    known = _known_tenants(config)
    for tenant in config.tenants:
        if tenant not in known:
            what = f"The tenant {tenant!r} has a weight, and no key belongs to it and no header can name it"
            yield _nobody(name, f"tenants.{tenant}", what)


def _known_tenants(config: Config) -> set[str]:
    return {name if key.tenant is None else key.tenant for name, key in config.keys.items()}


def _nobody(name: str, place: str, what: str) -> CheckFinding:
    return config_finding(
        "CONFIG_CALLER_UNKNOWN",
        Weight.ERROR,
        name,
        place,
        f"{what}: no request ever meets it.",
        advice="keys: {NAME: {sha256: …, tenant: …}}, or tenant_header where a proxy of yours sets one",
        effect="Its requests are told from the others.",
        price="None.",
    )


def _turns(config: Config, name: str) -> Iterator[CheckFinding]:
    weighted = config.sharing.between_lanes == "weighted"
    for index, lane in enumerate(config.lanes):
        if not weighted and lane.weight != 1.0:
            yield config_finding(
                "CONFIG_WEIGHT_WITHOUT_EFFECT",
                Weight.WARNING,
                name,
                f"lanes[{index}].weight",
                f"Lane {lane.name!r} has the weight {lane.weight:g}, and lanes take turns by priority alone.",
                advice="sharing: {between_lanes: weighted}",
                effect="Lanes get tokens by their weights while they wait.",
                price="A lane of high priority no longer goes first always.",
            )
