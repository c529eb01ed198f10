"""What the configuration of one of Triton's models says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace.engines.facts import Fact, take

_FIELDS: Final = {"model": "name", "backend": "backend", "max_batch_size": "max_batch_size"}


def read_model_config(path: str, said: Mapping[str, Any]) -> dict[str, Fact]:
    """From the answer of `/v2/models/M/config`. The precision of a model's weights is not in it."""
    out = take(path, said, _FIELDS)
    batching = said.get("dynamic_batching")
    if isinstance(batching, dict):
        out |= take(path, batching, {"batch_delay_us": "max_queue_delay_microseconds"}, prefix="dynamic_batching.")
        preferred = batching.get("preferred_batch_size")
        if isinstance(preferred, list) and preferred:
            text = ", ".join(str(size) for size in preferred[:8])
            out["preferred_batch_sizes"] = Fact(text, f"{path}: dynamic_batching.preferred_batch_size")
        policy = batching.get("default_queue_policy")
        if isinstance(policy, dict):
            fields = {"max_queued": "max_queue_size"}
            out |= take(path, policy, fields, prefix="dynamic_batching.default_queue_policy.")
    groups = said.get("instance_group")
    if isinstance(groups, list):
        counts = [each.get("count") for each in groups if isinstance(each, dict)]
        total = sum(each for each in counts if isinstance(each, int))
        if total:
            out["instances"] = Fact(total, f"{path}: instance_group.count")
        kinds = {str(each.get("kind")) for each in groups if isinstance(each, dict)}
        if len(kinds) == 1:
            out["device"] = Fact(kinds.pop().removeprefix("KIND_").lower(), f"{path}: instance_group.kind")
    policy = said.get("model_transaction_policy")
    decoupled = policy.get("decoupled") if isinstance(policy, dict) else None
    if isinstance(decoupled, bool):
        out["decoupled"] = Fact(decoupled, f"{path}: model_transaction_policy.decoupled")
    return out
