"""Sentences: context that is shown, never evidence. Numbers in them are a claim until they are given as facts."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_code", "is_sentence"]

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_CODE: Final = re.compile(
    r"^\s*(?:import |from \S+ import|def |class |return\b|#include|function |const |let |var |public |private |"
    r"package |<[a-zA-Z!?/][^>]*>|[{}\[\];]+\s*$)|[;{}]\s*$|^\s*[\w.\-]+\s*[:=]\s*[\w./\"'\[{-]*\s*$|=>|::|\(\)|\"\"\""
)
_WORDS: Final = 5
_SPEECH: Final = re.compile(
    r"\b(?:we|i|our|my|is|are|was|were|the|with|when|after|but|have|has|see|seen|it|this|on|in|for|and|to)\b",
    re.IGNORECASE,
)


def is_sentence(text: str) -> bool:
    """Whether a line reads like one: words, some of them the small ones of a language, nothing of a program."""
    if len(text) > 5000:
        return False
    words = _WORD.findall(text)
    # The cheap questions first: most lines are none.
    return (
        len(words) >= _WORDS
        and len("".join(words)) >= 0.6 * len(text.replace(" ", ""))
        and _SPEECH.search(text) is not None
        and _CODE.search(text) is None
    )


def is_code(text: str) -> bool:
    """Whether a line looks like a program's."""
    return len(text) <= 5000 and bool(_CODE.search(text))
