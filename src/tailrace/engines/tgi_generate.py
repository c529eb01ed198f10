"""How TGI's own `/generate` and `/generate_stream` speak: an object a token, the whole text and details in the last."""

from __future__ import annotations

from typing import Final

from tailrace.engines.native import open_frame
from tailrace.engines.said import count
from tailrace.measure.dialect import Dialect, Meaning, Usage
from tailrace.measure.openai import decode_leniently, text_length
from tailrace.model.timeline import EventKind


class TgiGenerate:
    """`token.text` in every frame, `generated_text` in the last; a body has `generated_text` alone. No end marker."""

    name = "tgi.generate"
    ends_with_body = False

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`. Special tokens (end of sequence) are tokens without text."""
        obj = open_frame(event, data)
        if isinstance(obj, Meaning):
            return obj
        token = obj.get("token")
        token = token if isinstance(token, dict) else {}
        length = 0 if token.get("special") is True else text_length(token.get("text"))
        whole = isinstance(obj.get("generated_text"), str)
        return self._meaning(obj, length, whole=whole)

    def _meaning(self, obj: dict[str, object], length: int, *, whole: bool) -> Meaning:
        details = obj.get("details")
        details = details if isinstance(details, dict) else {}
        reason = details.get("finish_reason")
        finish = reason if isinstance(reason, str) else ""
        if whole and not finish:
            # Details come only to those who asked for them; the whole text is the end in any case.
            finish = "stop"
        usage = Usage(count(details, "input_length"), count(details, "generated_tokens"), None, None)
        return Meaning(
            EventKind.CONTENT if length else EventKind.FINISH if whole else EventKind.EMPTY,
            length,
            "",
            finish,
            usage if usage.completion is not None else None,
            usage.completion is not None,
            done=whole,
            has_content=length > 0,
        )

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`. Every event carries an index, so no two are alike."""
        _ = event, data
        return ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`. The root path answers with a list of one."""
        obj = decode_leniently(body)
        if isinstance(obj, list) and len(obj) == 1 and isinstance(obj[0], dict):
            obj = obj[0]
        if not isinstance(obj, dict) or not isinstance(obj.get("generated_text"), str):
            return self.read(None, body)
        meaning = self._meaning(obj, text_length(obj["generated_text"]), whole=True)
        meaning.usage_final = True
        return meaning


TGI_GENERATE: Final[Dialect] = TgiGenerate()
