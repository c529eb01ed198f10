"""A lane of the configuration as the governor reads it, and what of it cannot be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from tailrace.gateway.config_sections import LaneConfig
from tailrace.gateway.lane_keys import at_least_one, check_weight
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, Objectives

_LIMITS: Final = ("running_tokens", "running_kv_tokens", "queued_tokens", "prefill_requests", "prefill_tokens")
_TPOT_NS: Final = 80 * MS


def lane_limits(lane: LaneConfig, objectives: Objectives) -> dict[str, Any]:
    """Fields of its `LanePolicy` beside name, match, places, order, priority, budgets and objectives."""
    return {
        **{name: getattr(lane, name) for name in _LIMITS},
        "prefill_order": lane.prefill_order,
        "patience_ns": None if lane.patience is None else int(lane.patience),
        "weight": lane.weight,
        "backends": tuple(lane.backends),
        "adaptive": None
        if lane.adaptive is None
        else lane.adaptive.resolve(lane.running, min(objectives.bounds.get("tpot", {}).values(), default=_TPOT_NS)),
    }


def lane_objectives(lane: LaneConfig, own: Objectives | None, common: Objectives) -> Objectives:
    """Its own; of a lane for throughput no latency, unless it names one; else those of all."""
    if lane.throughput is not None:
        return Objectives(bounds={} if own is None else own.bounds, tokens_per_s=lane.throughput)
    return common if own is None else own


def check_lane_limits(lane: LaneConfig, backends: Collection[str], keys: Mapping[str, object], *, place: str) -> None:
    """Refuse what lets nobody through, and names of nothing. Raises `ConfigError`."""
    for name in _LIMITS:
        at_least_one(getattr(lane, name), place=f"{place}.{name}")
    check_weight(lane.weight, place=f"{place}.weight")
    for name in lane.backends:
        if name not in backends:
            raise ConfigError(
                f"there is no backend {name!r}",
                place=f"{place}.backends",
                remedy=f"The backends are {', '.join(sorted(backends))}.",
            )
    if lane.throughput is not None and lane.throughput <= 0:
        raise ConfigError(
            f"{lane.throughput:g} tokens a second are no aim",
            place=f"{place}.throughput",
            remedy="Write the tokens a second that the lane should get done; leave the key out for latency objectives.",
        )
    if lane.prefill_order is not None and lane.prefill_requests is None and lane.prefill_tokens is None:
        raise ConfigError(
            "nothing bounds the lane's prefill, so that it has no order",
            place=f"{place}.prefill_order",
            remedy="Add prefill_requests or prefill_tokens, or leave the key out.",
        )
    if lane.match.key is not None and lane.match.key not in keys:
        raise ConfigError(
            f"there is no key {lane.match.key!r}",
            place=f"{place}.match.key",
            remedy=f"The keys are {', '.join(sorted(keys)) or 'none'}.",
        )
    adaptive = lane.adaptive
    if adaptive is not None and not (
        1 <= adaptive.minimum <= lane.running
        and (adaptive.start is None or 1 <= adaptive.start <= lane.running)
        and 0 < adaptive.quantile < 1
        and adaptive.step >= 10 * MS
    ):
        raise ConfigError(
            "the moving limit has no room to move in",
            place=f"{place}.adaptive",
            remedy=f"minimum and start lie between 1 and running ({lane.running}), quantile between 0 and 1, "
            "step is at least 10ms.",
        )
