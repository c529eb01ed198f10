"""Tables in files: Markdown, CSV, TSV, data frames as they are printed. Several in one file, with text between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.readers.foreign_json import LONGEST_LINE
from tailrace.diagnose.readers.grids import Grid, Line, grids_in
from tailrace.diagnose.readers.heading import plain
from tailrace.diagnose.readers.request_columns import looks_like_requests
from tailrace.diagnose.readers.requests import rows_of_requests
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.table_arms import arms_of
from tailrace.diagnose.readers.table_text import TableText
from tailrace.model.errors import InputError

__all__ = ["MOST_LINES", "arms_in", "numbered_lines", "requests_in"]

_MOST_BYTES: Final = 64 << 20
"""A longer text is a log; what stands behind is counted, not read."""
MOST_LINES: Final = 50_000
_WORD: Final = re.compile(r"\w")
_MOST_TABLES: Final = 500
_FEWEST_REQUESTS: Final = 3


def numbered_lines(path: Path) -> list[Line]:
    """(number, text) of the first `MOST_LINES` lines; one beyond `LONGEST_LINE` is cut there. Bytes that are no UTF-8
    are replaced.
    """
    out: list[Line] = []
    read = 0
    try:
        with path.open("rb") as file:
            while read < _MOST_BYTES and len(out) < MOST_LINES and (raw := file.readline(LONGEST_LINE)):
                read += len(raw)
                raw = raw.replace(b"\0", b"")  # a file that was cut while it was written has holes
                text = raw.decode("utf-8-sig" if not out else "utf-8", "replace").rstrip("\r\n")
                # A lone carriage return ends a line of a progress bar, or of an old Macintosh.
                out.extend((len(out) + 1, part) for part in text.split("\r"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", place=str(path)) from None
    return out


def arms_in(
    lines: Sequence[Line], source: str, known: tuple[list[Grid], list[Line]] | None = None
) -> tuple[list[Arm], list[Line], int]:
    """(the arms of all tables in these lines, the lines that belong to none, rows beyond what is read). `known` is what
    `grids_in` says of them, where it was asked.
    """
    grids, left = known or grids_in(lines)
    context = " ".join(text for _, text in left)[:4000]
    stem = source.rsplit("/", maxsplit=1)[-1].split(".", maxsplit=1)[0]
    arms: list[Arm] = []
    captions: set[int] = set()
    left_out = 0
    for number, grid in enumerate(grids):
        made = arms_of(grid, source, named=stem, context=context) if number < _MOST_TABLES else []
        if not made:
            left += [(line, " | ".join(row)) for line, row in zip(grid.lines, grid.rows, strict=True)]
            continue
        left_out += grid.left_out
        if grid.caption:
            captions.add(grid.caption_line)
            if len(grids) > 1:
                made = [msgspec.structs.replace(arm, keys={"section": grid.caption, **arm.keys}) for arm in made]
        arms += made
    left = [(line, text) for line, text in left if line not in captions and _WORD.search(text)]
    return with_roles(_distinct(arms)) if len(grids) > 1 else _distinct(arms), sorted(left), left_out


def requests_in(
    lines: Sequence[Line], source: str
) -> tuple[Observed, list[Line], tuple[list[Grid], list[Line]] | None]:
    """(tables with one request a row, drawn as people draw tables; the lines that belong to none; all tables of those
    lines and the lines outside, where they are known). What is CSV alone has a reader of its own.
    """
    out, taken = Observed(), set[int]()
    if not any("|" in text or "│" in text for _, text in lines):
        return out, list(lines), None
    known = grids_in(lines)
    for grid in known[0]:
        headings = [plain(name) for name in grid.header]
        if len(grid.rows) < _FEWEST_REQUESTS or grid.kind != "markdown" or not looks_like_requests(headings):
            continue
        table = TableText()
        for line, row in zip(grid.lines, grid.rows, strict=True):
            table.add(line, zip(headings, map(plain, row), strict=True))
        try:
            read = rows_of_requests(table.filled(), source)
        except InputError:
            continue
        out = Observed.joined([out, read])
        first = grid.lines[0]
        rule = {line for line, text in lines if first - 3 < line < first and "|" in text}
        taken |= {*grid.lines, *rule}
    if not taken:
        return out, list(lines), known
    return out, [line for line in lines if line[0] not in taken], None


def _distinct(arms: list[Arm]) -> list[Arm]:
    """Arms of several tables keep their own names: the second `before` is the one of its section."""
    seen: dict[str, int] = {}
    out = []
    for arm in arms:
        name = arm.name
        if name in seen:
            section = arm.keys.get("section")
            name = f"{name} ({section})" if section else name
            if name in seen:
                name = f"{arm.name} ({seen[arm.name] + 1})"
        seen[arm.name] = seen.get(arm.name, 0) + 1
        seen.setdefault(name, 1)
        out.append(arm if name == arm.name else msgspec.structs.replace(arm, name=name))
    return out
