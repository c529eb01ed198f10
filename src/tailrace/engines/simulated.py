"""The simulated engine: it speaks vLLM's form, and everything that it served is named simulated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from tailrace.engines.base import Detection
from tailrace.engines.facts import Fact, take
from tailrace.engines.vllm import Vllm
from tailrace.measure.openai import decode_leniently

SERVER: Final = "tailrace-simulated-engine"
"""How its `Server` header begins; the version follows after a slash."""

_KNOBS: Final = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "chunked_prefill": "enable_chunked_prefill",
    "scheduling_policy": "policy",
    "prefix_caching": "enable_prefix_caching",
    "block_size": "block_size",
    "num_gpu_blocks": "num_gpu_blocks",
}


class Simulated(Vllm):
    """`tailrace engine`: vLLM's metrics, timings and errors, from a model of the scheduler and the GPU."""

    name: ClassVar[str] = "simulated"
    queue_begins_between_steps: ClassVar[bool] = False  # it counts from the arrival
    title: ClassVar[str] = "Tailrace's simulated engine"
    versions: ClassVar[str] = ""
    owners: ClassVar[tuple[str, ...]] = (SERVER,)
    info_paths: ClassVar[tuple[str, ...]] = ("/v1/models", "/knobs")

    def read_info(self, path: str, body: bytes) -> dict[str, Fact]:
        """As vLLM, and the scheduler's knobs, which it answers at run time."""
        if path != "/knobs":
            known = super().read_info(path, body)
            version = known.get("version")
            # Its name stands beside its version wherever that is shown, and the `Server` header has it without.
            if version is not None:
                known["version"] = Fact(str(version.value).removeprefix("simulated-"), version.source)
            return known
        said = decode_leniently(body)
        return take(path, said, _KNOBS) if isinstance(said, dict) else {}

    def read_settings(self, path: str, body: bytes) -> dict[str, Fact]:
        """Every knob that is no fact."""
        said = decode_leniently(body) if path == "/knobs" else None
        others = {} if not isinstance(said, dict) else {key: key for key in said if key not in _KNOBS.values()}
        return take(path, said, others) if isinstance(said, dict) else {}

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its `Server` header only; its metric names are vLLM's."""
        _ = metric_names
        product, _, version = headers.get("server", "").partition("/")
        if product != SERVER:
            return None
        return Detection(self.name, version, f"header server: {SERVER}", 4)
