"""Tables with one thing a row, however they are written: CSV with any delimiter, JSON lines, a JSON array.

Cells stay as they were written; what a column means is asked of `headings`, by whoever knows what the table is of.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tailrace.diagnose.observed import Understood
from tailrace.diagnose.readers.headings import decimal_comma, number
from tailrace.diagnose.readers.lenient_json import decode_json
from tailrace.measure.dialect import UNREADABLE

__all__ = ["MOST_COLUMNS", "TableText", "first_headings", "read_table"]

_DELIMITERS: Final = ",;\t|"
MOST_COLUMNS: Final = 1_000
"""Headings; cells under further ones are not kept. A table whose rows have each a key of their own has as many columns
as rows, and cells by the square of them.
"""
MOST_CELLS: Final = 10_000_000
"""With so many no heading is added any more: its cells above are holes, each a word of memory."""
_MOST_EXAMPLES: Final = 5
_SHOWN: Final = 80
_FIELD_LIMIT: Final = 1 << 20
_BRACES: Final = re.compile(r'\\.|["{}]', re.DOTALL)
"""Quotes and braces; a backslash takes what follows it along."""
_RULE: Final = re.compile(r":?-{2,}:?$")
_decode: Final = decode_json


class TableText:
    """Columns of cells, as they were written."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        """Heading -> cells, `None` where a row has none; all of one length."""
        self.lines: list[int] = []
        """Line of each row (1-based)."""
        self.total = 0
        """Rows that were there, read or not."""
        self.not_read: list[str] = []
        """The first few that were not, with their line."""
        self.delimiter = ""
        """Of the cells; empty for JSON."""
        self.left: dict[str, int] = {}
        """Headings beyond what is kept, with the line of their first cell; so many again at most."""

    def __len__(self) -> int:
        return len(self.lines)

    def numbers(self, name: str, unit: str = "", wanted: str = "") -> list[float] | None:
        """A column as numbers (NaN where missing); `None` where some cell is other than a number."""
        cells = self.columns[name]
        comma = decimal_comma(cells, delimiter=self.delimiter) if self.delimiter else False
        out = []
        for cell in cells:
            value = number(cell, unit, wanted, comma=comma)
            if value is None:
                return None
            out.append(value)
        return out

    def texts(self, name: str) -> list[str]:
        """A column as text, empty where missing."""
        return ["" if cell is None else str(cell).strip() for cell in self.columns[name]]

    def refuse(self, line: int, text: str) -> None:
        """A row that is none."""
        self.total += 1
        if len(self.not_read) < _MOST_EXAMPLES:
            self.not_read.append(f"{line}: {text.strip()[:_SHOWN]}")

    def add(self, line: int, row: Iterable[tuple[str, Any]]) -> None:
        """One row more. A heading that was not seen before has no cell in the rows above."""
        self.total += 1
        at = len(self.lines)
        self.lines.append(line)
        for name, cell in row:
            column = self.columns.get(name)
            if column is None:
                if len(self.columns) >= MOST_COLUMNS or at * len(self.columns) >= MOST_CELLS:
                    if len(self.left) < MOST_COLUMNS:
                        self.left.setdefault(name, line)
                    continue
                column = self.columns[name] = []
            if len(column) > at:
                continue  # a heading that stands twice: the first cell is taken
            if len(column) < at:
                column.extend([None] * (at - len(column)))
            column.append(cell)

    def cut(self, source: str, form: str) -> list[Understood]:
        """What is to be said of columns that were left out; nothing where none was."""
        if not self.left:
            return []
        more = " or more" if len(self.left) >= MOST_COLUMNS else ""
        return [
            Understood(
                source=source,
                format=f"{form}: too many columns{more}, give those that matter",
                understood=len(self.columns),
                total=len(self.columns) + len(self.left),
                what="columns",
                examples=[f"{line}: {name[:_SHOWN]}" for name, line in list(self.left.items())[:3]],
            )
        ]

    def filled(self) -> TableText:
        """All columns brought to one length."""
        for column in self.columns.values():
            column.extend([None] * (len(self.lines) - len(column)))
        return self


def first_headings(head: str) -> list[str]:
    """The headings of a table by its beginning: keys of the first object, cells of the first line; empty for neither.

    Blank lines and lines of `#` comment above are skipped; a header may itself begin with `#`.
    """
    start = head.lstrip("\ufeff \t\r\n")
    if start.startswith(("{", "[")):
        found = _first_object(start)
        return [] if found is None else [name for name, _ in _flat(found)]
    for line in start.splitlines():
        if not line.strip():
            continue
        delimiter = _delimiter_of(line)
        if _is_comment(line, delimiter):
            continue
        return _cells(line, delimiter) if delimiter else []
    return []


def read_table(path: Path) -> TableText:
    """Read a file. Rows that are none are counted, with examples; nothing is raised for them."""
    with path.open("rb") as file:
        begin = file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n")
    if begin.startswith(b"["):
        return _array(path)
    if begin.startswith(b"{"):
        return _lines(path)
    return _delimited(path)


def _array(path: Path) -> TableText:
    out = TableText()
    try:
        rows = _decode(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except UNREADABLE as error:
        out.refuse(1, str(error))
        return out
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            out.add(1, _flat(row))
        else:
            out.refuse(1, str(row))
    return out.filled()


def _lines(path: Path) -> TableText:
    out = TableText()
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            text = raw.strip().removeprefix(b"\xef\xbb\xbf").rstrip(b",")
            if not text:
                continue
            objects = _objects(text)
            if not objects:
                out.refuse(line, text[:_SHOWN].decode("utf-8", "replace"))
            for found in objects:
                out.add(line, _flat(found))
    return out.filled()


def _objects(text: bytes) -> list[dict[str, Any]]:
    """The object of a line, or several that were glued together."""
    try:
        found = _decode(text)
    except UNREADABLE:
        if b"}{" not in text:
            return []
        parts = text.replace(b"}{", b"}\n{").split(b"\n")
        out = []
        for part in parts:
            try:
                one = _decode(part)
            except UNREADABLE:
                return []
            if isinstance(one, dict):
                out.append(one)
        return out
    return [found] if isinstance(found, dict) else []


def _delimited(path: Path) -> TableText:
    out = TableText()
    csv.field_size_limit(_FIELD_LIMIT)
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header, line = _header(file)
        if header is None:
            return out
        out.delimiter = _delimiter_of(header)
        if not out.delimiter:
            return out
        names = _cells(header, out.delimiter)
        reader = csv.reader(file, delimiter=out.delimiter, skipinitialspace=True)
        begin = line
        while True:
            try:
                row = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                out.refuse(begin + reader.line_num, str(error))
                continue
            at = begin + reader.line_num
            _row(out, names, row, at)
    return out.filled()


def _row(out: TableText, names: list[str], row: list[str], line: int) -> None:
    # A file that was cut while it was written has holes of NUL bytes.
    cells = _inner([cell.replace("\0", "").strip() for cell in row], out.delimiter)
    if not any(cells) or cells[0].startswith("#") or cells == names:
        return  # blank, a comment, or the header again where files were joined
    if out.delimiter == "|" and all(_RULE.match(cell) for cell in cells):
        return  # the line below the headings of Markdown
    while len(cells) > len(names) and not cells[-1]:
        cells.pop()
    if len(cells) > len(names) or 2 * len(cells) < len(names):
        out.refuse(line, out.delimiter.join(row))
        return
    out.add(line, zip(names, cells, strict=False))


def _header(file: io.TextIOBase) -> tuple[str | None, int]:
    line = 0
    while True:
        text = file.readline(_FIELD_LIMIT)
        line += 1
        if not text:
            return None, line
        plain = text.strip()
        if not plain or _is_comment(plain, _delimiter_of(plain)):
            continue
        return plain, line


def _is_comment(line: str, delimiter: str) -> bool:
    """Whether a line that begins with `#` is prose: a header may begin so too, but its cells are a few words."""
    if not line.lstrip().startswith("#"):
        return False
    return not delimiter or any(len(cell.split()) > 4 for cell in line.split(delimiter))


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return []
    return _inner([cell.strip().lstrip("#").strip() for cell in row], delimiter)


def _inner(cells: list[str], delimiter: str) -> list[str]:
    """The cells between the bars that a row of Markdown begins and ends with."""
    if delimiter == "|" and len(cells) > 2 and not cells[0] and not cells[-1]:
        return cells[1:-1]
    return cells


def _delimiter_of(line: str) -> str:
    """What separates its cells: the most frequent of the candidates; empty where none stands in it."""
    best = max(_DELIMITERS, key=line.count)
    return best if line.count(best) else ""


def _first_object(text: str) -> dict[str, Any] | None:
    """The first JSON object of a text that may be cut behind it."""
    begin = text.find("{")
    end = _closing(text, begin) if begin >= 0 else -1
    if end < 0:
        return None
    try:
        found = _decode(text[begin : end + 1].encode())
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def _closing(text: str, begin: int) -> int:
    """Where the brace at `begin` closes; -1 where it does not."""
    depth = 0
    quoted = False
    for found in _BRACES.finditer(text, begin):
        mark = found[0]
        if mark == '"':
            quoted = not quoted
        elif not quoted and len(mark) == 1:
            depth += 1 if mark == "{" else -1
            if not depth:
                return found.start()
    return -1


def _flat(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Its members; those of an object inside by `outer.inner`, with the unit of the outer one behind both."""
    for name, value in row.items():
        if isinstance(value, dict):
            for inner, cell in value.items():
                yield f"{name}.{inner}", cell
        else:
            yield name, value
