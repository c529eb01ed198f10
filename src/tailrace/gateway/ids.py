"""Random ids, from the system's randomness a page at a time: a system call an id would be a third of its cost."""

from __future__ import annotations

from os import urandom
from typing import Final

_PAGE: Final = 4096


class RandomHex:
    """`hexes(n)`: 2n random hexadecimal digits.

    One per process: a process that is forked off would draw the same ids, so nothing here forks.
    """

    __slots__ = ("_at", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0

    def __call__(self, size: int) -> str:
        """The digits of `size` random bytes, at most 1024."""
        at = self._at
        end = at + 2 * size
        if end > len(self._text):
            self._text = urandom(_PAGE).hex()
            at, end = 0, 2 * size
        self._at = end
        return self._text[at:end]


random_hex: Final = RandomHex()
