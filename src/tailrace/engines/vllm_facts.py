"""What vLLM tells of its configuration: an info metric, the card of its model, a dump in developer mode, its log.

The precision of the weights is in none of the first two: `--dtype auto` follows the model's own configuration, so only
the dump and the start-up log know it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tailrace.engines.facts import Fact, plain_value, take
from tailrace.engines.prometheus_text import Scrape
from tailrace.measure.openai import decode_leniently

CACHE_INFO: Final = "vllm:cache_config_info"
_LABELS: Final = {
    "block_size": "block_size",
    "num_gpu_blocks": "num_gpu_blocks",
    "kv_tokens": "kv_cache_size_tokens",
    "kv_max_concurrency": "kv_cache_max_concurrency",
    "kv_bytes": "kv_cache_memory_bytes",
    "prefix_caching": "enable_prefix_caching",
    "kv_dtype": "cache_dtype",
    "gpu_memory_utilization": "gpu_memory_utilization",
}
_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "model_config": {
        "model": "model",
        "dtype": "dtype",
        "quantization": "quantization",
        "max_model_len": "max_model_len",
    },
    "cache_config": {
        "kv_dtype": "cache_dtype",
        "block_size": "block_size",
        "num_gpu_blocks": "num_gpu_blocks",
        "kv_tokens": "kv_cache_size_tokens",
        "prefix_caching": "enable_prefix_caching",
        "gpu_memory_utilization": "gpu_memory_utilization",
    },
    "parallel_config": {
        "tensor_parallel": "tensor_parallel_size",
        "pipeline_parallel": "pipeline_parallel_size",
        "data_parallel": "data_parallel_size",
    },
    "scheduler_config": {
        "max_num_seqs": "max_num_seqs",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "chunked_prefill": "enable_chunked_prefill",
        "scheduling_policy": "policy",
        "max_queued": "max_num_queued_reqs",
    },
    "device_config": {"device": "device"},
}
_WORDS: Final = {
    "model": "model",
    "dtype": "dtype",
    "max_model_len": "max_seq_len",
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "data_parallel": "data_parallel_size",
    "quantization": "quantization",
    "kv_dtype": "kv_cache_dtype",
    "device": "device_config",
    "prefix_caching": "enable_prefix_caching",
    "chunked_prefill": "enable_chunked_prefill",
}
_PAIR: Final = re.compile(r"(?:^|, )(\w+)=(?:'([^']*)'|([^,(\[{]*))")


def read_cache_info(scrape: Scrape) -> dict[str, Fact]:
    """From the labels of the info metric. Several engines behind one address: those of the first."""
    found = scrape.samples.get(CACHE_INFO)
    return take(CACHE_INFO, found[0].labels, _LABELS) if found else {}


def read_model_card(path: str, body: bytes) -> dict[str, Fact]:
    """From the first card of `/v1/models`; adapters follow the base model there."""
    obj = decode_leniently(body)
    cards = obj.get("data") if isinstance(obj, dict) else None
    card = cards[0] if isinstance(cards, list) and cards else None
    return take(path, card, {"model": "root", "max_model_len": "max_model_len"}) if isinstance(card, dict) else {}


def read_server_info(body: bytes) -> dict[str, Fact]:
    """From developer mode's dump of the whole configuration, as JSON or, in older versions, as text."""
    obj = decode_leniently(body)
    config: Any = obj.get("vllm_config") if isinstance(obj, dict) else None
    if isinstance(config, str):
        return read_config_text(config, "/server_info")
    out: dict[str, Fact] = {}
    if isinstance(config, dict):
        for name, fields in _SECTIONS.items():
            section = config.get(name)
            if isinstance(section, dict):
                out |= take("/server_info", section, fields, prefix=f"{name}.")
        model = config.get("model_config")
        if isinstance(model, dict) and "quantization" in model and "quantization" not in out:
            out["quantization"] = Fact("none", "/server_info: model_config.quantization")
    return _tidy(out)


def read_config_text(text: str, source: str) -> dict[str, Fact]:
    """From the configuration in words, as the start-up log has it behind `with config:`."""
    said = {name: quoted or bare for name, quoted, bare in _PAIR.findall(text)}
    if "enable_chunked_prefill" not in said and "chunked_prefill_enabled" in said:
        said["enable_chunked_prefill"] = said["chunked_prefill_enabled"]
    out = take(source, said, _WORDS)
    if said.get("quantization") == "None":
        out["quantization"] = Fact("none", f"{source}: quantization")
    return _tidy(out)


def _tidy(facts: dict[str, Fact]) -> dict[str, Fact]:
    for key in ("dtype", "kv_dtype"):
        fact = facts.get(key)
        if fact is not None:
            facts[key] = Fact(plain_value(str(fact.value).removeprefix("torch.")) or "", fact.source)
    return facts
