"""How Triton's `generate` and `generate_stream` speak: one object a response, no end marker."""

from __future__ import annotations

from typing import Final

from tailrace.engines.native import open_frame
from tailrace.measure.dialect import Dialect, Meaning, as_text
from tailrace.measure.fault import find_fault
from tailrace.measure.openai import decode_leniently, text_length
from tailrace.model.timeline import EventKind


class TritonGenerate:
    """`/v2/models/M/generate` and `generate_stream`: one object a response, text in `text_output`."""

    name = "triton.generate"
    ends_with_body = True

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


TRITON_GENERATE: Final[Dialect] = TritonGenerate()
