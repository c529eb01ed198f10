"""A Triton model's configuration, from its `config.pbtxt` or from `/v2/models/NAME/config`: what decides latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.engines.facts import Fact
from tailrace.engines.flags.text_format import as_list


class InstanceGroup(msgspec.Struct, frozen=True):
    """Copies of a model on one kind of device."""

    count: int = 1
    kind: str = "KIND_AUTO"
    gpus: tuple[int, ...] = ()

    @property
    def instances(self) -> int:
        """Copies over all listed devices."""
        return self.count * max(len(self.gpus), 1)


class QueuePolicy(msgspec.Struct, frozen=True):
    """What the batcher does with requests that wait."""

    max_queue_size: int = 0
    """0: no limit."""
    default_timeout_us: int = 0
    """0: none."""
    timeout_action: str = "REJECT"
    allow_timeout_override: bool = False

    def __bool__(self) -> bool:
        return bool(self.max_queue_size or self.default_timeout_us)


class DynamicBatching(msgspec.Struct, frozen=True):
    """The batcher that joins requests."""

    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    priority_levels: int = 0
    default_priority: int = 0
    policy: QueuePolicy = QueuePolicy()
    level_policies: bool = False
    """Some level has a queue policy of its own."""
    preserve_ordering: bool = False


class TritonModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration says."""

    name: str
    source: str
    backend: str = ""
    max_batch_size: int = 0
    """0: the model takes no batches."""
    batching: DynamicBatching | None = None
    sequence_batching: bool = False
    ensemble: tuple[str, ...] = ()
    """The models of an ensemble, in order."""
    groups: tuple[InstanceGroup, ...] = ()
    decoupled: bool = False
    response_cache: bool = False
    rate_limited: bool = False

    @property
    def instances(self) -> int | None:
        """Copies that compute at once; `None` where the file leaves it to Triton (one a GPU, or one on the CPU)."""
        return sum(group.instances for group in self.groups) if self.groups else None

    def facts(self) -> dict[str, Fact]:
        """As facts, under the names of `engines.facts`."""
        out: dict[str, Fact] = {"model": Fact(self.name, self.source)}
        if self.backend:
            out["backend"] = Fact(self.backend, self.source)
        out["max_batch_size"] = Fact(self.max_batch_size, self.source)
        out["decoupled"] = Fact(self.decoupled, self.source)
        if self.instances is not None:
            out["instances"] = Fact(self.instances, self.source)
        if self.batching is not None:
            out["batch_delay_us"] = Fact(self.batching.delay_us, self.source)
            if self.batching.preferred:
                out["preferred_batch_sizes"] = Fact(",".join(map(str, self.batching.preferred)), self.source)
            out["max_queued"] = Fact(self.batching.policy.max_queue_size, self.source)
        return out


def _whole(value: Any) -> int:
    """JSON of protocol buffers writes 64-bit numbers as text."""
    if isinstance(value, bool):
        return 0
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


def _message(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _policy(said: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        max_queue_size=_whole(said.get("max_queue_size")),
        default_timeout_us=_whole(said.get("default_timeout_microseconds")),
        timeout_action=str(said.get("timeout_action") or "REJECT"),
        allow_timeout_override=said.get("allow_timeout_override") is True,
    )


def _batching(said: Mapping[str, Any]) -> DynamicBatching:
    levels = said.get("priority_queue_policy")
    return DynamicBatching(
        preferred=tuple(sorted(_whole(one) for one in as_list(said.get("preferred_batch_size")))),
        delay_us=_whole(said.get("max_queue_delay_microseconds")),
        priority_levels=_whole(said.get("priority_levels")),
        default_priority=_whole(said.get("default_priority_level")),
        policy=_policy(_message(said.get("default_queue_policy"))),
        level_policies=bool(levels),
        preserve_ordering=said.get("preserve_ordering") is True,
    )


def triton_model(said: Mapping[str, Any], *, source: str, name: str = "") -> TritonModel:
    """Read a configuration; fields that are absent have Triton's defaults. `name`: where the file leaves it out."""
    batching = said.get("dynamic_batching")
    steps = as_list(_message(said.get("ensemble_scheduling")).get("step"))
    groups = tuple(
        InstanceGroup(
            _whole(_message(one).get("count")) or 1,
            str(_message(one).get("kind") or "KIND_AUTO"),
            tuple(_whole(gpu) for gpu in as_list(_message(one).get("gpus"))),
        )
        for one in as_list(said.get("instance_group"))
    )
    return TritonModel(
        name=str(said.get("name") or name or "model"),
        source=source,
        backend=str(said.get("backend") or said.get("platform") or ""),
        max_batch_size=_whole(said.get("max_batch_size")),
        batching=_batching(_message(batching)) if batching is not None else None,
        sequence_batching=said.get("sequence_batching") is not None,
        ensemble=tuple(str(_message(step).get("model_name") or "?") for step in steps),
        groups=groups,
        decoupled=_message(said.get("model_transaction_policy")).get("decoupled") is True,
        response_cache=_message(said.get("response_cache")).get("enable") is True,
        rate_limited=any(_message(one).get("rate_limiter") for one in as_list(said.get("instance_group"))),
    )
