"""How SGLang's own `/generate` speaks."""

from __future__ import annotations

from typing import Final

from tailrace.engines.native import open_frame, or_done
from tailrace.engines.said import count
from tailrace.measure.dialect import Dialect, Meaning, Usage, as_text
from tailrace.measure.fault import abort_fault
from tailrace.measure.openai import text_length
from tailrace.model.timeline import EventKind


class SglangNative:
    """`/generate`: the whole text so far in every frame, `meta_info` with a running count."""

    name = "sglang.generate"
    ends_with_body = False

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`. Text is cumulative: its length is that of all text so far."""
        obj = open_frame(event, data)
        if isinstance(obj, Meaning):
            return or_done(obj, data)
        meta = obj.get("meta_info")
        meta = meta if isinstance(meta, dict) else {}
        reason = meta.get("finish_reason")
        aborted = abort_fault(reason)
        finish = (
            str(reason.get("type") or "") if isinstance(reason, dict) else reason if isinstance(reason, str) else ""
        )
        length = 0 if aborted is not None or finish == "abort" else text_length(obj.get("text"))
        usage = Usage(
            count(meta, "prompt_tokens"),
            count(meta, "completion_tokens"),
            count(meta, "cached_tokens"),
            count(meta, "reasoning_tokens"),
        )
        return Meaning(
            EventKind.CONTENT if length else EventKind.FINISH if finish else EventKind.EMPTY,
            length,
            as_text(meta.get("id")),
            finish,
            usage if usage.completion is not None else None,
            bool(finish),
            aborted,
            {**meta, "_field": "meta_info"} if finish else None,
            has_content=length > 0,
        )

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`. Every event carries a running count, so no two are alike."""
        _ = event, data
        return ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`."""
        meaning = self.read(None, body)
        if meaning.kind is not EventKind.ERROR and meaning.fault is None:
            meaning.done = meaning.usage_final = True
        return meaning


SGLANG_GENERATE: Final[Dialect] = SglangNative()
