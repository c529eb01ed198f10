"""The dialect of servers whose answers are of no known shape: every event counts as text, every body as an answer."""

from __future__ import annotations

from typing import Final

from tailrace.measure.dialect import Meaning
from tailrace.measure.fault import find_fault
from tailrace.measure.openai import decode_leniently
from tailrace.model.timeline import EventKind

_END: Final = b"[DONE]"


class AnyEvents:
    """Times what comes without knowing what it says: the first event with data is the first token."""

    name = "any"
    ends_with_body = True

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`."""
        if data.strip() == _END:
            return Meaning(EventKind.DONE, done=True)
        if event == b"error" or b'"error"' in data:
            obj = decode_leniently(data)
            fault = find_fault(obj) if isinstance(obj, dict) else None
            if fault is not None:
                return Meaning(EventKind.ERROR, fault=fault)
        return Meaning(EventKind.CONTENT, len(data)) if data else Meaning(EventKind.EMPTY)

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`. Which part of the data is text is not known."""
        _ = event, data
        return ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`."""
        obj = decode_leniently(body)
        fault = find_fault(obj) if isinstance(obj, dict) else None
        if fault is not None:
            return Meaning(EventKind.ERROR, fault=fault)
        return Meaning(EventKind.FINISH, done=True)
