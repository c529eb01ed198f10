"""How large a text is, in what a token count can be estimated from without a tokenizer."""

from __future__ import annotations

from typing import Final

import msgspec

_NOT_WIDE: Final = bytes(byte for byte in range(256) if byte not in {0xE0, 0xE1, *range(0xE3, 0xF0)})
"""Every byte but those that begin a character of three bytes outside U+2000-2FFF (typographic marks, arrows)."""


class TextSize(msgspec.Struct, frozen=True):
    """Bytes by class of script, and what else makes tokens.

    `wide` characters take three bytes in UTF-8: Chinese, Japanese, Korean, also Thai and the scripts of India. They are
    near one token each where four bytes of English make one, so that one ratio for both would be wrong for both.
    """

    narrow: int = 0
    """Bytes of all other text: Latin, Cyrillic, Greek, code, emoji."""
    wide: int = 0
    """Bytes of wide characters."""
    messages: int = 0
    """Messages of a chat; its template adds tokens to each. 0 for a plain prompt."""
    ids: int = 0
    """Token ids that the client sent itself: exact."""
    unseen: int = 0
    """Images, audio, files: parts whose tokens no text tells."""

    @property
    def text(self) -> int:
        """Bytes of text."""
        return self.narrow + self.wide


NO_TEXT: Final = TextSize()


def measure(text: str) -> tuple[int, int]:
    """(narrow, wide) bytes of a text in UTF-8. Two passes of the C library over text that is not all ASCII.

    >>> measure("hello, 世界")
    (7, 6)
    """
    if text.isascii():
        return len(text), 0
    data = text.encode("utf-8", "surrogatepass")
    wide = 3 * len(data.translate(None, _NOT_WIDE))
    return len(data) - wide, wide
