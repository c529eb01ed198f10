"""Tables in a text, whatever draws them: Markdown pipes, frames of line characters, CSV, TSV, columns set by blanks."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from tailrace.diagnose.readers.cells import read_cell
from tailrace.diagnose.readers.heading import heading, plain, statistic

__all__ = ["MOST_ROWS", "Grid", "Line", "grids_in"]

Line = tuple[int, str]
"""(number of the line, its text)."""

MOST_ROWS: Final = 2000
"""More rows are a table of requests or a log, no comparison of arms; the rest is counted as not understood."""
MOST_COLUMNS: Final = 200
_LONGEST: Final = 1 << 20
"""A longer line is no row. A cell may hold a whole prompt, or a picture as text."""
_BOXES: Final = str.maketrans(
    dict.fromkeys("│┃║|┆┇┊┋", "|")
    | dict.fromkeys("─━═┄┅┈┉╌╍", "-")
    | dict.fromkeys("┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╇╈┡┩┯┷┿╭╮╰╯╔╗╚╝╠╣╦╩╬╒╕╘╛╞╡╤╧╪", "+")
)
_RULE: Final = re.compile(r"^\s*[|+]?\s*:?-{2,}:?\s*([|+]\s*:?-{1,}:?\s*)*[|+]?\s*$|^\s*\+[-=+:]+\+\s*$")
_LONGEST_SET: Final = 2000
_PEEK: Final = 12
_ENDS_IN_NUMBER: Final = re.compile(r"[\d.](?:e[+-]?\d+|%|[a-z]{1,2})?\s*$|nan\s*$", re.IGNORECASE)
_SHORT: Final = 100
_SENTENCE: Final = 80
"""A longer cell is part of a sentence, where nothing quotes it."""
_DIGIT: Final = re.compile(r"\d")
_PIPE: Final = re.compile(r"(?<!\\)\|")


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """A rectangle of texts with a line of headings."""

    kind: str
    """`markdown`, `csv`, `tsv`, `aligned`."""
    header: list[str]
    rows: list[list[str]]
    """Each as wide as the header."""
    lines: list[int]
    """Where each row stands."""
    caption: str = ""
    """The line of text before it, without marks."""
    caption_line: int = 0
    left_out: int = 0
    """Rows beyond `MOST_ROWS`."""
    decimal_comma: bool = False
    """Its separator is a semicolon: commas may be decimal ones."""


def grids_in(lines: Sequence[Line]) -> tuple[list[Grid], list[Line]]:
    """(the tables, the lines that belong to none and are not blank)."""
    csv.field_size_limit(_LONGEST)
    out: list[Grid] = []
    left: list[Line] = []
    at = 0
    while at < len(lines):
        number, text = lines[at]
        if not text.strip():
            at += 1
            continue
        found = _pipes(lines, at) or _separated(lines, at) or _aligned(lines, at)
        if found is None:
            left.append((number, text))
            at += 1
            continue
        grid, at = found
        caption, line = _caption(left, grid.lines[0] if grid.lines else number)
        out.append(msgspec.structs.replace(grid, caption=caption, caption_line=line))
    return out, left


def _caption(left: list[Line], row: int) -> tuple[str, int]:
    if not left or row - left[-1][0] > 6:
        return "", 0
    return re.sub(r"^[\s#>*\-=_]+|[\s*:_=]+$", "", plain(left[-1][1][:400]))[:120], left[-1][0]


def _made(kind: str, header: list[str], body: list[tuple[int, list[str]]], *, comma: bool = False) -> Grid:
    width = len(header)
    kept = body[:MOST_ROWS]
    return Grid(
        kind=kind,
        header=header,
        rows=[[*cells[:width], *[""] * (width - len(cells))] for _, cells in kept],
        lines=[number for number, _ in kept],
        left_out=len(body) - len(kept),
        decimal_comma=comma,
    )


# -- pipes and frames


def _drawn(text: str) -> str:
    text = text.translate(_BOXES) if not text.isascii() else text
    return re.sub(r"^\s*(?:>\s?)+", "", text)


def _is_rule(text: str) -> bool:
    # Blanks at both ends are taken away before: between them the pattern would try each place with each other.
    return ("--" in text or "==" in text) and _RULE.match(text.strip()) is not None


def _pipes(lines: Sequence[Line], at: int) -> tuple[Grid, int] | None:
    text = lines[at][1]
    if len(text) > _LONGEST or not _starts_pipes(lines, at):
        return None
    header: list[str] = []
    body: list[tuple[int, list[str]]] = []
    ruled, place = False, at
    while place < len(lines) and len(lines[place][1]) <= _LONGEST:
        text = _drawn(lines[place][1])
        if _is_rule(text):
            ruled = ruled or bool(header)
        elif "|" not in text:
            break
        else:
            # What stands beyond the headings is not kept: a line of bars has as many cells as letters.
            bare = text.strip().removeprefix("|").removesuffix("|")
            cells = [cell.strip() for cell in _PIPE.split(bare, maxsplit=len(header) or MOST_COLUMNS)]
            if header:
                body.append((lines[place][0], cells))
            elif 2 <= len(cells) <= MOST_COLUMNS:
                header = cells
            else:
                return None
        place += 1
    return (_made("markdown", header, body), place) if body and (ruled or len(body) >= 2) else None


def _starts_pipes(lines: Sequence[Line], at: int) -> bool:
    first = _drawn(lines[at][1]).lstrip()
    if first.startswith(("|", "+-")):
        return True
    following = _drawn(lines[at + 1][1]) if "|" in first and at + 1 < len(lines) else ""
    return "|" in following and _is_rule(following)


# -- separators


def _separated(lines: Sequence[Line], at: int) -> tuple[Grid, int] | None:
    first = lines[at][1]
    following = lines[at + 1][1] if at + 1 < len(lines) else ""
    for mark, kind in (("\t", "tsv"), (";", "csv"), (",", "csv")):
        count = first.count(mark)
        if not 0 < count < MOST_COLUMNS or len(first) > _LONGEST:
            continue
        if abs(following.count(mark) - count) > 1 and '"' not in following:
            continue
        header = _split(first, mark)
        if len(header) < 2 or any(len(cell) > 60 for cell in header) or sum(map(_numeric, header)) > len(header) // 3:
            continue
        # The first rows decide: what is no table must not be read to its end from each of its lines.
        body, place = _body(lines, at + 1, mark, len(header), _PEEK)
        # Below headings of which each is its own, a long cell in quotes is somebody's prompt.
        prompts = bool(body) and len(set(header)) == len(header) and _quotes(following, body[0][1])
        if body and _is_data(header, [cells for _, cells in body], longest=_LONGEST if prompts else _SENTENCE):
            more, place = _body(lines, place, mark, len(header), len(lines))
            return _made(kind, header, body + more, comma=mark == ";"), place
    return None


def _body(
    lines: Sequence[Line], place: int, mark: str, width: int, most: int
) -> tuple[list[tuple[int, list[str]]], int]:
    body: list[tuple[int, list[str]]] = []
    while place < len(lines) and len(body) < most:
        number, text = lines[place]
        if not text.strip() or len(text) > _LONGEST or mark not in text:
            break
        cells = _split(text, mark)
        if len(cells) > width and not any(cells[width:]):
            cells = cells[:width]
        if not (width - 1 <= len(cells) <= width):
            break
        body.append((number, cells))
        place += 1
    return body, place


def _split(text: str, mark: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text.strip("\r\n")], delimiter=mark))]
    except (csv.Error, StopIteration):
        return []


def _numeric(text: str) -> bool:
    # Most words of a text hold no digit: they are asked for each of its lines.
    if _DIGIT.search(text) is None:
        return False
    return _has_value(text) if len(text) <= _SHORT else read_cell(text).value is not None


@lru_cache(maxsize=1 << 13)
def _has_value(text: str) -> bool:
    return read_cell(text).value is not None


def _quotes(text: str, cells: list[str]) -> bool:
    """Whether a row has cells longer than a sentence, and each of them stands in quotes in its text."""
    long = [cell for cell in cells if len(cell) > _SENTENCE]
    plain_text = text.replace('""', '"')
    for cell in long:
        before, found, behind = plain_text.partition(cell)
        if not (found and before.rstrip().endswith('"') and behind.lstrip().startswith('"')):
            return False
    return bool(long)


def _is_data(header: list[str], rows: list[list[str]], *, longest: int) -> bool:
    """Whether the columns hold data: a comma in two sentences is no table, so no cell is longer than `longest`."""
    cells = [cell for row in rows for cell in row if cell]
    numbers = sum(map(_numeric, cells))
    return (
        bool(cells)
        and numbers >= max(1, len(cells) // 4)
        and all(len(cell) <= longest for cell in cells)
        and any(header)
    )


# -- columns set by blanks


def _aligned(lines: Sequence[Line], at: int) -> tuple[Grid, int] | None:
    if at + 1 >= len(lines) or len(lines[at][1]) > _LONGEST_SET:
        return None
    if not _ENDS_IN_NUMBER.search(lines[at + 1][1][-40:]):
        return _frame(lines, at)
    first = lines[at][1].rstrip().removesuffix("\\")
    for split in (_by_gaps, _by_blanks):
        header = split(first)
        if not 1 <= len(header) <= MOST_COLUMNS or sum(map(_numeric, header)) > len(header) // 3:
            continue
        peeked, width, place = _set(lines, at + 1, split, 0, _PEEK)
        if width not in {len(header), len(header) + 1} or width < 2:
            continue
        indexed = width == len(header) + 1
        cells = [cell for _, row in peeked for cell in row[1:]]
        numbers = sum(map(_numeric, cells))
        lonely = not indexed and len(peeked) < 2 and split is _by_blanks
        labels = sum(1 for _, row in peeked if row[0].endswith((":", "=")))
        if labels * 2 > len(peeked):
            continue  # `label: value` rows
        if lonely or numbers < max(1, 0.6 * len(cells)) or not (_told(header) or _told([row[0] for _, row in peeked])):
            continue
        more, _, place = _set(lines, place, split, width, len(lines))
        return _made("aligned", ["", *header] if indexed else header, peeked + more), place
    return None


def _frame(lines: Sequence[Line], at: int) -> tuple[Grid, int] | None:
    """A data frame as it is printed with a named index, or with two levels of columns: the name stands alone in a line
    between headings and rows, the second level under the first.
    """
    header, place = lines[at][1].split(), at + 1
    under = lines[place][1].split()
    if len(under) > 1 and header and len(under) % len(header) == 0 and all(map(_is_level, under)):
        each = len(under) // len(header)
        above = [name for name in header for _ in range(each)]
        header = [_under(name, level) for name, level in zip(above, under, strict=True)]
        place += 1
    index = lines[place][1].split() if place < len(lines) else []
    if len(index) != 1 or not header or place + 1 >= len(lines) or not _told(header):
        return None
    body, width, end = _set(lines, place + 1, _by_blanks, len(header) + 1, len(lines))
    if width != len(header) + 1 or not body or not all(any(map(_numeric, row[1:])) for _, row in body):
        return None
    return _made("aligned", [index[0], *header], body), end


def _is_level(text: str) -> bool:
    return bool(statistic(text)) or text == "count"


def _under(name: str, level: str) -> str:
    return "n" if level == "count" else f"{name} {level}"


def _set(
    lines: Sequence[Line], place: int, split: Callable[[str], list[str]], width: int, most: int
) -> tuple[list[tuple[int, list[str]]], int, int]:
    """(rows, cells in each of them, line behind them). `width` 0: as many as the first row has."""
    body: list[tuple[int, list[str]]] = []
    while place < len(lines) and len(body) < most:
        text = lines[place][1]
        if not text.strip() or len(text) > _LONGEST_SET:
            break
        if body or width or not set(text.strip()) <= set("-= "):
            cells = split(text)
            width = width or len(cells)
            if len(cells) != width:
                break
            body.append((lines[place][0], cells))
        place += 1
    return body, width, place


def _by_gaps(text: str) -> list[str]:
    return [cell for cell in re.split(r"\s{2,}|\t", text.strip()) if cell]


def _by_blanks(text: str) -> list[str]:
    return text.split()


def _told(names: list[str]) -> bool:
    """Whether one of them names a quantity or a statistic: columns of any other program's output are no evidence."""
    return any(statistic(name) or heading(name).quantity for name in names)
