"""What servers and files say, as a terminal may have it."""

from __future__ import annotations

import unicodedata
from typing import Final

_NOT_SHOWN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control and format characters, lone halves of pairs, separators of lines."""

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""`text` without anything that moves a cursor, sets a colour or turns the direction of reading.

    Control characters other than tab and line end are written out (`\x1b`), as is what no encoding can hold.
    """
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if c not in "\t\n" and unicodedata.category(c) in _NOT_SHOWN else c for c in text)
