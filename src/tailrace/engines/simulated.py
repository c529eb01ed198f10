"""The simulated engine: it speaks vLLM's form, and everything that it served is named simulated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from tailrace.engines.base import Detection
from tailrace.engines.vllm import Vllm

SERVER: Final = "tailrace-simulated-engine"
"""How its `Server` header begins; the version follows after a slash."""


class Simulated(Vllm):
    """`tailrace engine`: vLLM's metrics, timings and errors, from a model of the scheduler and the GPU."""

    name: ClassVar[str] = "simulated"
    queue_begins_between_steps: ClassVar[bool] = False  # it counts from the arrival

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its `Server` header only; its metric names are vLLM's."""
        _ = metric_names
        product, _, version = headers.get("server", "").partition("/")
        if product != SERVER:
            return None
        return Detection(self.name, version, f"header server: {SERVER}", 4)
