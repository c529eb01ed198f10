"""TensorRT-LLM's statistics of iterations (`/metrics` of `trtllm-serve`): one object a step, in a list or one a line.

{"iter": 1000, "iterLatencyMS": 22.0, "numActiveRequests": 64, "numQueuedRequests": 30,
 "kvCacheStats": {"maxNumBlocks": 2000, "usedNumBlocks": 1996, …},
 "inflightBatchingStats": {"numContextRequests": 0, "numCtxTokens": 0, "numGenRequests": 60, "numPausedRequests": 4}}
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Final

from tailrace.diagnose.observed import Clock, Observed, Place
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.json_objects import Objects
from tailrace.diagnose.readers.logs.samples import Samples
from tailrace.model.errors import InputError

__all__ = ["TRTLLM_STATS"]

_NAME: Final = "tensorrt-llm iteration statistics"
_TELLS: Final = re.compile(r'"iterLatencyMS"\s*:')
_COLUMNS: Final = ("step", "step_prefills", "step_prompt_tokens", "step_decodes", "running", "waiting", "swapped",
                   "kv_usage")  # fmt: skip


def _matches(head: str, name: str) -> bool:
    _ = name
    return head.lstrip()[:1] in {"{", "["} and _TELLS.search(head) is not None


def _read(path: Path, name: str) -> Observed:
    objects = Objects(path, name, _NAME)
    samples = Samples(_COLUMNS)
    for line, found in objects:
        row = _row(found)
        if row is None:
            objects.refuse(line, found)
        else:
            samples.add((math.nan, float(line), *row))
    series = samples.series({"engine": "0", "line": "step"}, Place(name), Clock.NONE)
    if not series:
        raise InputError("there is no iteration in it", place=str(path), remedy="Save the whole answer of /metrics.")
    return Observed(series=series, understood=[objects.understood("iterations")])


def _row(found: dict[str, Any]) -> tuple[float, ...] | None:
    """The values of `_COLUMNS`; requests that are paused lost their memory, as swapped ones did."""
    took = _number(found, "iterLatencyMS")
    if math.isnan(took):
        return None
    batch, cache = (found.get(key) for key in ("inflightBatchingStats", "kvCacheStats"))
    batch, cache = (part if isinstance(part, dict) else {} for part in (batch, cache))
    most = _number(cache, "maxNumBlocks")
    prefills, decodes = _number(batch, "numContextRequests"), _number(batch, "numGenRequests")
    scheduled = _number(batch, "numScheduledRequests")
    running = scheduled if not math.isnan(scheduled) else _number(found, "numActiveRequests")
    return (
        took,
        prefills,
        _number(batch, "numCtxTokens"),
        decodes,
        running,
        _number(found, "numQueuedRequests"),
        _number(batch, "numPausedRequests"),
        _number(cache, "usedNumBlocks") / most if most > 0 else math.nan,
    )


def _number(found: dict[str, Any], key: str) -> float:
    value = found.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


TRTLLM_STATS: Final = Format(name=_NAME, matches=_matches, read=_read)
