"""Text in other encodings than UTF-8, told by the mark at its beginning: what Windows and its spreadsheets write."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["encoding_of", "recoded"]

# UTF-32's mark begins with the one of UTF-16, so it is asked before.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(head: bytes) -> str | None:
    """The codec of a text that begins so (`utf-16`, `utf-32`); `None` for UTF-8 and what has no mark."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def recoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8 without a mark, block by block. What is no text in it is replaced, nothing raises."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")
