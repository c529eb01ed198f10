"""The adapters that ship, by name, and which one a server is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from tailrace.engines.base import Detection, EngineAdapter
from tailrace.engines.dynamo import Dynamo
from tailrace.engines.llamacpp import LlamaCpp
from tailrace.engines.openai_compatible import OpenAICompatible
from tailrace.engines.sglang import Sglang
from tailrace.engines.simulated import Simulated
from tailrace.engines.tensorrt_llm import TensorRtLlm
from tailrace.engines.tgi import Tgi
from tailrace.engines.triton import Triton
from tailrace.engines.vllm import Vllm
from tailrace.model.errors import InputError

_ADAPTERS: Final[tuple[EngineAdapter, ...]] = (
    Vllm(),
    LlamaCpp(),
    Sglang(),
    Triton(),
    Tgi(),
    TensorRtLlm(),
    Dynamo(),
    Simulated(),
    OpenAICompatible(),
)
ADAPTERS: Final[Mapping[str, EngineAdapter]] = {adapter.name: adapter for adapter in _ADAPTERS}
"""Name -> adapter. A new engine adds one file and one entry here."""

TELLING_PATHS: Final = ("/v1/models", "/v2", "/info")
"""What is asked of a server that neither its headers nor its metrics have given away; see `recognise`."""
_ALSO: Final[Mapping[str, str]] = {
    "openai": OpenAICompatible.name,
    "llama.cpp": LlamaCpp.name,
    "trtllm": TensorRtLlm.name,
    "tensorrt-llm": TensorRtLlm.name,
}
"""Other spellings."""


def adapter(name: str) -> EngineAdapter:
    """The adapter called `name`.

    Raises:
        InputError: there is none; the message lists those there are.

    """
    found = ADAPTERS.get(_ALSO.get(name, name))
    if found is None:
        raise InputError(
            f"unknown engine {name!r}", place="engine", remedy=f"Use one of: {', '.join(sorted(ADAPTERS))}."
        )
    return found


def detect(headers: Mapping[str, str], metric_names: Collection[str] = ()) -> Detection:
    """Which engine answered with these headers (any case) and exports these metric names.

    `openai_compatible` with confidence 0 where nothing gives it away.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    found = [hit for each in _ADAPTERS if (hit := each.detect(lower, metric_names)) is not None]
    if not found:
        return Detection(OpenAICompatible.name, "", "nothing engine-specific was seen", 0)
    return max(found, key=lambda hit: hit.confidence)


def recognise(path: str, body: bytes) -> Detection | None:
    """Which engine gave this answer to one of `TELLING_PATHS`; `None` where it tells nothing."""
    found = [hit for each in _ADAPTERS if (hit := each.recognise(path, body)) is not None]
    return max(found, key=lambda hit: hit.confidence) if found else None
