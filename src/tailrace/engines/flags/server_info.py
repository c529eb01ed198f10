"""The scheduler's finer options in an engine's dump of its configuration; the common facts are the adapters' part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tailrace.engines.facts import Fact, take
from tailrace.measure.openai import decode_leniently

_VLLM: Final[Mapping[str, Mapping[str, str]]] = {
    "scheduler_config": {
        "long_prefill_token_threshold": "long_prefill_token_threshold",
        "max_queued": "max_num_queued_reqs",
        "max_num_queued_tokens": "max_num_queued_tokens",
        "stream_interval": "stream_interval",
    },
    "model_config": {"enforce_eager": "enforce_eager"},
    "device_config": {"device": "device"},
    "observability_config": {"enable_logging_iteration_details": "enable_logging_iteration_details"},
}
_GPU: Final = re.compile(r"GPU \d+: (.+?)(?: \(UUID|\r?$)", re.MULTILINE)
"""A card's name as the driver lists it."""
_SGLANG: Final = {
    name: name
    for name in (
        "max_prefill_tokens",
        "enable_mixed_chunk",
        "enable_priority_scheduling",
        "schedule_low_priority_values_first",
        "abort_on_priority_when_disabled",
        "schedule_conservativeness",
        "stream_interval",
        "num_continuous_decode_steps",
        "allow_auto_truncate",
        "enable_metrics",
    )
}


def read_scheduler(path: str, body: bytes) -> dict[str, Fact]:
    """From vLLM's `/server_info` (developer mode) or SGLang's; nothing from any other page."""
    place = path.partition("?")[0]
    if not place.endswith("server_info"):
        return {}
    said = decode_leniently(body)
    if not isinstance(said, dict):
        return {}
    config: Any = said.get("vllm_config")
    if not isinstance(config, dict):
        return take(place, said, _SGLANG) if "vllm_config" not in said else {}
    out: dict[str, Fact] = {}
    for section, fields in _VLLM.items():
        part = config.get(section)
        if isinstance(part, dict):
            out |= take(place, part, fields, prefix=f"{section}.")
    scheduler = config.get("scheduler_config")
    if isinstance(scheduler, dict) and scheduler.get("max_num_queued_reqs", 0) is None:
        out["max_queued"] = Fact(0, f"{place}: scheduler_config.max_num_queued_reqs")  # nobody is refused
    system = said.get("system_env")
    cards = _GPU.findall(str(system.get("nvidia_gpu_models") or "")) if isinstance(system, dict) else []
    if cards:
        out["gpu"] = Fact(cards[0].strip(), f"{place}: system_env.nvidia_gpu_models")
    return out
