"""Facts: what is true of an engine from its start to its end, each with the place that says so.

An engine's precision, sizes and switches do not change while it runs, so they are asked once a start and never on a
request's path. A fact without a source is none: where several places speak, the one nearer to the running engine wins,
and a contradiction between them is kept, because one of the two is a mistake somebody should know of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

FactValue = str | int | float | bool

CONFIGURATION: Final = "configuration"
"""The source of what Tailrace's own configuration says of a backend."""

FACTS: Final[Mapping[str, str]] = {
    "version": "the engine's version, as it spells it",
    "model": "the model's name or path, as the engine was started with",
    "parameters": "weights of the model (count)",
    "weight_bytes": "size of the weights (bytes)",
    "dtype": "precision of weights and activations: `bfloat16`, `float16`, `float32`, ...",
    "quantization": "quantisation of the weights: `awq`, `gptq`, `fp8`, `Q4_K_M`, ...; `none` where the engine says so",
    "kv_dtype": "precision of the KV cache; `auto` follows `dtype`",
    "max_model_len": "longest request, prompt and answer together (tokens)",
    "max_input_len": "longest prompt (tokens)",
    "max_num_seqs": "requests in one step at most",
    "max_num_batched_tokens": "tokens in one step at most",
    "max_queued": "requests that may wait inside the engine; 0: no limit",
    "block_size": "tokens in one block of the KV cache",
    "num_gpu_blocks": "blocks of the KV cache",
    "kv_tokens": "size of the KV cache (tokens)",
    "kv_max_concurrency": "requests of the longest length that the KV cache holds at once",
    "kv_bytes": "size of the KV cache (bytes)",
    "tensor_parallel": "cards that one copy of the model is spread over, by tensor",
    "pipeline_parallel": "cards that one copy of the model is spread over, by layer",
    "data_parallel": "copies of the model behind one address",
    "slots": "requests that can be worked on at once where that number is fixed (llama.cpp)",
    "slot_ctx": "tokens of one slot's context (llama.cpp)",
    "n_batch": "tokens in one step at most (llama.cpp)",
    "prefix_caching": "whether prompts that begin alike share their KV blocks",
    "chunked_prefill": "whether a long prompt is computed in pieces, among other requests",
    "chunked_prefill_size": "tokens in one such piece",
    "scheduling_policy": "the order in which waiting requests are taken",
    "preferred_batch_sizes": "batch sizes that the batcher prefers, comma-separated (Triton)",
    "max_batch_size": "requests in one batch at most (Triton)",
    "batch_delay_us": "how long the batcher waits for a fuller batch (us; Triton)",
    "instances": "copies of the model that compute at once (Triton)",
    "decoupled": "whether the model answers in any number of pieces (Triton)",
    "backend": "what computes the model inside the engine (Triton's backend, SGLang's attention backend)",
    "gpu_memory_utilization": "share of the card's memory that the engine takes",
    "device": "what it computes on: `cuda`, `cpu`, a card's name",
    "speculative": "the method by which tokens are guessed ahead; `none` where the engine says so",
}
"""Every key that a fact may have, and what it means. Adapters use no others."""


class Fact(msgspec.Struct, frozen=True):
    """One thing that is true of an engine."""

    value: FactValue
    source: str
    """Who says so: `configuration`, a path and its field (`/props: build_info`), a metric and its label
    (`vllm:cache_config_info: cache_dtype`)."""


class Contradiction(msgspec.Struct, frozen=True):
    """Two places that say different things of the same fact."""

    key: str
    believed: Fact
    other: Fact


class EngineFacts(msgspec.Struct, frozen=True):
    """All facts that are known of one engine; keys as in `FACTS`."""

    known: dict[str, Fact] = {}
    contradictions: tuple[Contradiction, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.known)

    def get(self, key: str) -> Fact | None:
        """The fact, `None` where nobody told it."""
        return self.known.get(key)

    def text(self, key: str) -> str:
        """Its value as text; empty where it is not known."""
        fact = self.known.get(key)
        return "" if fact is None else spoken(fact.value)

    def number(self, key: str) -> float | None:
        """Its value as a number; `None` where it is not known or is none."""
        fact = self.known.get(key)
        if fact is None or isinstance(fact.value, bool) or not isinstance(fact.value, int | float):
            return None
        return fact.value

    def flag(self, key: str) -> bool | None:
        """Its value as a switch; `None` where it is not known or is none."""
        fact = self.known.get(key)
        return fact.value if fact is not None and isinstance(fact.value, bool) else None

    def view(self) -> dict[str, dict[str, FactValue]]:
        """For JSON: key -> value and source."""
        return {key: {"value": fact.value, "source": fact.source} for key, fact in sorted(self.known.items())}


NO_FACTS: Final = EngineFacts()


def spoken(value: FactValue) -> str:
    """A value as people write it in a configuration."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def merge_facts(*groups: Mapping[str, Fact]) -> EngineFacts:
    """One set out of several, the weakest first: what comes later wins, and what it contradicts is kept.

    The usual order: configuration, metrics, paths asked. `auto` says that somebody else decides, so it never wins over
    a value, and contradicts none.
    """
    known: dict[str, Fact] = {}
    contradictions: list[Contradiction] = []
    for group in groups:
        for key, fact in group.items():
            before = known.get(key)
            if before is None or before.value == "auto":
                known[key] = fact
            elif fact.value != "auto":
                if not _same(before.value, fact.value):
                    contradictions.append(Contradiction(key, fact, before))
                known[key] = fact
    return EngineFacts(known, tuple(contradictions))


def agreed_facts(groups: Sequence[Mapping[str, Fact]]) -> dict[str, Fact]:
    """What all of several tell alike: the models of one server. A fact that only some of them have is none of it."""
    if not groups:
        return {}
    first = groups[0]
    return {
        key: fact
        for key, fact in first.items()
        if all(key in each and _same(each[key].value, fact.value) for each in groups[1:])
    }


def _same(one: FactValue, other: FactValue) -> bool:
    return spoken(one).removeprefix("torch.").lower() == spoken(other).removeprefix("torch.").lower()


def take(source: str, said: Mapping[str, object], fields: Mapping[str, str], *, prefix: str = "") -> dict[str, Fact]:
    """Facts out of a JSON object or the labels of an info metric: `fields` is our key -> the engine's field.

    `source` names the place; the field is added to it. Absent fields, `None` and empty text give no fact.
    """
    out: dict[str, Fact] = {}
    for key, field in fields.items():
        value = plain_value(said.get(field))
        if value is not None:
            out[key] = Fact(value, f"{source}: {prefix}{field}")
    return out


def plain_value(value: object) -> FactValue | None:
    """A value as a fact holds it: text that spells a number or a switch becomes one, absent ones become `None`."""
    if isinstance(value, bool | int | float):
        return value
    if not isinstance(value, str) or not (text := value.strip()) or text.lower() in {"none", "null"}:
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text[:200]
    return number if abs(number) < float("inf") else None
