"""What a service between the gateway and the engine said of its stages in the head of the answer (`Server-Timing`).

Read when the record is made, never while anything is relayed, and only where the header was there.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.measure.engine_timings import EngineTimings
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, SourceKind, source
from tailrace.stages.server_timing import parse_server_timing

REPORTED: Final = source(SourceKind.REPORTED, "server-timing")
STAGES: Final = ("queue", "preprocess", "encode", "prefill", "decode", "postprocess")
"""Stages that can lie behind the gateway. `model` is none: a gateway's record splits that call."""
_ADDED: Final = frozenset({"preprocess", "postprocess"})
"""A service's own work beside the engine's; of the others both would tell the same, and the engine knows better."""
_OWN: Final = frozenset({QUEUE_GATEWAY, QUEUE_ENGINE})
"""Parts that the record has fields for: another gateway's lane, seen from here, is queue behind us."""
MOST_PARTS: Final = 32
_LONGEST_NAME: Final = 80


def with_reported(timings: EngineTimings, header: bytes) -> EngineTimings:
    """`timings` of the engine, with what the header's value adds. Names that are no stages are left out."""
    stages, parts = _read(header)
    if not stages:
        return timings
    changes: dict[str, object] = {}
    sources = dict(timings.sources)
    for stage, value in stages.items():
        known = timings.part(stage)
        if known is None:
            changes[f"{stage}_ns"] = value
            sources[stage] = REPORTED
        elif stage in _ADDED:
            changes[f"{stage}_ns"] = known[0] + value
            sources[stage] = known[1] if known[1] == REPORTED else _both(known[1])
    sources |= dict.fromkeys(parts, REPORTED)
    return msgspec.structs.replace(timings, **changes, sources=sources, parts_ns={**timings.parts_ns, **parts})


def _both(known: str) -> str:
    kind, _, detail = known.partition("(")
    detail = detail.removesuffix(")")
    return f"{kind}({detail} + server-timing)" if detail else f"{kind}(+ server-timing)"


def _read(header: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """(stage -> ns, part -> ns). A stage of which only parts are told lasted as long as they did together."""
    said: dict[str, int] = {}
    parts: dict[str, int] = {}
    for one in parse_server_timing(header.decode("latin-1")):
        name, value = one.name, one.duration_ns
        stage, _, part = name.partition(".")
        if value is None or stage not in STAGES or len(name) > _LONGEST_NAME or not all(name.split(".")):
            continue
        if not part:
            said[stage] = said.get(stage, 0) + value
        elif name in parts or len(parts) < MOST_PARTS:
            parts[name] = parts.get(name, 0) + value
    stages = dict(said)
    for stage in STAGES:
        if stage in stages:
            continue
        # Parts of parts are told beside them, and are not added again.
        own = [value for name, value in parts.items() if name.partition(".")[0] == stage and name.count(".") == 1]
        deeper = [value for name, value in parts.items() if name.partition(".")[0] == stage]
        if deeper:
            stages[stage] = max(sum(own), *deeper)
    return stages, {name: value for name, value in parts.items() if name not in _OWN}
