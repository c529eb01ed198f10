"""Shapes that tables are written in before their columns mean one thing each: headings over two rows, two statistics
in one cell.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tailrace.diagnose.readers.cells import read_cell
from tailrace.diagnose.readers.grids import Grid
from tailrace.diagnose.readers.heading import heading, plain, statistic
from tailrace.diagnose.readers.spread_columns import unspread
from tailrace.diagnose.readers.units import unit_of

__all__ = ["plain_shape"]

_PARTS: Final = re.compile(r"\s*/\s*")
_MOST_PARTS: Final = 6
_RATE: Final = re.compile(
    r"(?<=[a-z])/(?=(?:s|sec|second|min|minute|h|hour|gpu|user|req|request|stream|token|tok)\b)", re.IGNORECASE
)
_PER: Final = "\u2215"
"""Stands for the slash of a unit (`tok/s`) while headings are parted at theirs."""
_BRACKETS: Final = re.compile(r"[(\[]([^)\]]*)[)\]]")


def plain_shape(grid: Grid) -> Grid:
    """The same table with one row of headings and one number a cell."""
    return unspread(_parted(_parted_rows(_one_heading(grid))))


# -- headings over two rows


def _one_heading(grid: Grid) -> Grid:
    """`TTFT | | TPOT |` above `p50 | p99 | p50 | p99`: each column takes the words of both, an empty cell those on its
    left.
    """
    if len(grid.rows) < 2:
        return grid
    second = grid.rows[0]
    if not _is_heading(grid.header, second):
        return grid
    header, above = [], ""
    for upper, lower in zip(grid.header, second, strict=True):
        above = upper if upper.strip() else above if _goes_under(lower) else ""
        header.append(f"{above} {lower}".strip())
    return msgspec.structs.replace(grid, header=header, rows=grid.rows[1:], lines=grid.lines[1:])


def _is_heading(upper: list[str], lower: list[str]) -> bool:
    """No numbers in it, statistics or units in most of what it says, and below quantities."""
    told = [cell for cell in lower if cell.strip()]
    if not told or any(read_cell(cell).value is not None for cell in told):
        return False
    under = [cell for cell in told if _goes_under(cell)]
    return len(under) >= 2 and len(under) >= 0.5 * len(told) and any(heading(cell).quantity for cell in upper)


def _goes_under(text: str) -> bool:
    """It is a statistic, a unit, or both: nothing by itself."""
    words = [word for word in re.split(r"[\s()\[\],_]+", plain(text)) if word]
    known = [word for word in words if statistic(word) or unit_of(word)]
    return bool(words) and len(known) == len(words)


# -- several statistics in one cell


def _parted(grid: Grid) -> Grid:
    """`TTFT p50/p99 (ms)` over `40/81`, `power / cap (W)` over `448 / 450`: a column for each part."""
    widths = [_parts_of(grid, place) for place in range(len(grid.header))]
    if all(len(parts) < 2 for parts in widths):
        return grid
    rows = [
        [part for cell, parts in zip(row, widths, strict=True) for part in _cut(cell, len(parts))] for row in grid.rows
    ]
    return msgspec.structs.replace(grid, header=[name for parts in widths for name in parts], rows=rows)


def _parted_rows(grid: Grid) -> Grid:
    """The same where metrics are rows: `TTFT p50 / p99 (ms) | 120 / 900 | 118 / 890` is a row for each part."""
    rows: list[list[str]] = []
    lines: list[int] = []
    for row, line in zip(grid.rows, grid.lines, strict=True):
        flipped = msgspec.structs.replace(grid, header=[row[0]], rows=[[cell] for cell in row[1:]], lines=[])
        parts = _parts_of(flipped, 0) if "/" in row[0] else []
        if len(parts) < 2:
            rows.append(row)
            lines.append(line)
            continue
        cells = [_cut(cell, len(parts)) for cell in row[1:]]
        rows += [[name, *(cell[place] for cell in cells)] for place, name in enumerate(parts)]
        lines += [line] * len(parts)
    return grid if len(rows) == len(grid.rows) else msgspec.structs.replace(grid, rows=rows, lines=lines)


def _parts_of(grid: Grid, place: int) -> list[str]:
    """The headings of the parts; the heading alone where it stays as it is."""
    whole = grid.header[place]
    cells = [row[place] for row in grid.rows if row[place].strip(" -")]
    bare = _RATE.sub(_PER, plain(whole))
    inside = [found for found in _BRACKETS.findall(bare) if "/" in found and not unit_of(found.strip())]
    text = inside[0] if inside else _BRACKETS.sub(" ", bare)
    parts = [part for part in _PARTS.split(text.strip()) if part]
    if not 2 <= len(parts) <= _MOST_PARTS or not cells:
        return [whole]
    if any(len(_PARTS.split(cell.strip())) != len(parts) for cell in cells):
        return [whole]
    if any(read_cell(part).value is None for cell in cells for part in _PARTS.split(plain(cell))):
        return [whole]
    unit = " ".join(f"({found})" for found in _BRACKETS.findall(bare) if unit_of(found.strip()))
    first = parts[0].split()
    base = " ".join(first[:-1]) if not inside else _BRACKETS.sub(" ", bare).strip()
    last = parts[-1].split()
    tail = ""
    if not inside and statistic(last[0]) and len(last) > 1:
        base, tail = "", " ".join(last[1:])  # `p50/p99 TTFT`
        parts = [*parts[:-1], last[0]]
    out = []
    for number, part in enumerate(parts):
        said = part.split()[-1] if not number and not inside and base and not tail else part
        if not statistic(said) and heading(part).quantity:
            out.append(f"{part} {unit}".strip())
        else:
            out.append(" ".join(filter(None, (base, said, tail, unit))))
    return [name.replace(_PER, "/") for name in out]


def _cut(cell: str, parts: int) -> list[str]:
    if parts < 2:
        return [cell]
    found = _PARTS.split(plain(cell).strip())
    if len(found) != parts:
        return [""] * parts
    unit = re.search(r"[^\d.\s][^\d]*$", found[-1])
    if unit is not None:
        found = [part if re.search(r"[^\d.\s,]", part) else f"{part} {unit[0].strip()}" for part in found]
    return found
