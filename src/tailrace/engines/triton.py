"""Triton: `generate_stream` without an end marker, `nv_` metrics. Facts are of 2.51.

For streams its own durations end when `execute()` returns, long before the last token: only our clock counts, so the
adapter takes no timings from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

import msgspec

from tailrace.engines.base import Detection, EngineAdapter, RequestAdditions
from tailrace.engines.errors import Ending
from tailrace.engines.native import open_frame
from tailrace.engines.signals import SignalTable, names
from tailrace.measure.dialect import Dialect, EngineFault, Meaning, as_text
from tailrace.measure.fault import find_fault
from tailrace.measure.openai import decode_leniently, text_length
from tailrace.model.outcome import Reason
from tailrace.model.timeline import EventKind

PREFIX: Final = "nv_"


class TritonGenerate:
    """`/v2/models/M/generate` and `generate_stream`: one object a response, text in `text_output`."""

    name = "triton.generate"

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`."""
        obj = open_frame(event, data)
        if isinstance(obj, Meaning):
            return obj
        length = text_length(obj.get("text_output"))
        kind = EventKind.CONTENT if length else EventKind.EMPTY
        return Meaning(kind, length, as_text(obj.get("id")), has_content=length > 0)

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`."""
        if event is not None:
            return ""
        obj = decode_leniently(data)
        text = obj.get("text_output") if isinstance(obj, dict) and find_fault(obj) is None else None
        return text if isinstance(text, str) else ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`. An answer of status 200 may be an error all the same."""
        meaning = self.read(None, body)
        meaning.done = meaning.kind is not EventKind.ERROR and meaning.kind is not EventKind.OTHER
        return meaning


GENERATE: Final[Dialect] = TritonGenerate()


class Triton(EngineAdapter):
    """Triton's HTTP server."""

    name: ClassVar[str] = "triton"
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    lower_priority_first: ClassVar[bool | None] = True
    sends_done: ClassVar[bool] = False
    health_path: ClassVar[str] = "/v2/health/ready"
    version_path: ClassVar[str | None] = "/v2"
    signals: ClassVar[SignalTable] = {
        "waiting": names("nv_inference_pending_request_count"),
        "queue_seconds_total": names("nv_inference_queue_duration_us", scale=1e-6),
    }

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names."""
        _ = headers
        if any(name.startswith("nv_inference_") for name in metric_names):
            return Detection(self.name, "", "metric names nv_inference_*", 3)
        return None

    def dialect(self, path: str) -> Dialect:
        """Its own routes speak its own shape; an OpenAI front end in front of it speaks OpenAI's."""
        return GENERATE if "/v2/" in path else super().dialect(path)

    def additions(self, path: str, body: Mapping[str, Any], request_id: str = "") -> RequestAdditions:
        """Our id as `id` on its own routes, which it echoes and traces."""
        if "/v2/" not in path:
            return super().additions(path, body, request_id)
        if not request_id or "id" in body:
            return RequestAdditions()
        return RequestAdditions({"id": request_id})

    def fault(self, fault: EngineFault, *, status: int | None = None, tokens_seen: bool = False) -> Ending:
        """An error object under status 200 comes from the model itself, which has run: `decode`."""
        ending = super().fault(fault, status=status, tokens_seen=tokens_seen)
        if status is None and ending.reason is Reason.ENGINE_ERROR:
            return msgspec.structs.replace(ending, stage="decode", retry_other=False)
        return ending

    def priority(self, rank: int) -> int:
        """1 is the highest; 0 would mean the default."""
        return rank + 1
