"""Which parts of a text bear on a question: BM25 over its units, without an index and in one pass.

BM25 (Robertson and Zaragoza, 2009) with k1 = 1.2 and b = 0.75. Only the question's terms are counted, so the cost is
that of finding the words: about 25 ns a byte. No stemming and no stop words: a word that stands in every unit has no
weight by itself.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
_WIDE: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Scripts that write no spaces between words (and Hangul, whose words carry their particles): read by pairs."""
_K1: Final = 1.2
_B: Final = 0.75
MAX_TERMS: Final = 96
_QUESTION_HEAD: Final = 400
_QUESTION_TAIL: Final = 1200
"""Of a long last message the question is where people put it: at the end, or at the start."""


def question_of(text: str) -> frozenset[str]:
    """The terms to look for: those of the text's end and start."""
    if len(text) > _QUESTION_HEAD + _QUESTION_TAIL:
        text = f"{text[-_QUESTION_TAIL:]} {text[:_QUESTION_HEAD]}"
    # The order of a dict, so that which ones a bound leaves out does not depend on hashing.
    return frozenset(list(dict.fromkeys(word for word in words(text) if len(word) > 1))[:MAX_TERMS])


def words(text: str) -> list[str]:
    """The terms of a text: lower-case words; pairs of characters in scripts without spaces."""
    found: list[str] = _WORD.findall(text.lower())
    if text.isascii() or not _WIDE.search(text):
        return found
    out: list[str] = []
    for word in found:
        if word.isascii() or not _WIDE.search(word):
            out.append(word)
        else:
            out.extend(map("".join, itertools.pairwise(word)))
    return out


def scores(units: Sequence[str], question: frozenset[str]) -> list[float]:
    """How much each unit has to do with the question; 0 where no term of it occurs."""
    if not question or not units:
        return [0.0] * len(units)
    found = [Counter([word for word in words(unit) if word in question]) for unit in units]
    frequency: Counter[str] = Counter()
    for terms in found:
        frequency.update(terms.keys())
    n = len(units)
    weight = {term: math.log(1 + (n - df + 0.5) / (df + 0.5)) for term, df in frequency.items()}
    mean = sum(map(len, units)) / n or 1.0
    out = []
    for unit, terms in zip(units, found, strict=True):
        damping = _K1 * (1 - _B + _B * len(unit) / mean)
        out.append(sum(weight[term] * tf * (_K1 + 1) / (tf + damping) for term, tf in terms.items()))
    return out
