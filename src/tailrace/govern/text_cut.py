"""One over-long text made to fit: its start, its end and what bears on the question, cut where it may be cut.

Boundaries, best first: paragraphs, lines, sentences, words, and where there is none of these, characters. Units are
about a sixteenth of what may stay, so that a cut never costs more than that and their number stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.govern.choice import choose
from tailrace.govern.relevance import scores

Count = Callable[[Sequence[str]], list[float]]
"""Texts -> tokens of each. Of a tokenizer or an estimate; never negative, and more for more text."""

HEAD: Final = 0.2
TAIL: Final = 0.35
"""Shares of what may stay that the start and the end take before anything else: instructions stand at the start, the
question and the newest text at the end. The rest goes to what bears on the question."""
_UNITS: Final = 16
_MOST_UNITS: Final = 1024
"""Of a long text of which very little may stay: units are larger then, up to a third of it."""
_LEAST_UNIT: Final = 24
"""Characters: below this a unit says nothing, and its marker is larger than itself."""
_TRIES: Final = 4
_ENDS: Final = (
    ("\n\n",),
    ("\n",),
    (". ", "! ", "? ", ".\t", "\u3002", "\uff01", "\uff1f", "\u2026 "),
    (" ", "\t"),
)
"""What a unit may end with, best first: a paragraph, a line, a sentence, a word."""


def units_of(text: str, most: int) -> list[str]:
    """The text in pieces of at most `most` characters, cut at the best boundaries; joined they are the text again.

    Each is as long as its best kind of boundary lets it be, so a heading goes with its paragraph and short lines go
    together. No look at single characters: 400 kB take 2 ms at worst.
    """
    out: list[str] = []
    start, length = 0, len(text)
    while length - start > most:
        end = _end(text, start + max(1, most // 4), start + most)
        out.append(text[start:end])
        start = end
    if start < length:
        out.append(text[start:])
    return out


def _end(text: str, low: int, high: int) -> int:
    """Where the unit ends that must end within these bounds."""
    for marks in _ENDS:
        best = max(found + len(mark) if (found := text.rfind(mark, low, high)) >= 0 else -1 for mark in marks)
        if best > 0:
            return best
    return high


def cut_text(text: str, budget: float, count: Count, *, question: frozenset[str], marker: str) -> str | None:
    """`text` within `budget` tokens, a line `marker` where something was left out; `None` where not even that fits.

    What is left of it is never empty or a marker alone.
    """
    whole = count([text])[0]
    if whole <= budget:
        return text
    line = f"\n{marker}\n" if marker else "\n"
    gap = count([line])[0]
    aim = budget
    for _ in range(_TRIES):
        if aim <= gap:
            return None
        stays = len(text) * aim / whole
        most = max(_LEAST_UNIT, int(max(stays / _UNITS, min(stays / 3, len(text) / _MOST_UNITS))))
        units = units_of(text, most)
        sizes = count(units)
        kept = choose(sizes, scores(units, question), aim, gap=gap, head=HEAD, tail=TAIL)
        out = _joined(units, kept, line)
        if out is None:
            return None
        over = count([out])[0] - budget
        if over <= 0:
            return out
        # A tokenizer's counts of pieces need not add up.
        aim -= over + 1
    return None


def _joined(units: list[str], kept: list[bool], line: str) -> str | None:
    if not any(unit.strip() for unit, keep in zip(units, kept, strict=True) if keep):
        return None
    out: list[str] = []
    after_gap = False
    for unit, keep in zip(units, kept, strict=True):
        if keep:
            out.append(unit)
        elif not after_gap:
            # The marker has a line of its own, without empty ones around it.
            if out:
                out[-1] = out[-1].rstrip("\n")
            out.append(line if out else line.lstrip("\n"))
        after_gap = not keep
    return "".join(out)
