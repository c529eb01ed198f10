"""Tables in HTML, as issues and wikis hold them, as rows of pipes: one reader of tables is enough."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final

__all__ = ["with_pipes"]

Line = tuple[int, str]

_ROW: Final = re.compile(
    r"<tr\b[^>]{0,2000}>(.{0,1000000}?)(?:</tr\s*>|(?=<tr\b)|(?=</table))", re.IGNORECASE | re.DOTALL
)
_CELL: Final = re.compile(r"<t[dh]\b[^>]{0,2000}>", re.IGNORECASE)
_TAG: Final = re.compile(r"<[^<>]{0,2000}>")
_TABLE: Final = re.compile(r"</?table\b", re.IGNORECASE)
_HAS: Final = re.compile(r"<tr\b", re.IGNORECASE)
MOST: Final = 4 << 20
"""Characters that are looked at from the first row on."""


def with_pipes(lines: Sequence[Line]) -> list[Line]:
    """The lines with every `<tr>` as `| a | b |` at the line where it begins; all others as they are."""
    first = next((place for place, (_, text) in enumerate(lines) if _HAS.search(text)), None)
    if first is None:
        return list(lines)
    kept = list(lines[:first])
    out: list[Line] = []
    starts: list[tuple[int, int]] = []
    length = 0
    for number, text in lines[first:]:
        if length > MOST:
            break
        starts.append((length, number))
        length += len(text) + 1
    joined = "\n".join(text for _, text in lines[first : first + len(starts)])
    at, header = 0, True
    place = 0
    for found in _ROW.finditer(joined):
        between = joined[at : found.start()]
        header = header or _TABLE.search(between) is not None
        place = _keep(out, joined, starts, at, found.start(), place)
        cells = [_words(part) for part in _CELL.split(found[1])[1:]]
        number = starts[place][1]
        out.append((number, f"| {' | '.join(cells)} |"))
        if header and cells:
            out.append((number, "|" + "---|" * len(cells)))
            header = False
        at = found.end()
    place = _keep(out, joined, starts, at, len(joined), place)
    return [*kept, *out, *lines[first + len(starts) :]]


def _keep(out: list[Line], joined: str, starts: list[tuple[int, int]], at: int, end: int, place: int) -> int:
    """Add the lines of joined[at:end] as they are; the place in `starts` of the line in which `end` lies."""
    for text in joined[at:end].split("\n"):
        while place + 1 < len(starts) and starts[place + 1][0] <= at:
            place += 1
        if _TAG.sub("", text).strip():
            out.append((starts[place][1], text))
        at += len(text) + 1
    while place + 1 < len(starts) and starts[place + 1][0] <= end:
        place += 1
    return place


def _words(cell: str) -> str:
    return " ".join(html.unescape(_TAG.sub(" ", cell)).split()).replace("|", "/")
