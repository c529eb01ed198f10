"""What is in force in an engine: facts from all sources, and the defaults of its version for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tailrace.engines.advice.card import find_card
from tailrace.engines.facts import EngineFacts, Fact, merge_facts, spoken
from tailrace.engines.flags.given import is_secret
from tailrace.engines.flags.option import OptionTable
from tailrace.engines.flags.version import parse_version
from tailrace.engines.flags.vllm_history import (
    V1_BY_DEFAULT,
    default_batch,
    default_chunked_prefill,
    default_memory_share,
)
from tailrace.model.check import CheckedEngine, InForce

_DEFAULTS: Final[dict[str, dict[str, str | int | float]]] = {
    "vllm": {
        "scheduling_policy": "fcfs",
        "tensor_parallel": 1,
        "long_prefill_token_threshold": 0,
        "stream_interval": 1,
    },
    "sglang": {"scheduling_policy": "fcfs", "tensor_parallel": 1, "stream_interval": 1},
    "llamacpp": {"n_batch": 2048, "n_ubatch": 512},
    "tgi": {"max_concurrent_requests": 128, "waiting_served_ratio": 0.3},
}


def facts_in_force(
    said: Sequence[Mapping[str, Fact]], *, engine: str, gpu: str, table: OptionTable | None
) -> tuple[EngineFacts, dict[str, Fact]]:
    """(what is in force, the part of it that nobody set). Sources come weakest first: what runs beats a wish."""
    merged = merge_facts(*said)
    defaults = {key: fact for key, fact in _defaults(engine, merged, gpu, table).items() if not merged.get(key)}
    return EngineFacts({**defaults, **merged.known}, merged.contradictions), defaults


def _defaults(engine: str, facts: EngineFacts, gpu: str, table: OptionTable | None) -> dict[str, Fact]:
    """What holds where nobody said anything, of this version."""
    version = parse_version(facts.text("version"))
    of = f"default of {engine} {version}" if version is not None else f"default of {engine}"
    values: dict[str, Any] = dict(_DEFAULTS.get("vllm" if engine == "simulated" else engine, {}))
    if engine == "vllm":
        values |= {
            "chunked_prefill": default_chunked_prefill(version),
            "gpu_memory_utilization": default_memory_share(version),
        }
        if version is None or version >= V1_BY_DEFAULT:
            values["prefix_caching"] = True
        card = find_card(gpu) if gpu else None
        cpu = "cpu" in facts.text("device") or "+cpu" in facts.text("version")
        newest = version is None or (table is not None and str(version) == table.version)
        batch = (
            default_batch(card.memory / 2**30 if card is not None else None, a100="a100" in gpu.lower(), cpu=cpu)
            if newest and (card is not None or cpu)
            else None
        )
        if batch is not None:
            values |= {"max_num_batched_tokens": batch[0], "max_num_seqs": batch[1]}
    return {key: Fact(value, of) for key, value in values.items() if value is not None}


def settings_of(facts: EngineFacts, defaults: dict[str, Fact]) -> list[InForce]:
    """For people and JSON: what somebody set first, defaults last; secrets never."""
    against = {one.key: f"{spoken(one.other.value)} ({one.other.source})" for one in facts.contradictions}
    return [
        InForce(
            key=key,
            value=fact.value,
            source=fact.source,
            default=defaults.get(key) is fact,
            contradicts=against.get(key, ""),
        )
        for key, fact in sorted(facts.known.items(), key=lambda item: (defaults.get(item[0]) is item[1], item[0]))
        if not is_secret(key) and key != "version"
    ]


def facts_of(checked: CheckedEngine) -> EngineFacts:
    """The settings of an engine as facts again."""
    return EngineFacts({one.key: Fact(one.value, one.source) for one in checked.settings})
