"""Triton's own trace file as records: one a traced request, its stages as the server stamped them.

Give it alone: the same requests in a gateway's records would be counted twice. Nothing is known of what the client saw;
of a stream, only the time to the end of the server's last stamp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.engines.spans.triton_file import TracedRequest, read_trace_file
from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.stage import SourceKind, source
from tailrace.store.table import RecordTable

__all__ = ["read_triton_trace"]

_STAGES = ("queue", "preprocess", "prefill", "postprocess")
_REMAINDER = source(SourceKind.INFERRED, "remainder")


def read_triton_trace(path: Path) -> RecordTable:
    """Read a trace file. InputError where it is none, or holds no whole request."""
    try:
        found = read_trace_file(path.read_bytes())
    except ValueError as error:
        raise InputError(str(error), place=str(path)) from None
    if not found:
        raise InputError("there is no whole request in it", place=str(path))
    return RecordTable.from_records([_record(one) for one in found])


def _record(one: TracedRequest) -> RequestRecord:
    left = one.total_ns
    stages: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for stage in _STAGES:
        value: int | None = getattr(one.facts, f"{stage}_ns")
        if value is not None:
            stages[stage] = min(value, left)
            left -= stages[stage]
            sources[stage] = one.facts.sources[stage]
    if left:
        stages["unattributed"], sources["unattributed"] = left, _REMAINDER
    if "queue" in stages:
        sources["queue.engine"] = sources["queue"]
    return RequestRecord(
        vantage="engine",
        request_id=one.request_id or f"triton-{one.trace}",
        endpoint="/v2/models/{model}",
        model=one.model,
        engine="triton",
        stream=one.facts.postprocess_ns is None,
        start_unix_ns=one.began_ns,
        e2e_ns=one.total_ns,
        outcome=OutcomeKind.COMPLETED,
        queue_engine_ns=stages.get("queue"),
        stage_sources=sources,
        **{f"{stage}_ns": value for stage, value in stages.items()},
    )
