"""What servers and files say, as a terminal may have it."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""`text` without anything that moves a cursor, sets a colour or turns the direction of reading.

    Control characters other than tab and line end are written out (`\x1b`), as is what no encoding can hold.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\t\n" else ascii(c)[1:-1] for c in text)
