"""The dialect of `/v1/embeddings`: one body, whose vectors nobody here needs."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.measure.dialect import UNREADABLE, Meaning, Usage, as_count, as_text
from tailrace.measure.openai import OpenAIChat
from tailrace.model.timeline import EventKind


class _Body(msgspec.Struct, gc=False):
    data: list[msgspec.Raw]
    usage: dict[str, Any] | None = None
    id: Any = None
    error: Any = None
    choices: Any = None


_decode = msgspec.json.Decoder(_Body).decode


class Embeddings:
    """Texts to vectors. A body of vectors is a megabyte of numbers: it is skimmed, not read."""

    name = "openai.embeddings"
    ends_with_body = False

    def __init__(self) -> None:
        self._other = OpenAIChat(self.name)

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`. Nobody streams embeddings; what comes all the same is read as chat."""
        return self._other.read(event, data)

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`."""
        return self._other.plain_text(event, data)

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`. Its tokens are all the prompt's."""
        try:
            whole = _decode(body)
        except UNREADABLE:
            return self._other.read_body(body)
        if whole.error or whole.choices is not None:
            return self._other.read_body(body)
        said = whole.usage or {}
        prompt = as_count(said.get("prompt_tokens", said.get("total_tokens")))
        usage = None if prompt is None else Usage(prompt)
        return Meaning(
            EventKind.USAGE if usage else EventKind.FINISH,
            response_id=as_text(whole.id),
            usage=usage,
            usage_final=usage is not None,
            done=True,
        )
