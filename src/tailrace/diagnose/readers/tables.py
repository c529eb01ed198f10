"""Tables in files: Markdown, CSV, TSV, data frames as they are printed. Several in one file, with text between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Observed, Understood
from tailrace.diagnose.readers.foreign_json import LONGEST_LINE
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.grids import Line, grids_in
from tailrace.diagnose.readers.table_arms import arms_of
from tailrace.model.errors import InputError

__all__ = ["TABLES", "numbered_lines", "observed_tables"]

_MOST_BYTES: Final = 64 << 20
"""A longer text is a log; what stands behind is counted, not read."""
_MOST_TABLES: Final = 500
_SHOWN: Final = 3


def numbered_lines(path: Path) -> list[Line]:
    """(number, text) of every line; a line beyond `LONGEST_LINE` is cut there. Bytes that are no UTF-8 are replaced."""
    out: list[Line] = []
    read = 0
    try:
        with path.open("rb") as file:
            while (raw := file.readline(LONGEST_LINE)) and read < _MOST_BYTES:
                read += len(raw)
                text = raw.decode("utf-8-sig" if not out else "utf-8", "replace").rstrip("\r\n")
                # A lone carriage return ends a line of a progress bar, or of an old Macintosh.
                out.extend((len(out) + 1, part) for part in text.split("\r"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", place=str(path)) from None
    return out


def observed_tables(lines: Sequence[Line], source: str, *, kind: str = "table") -> Observed:
    """The arms of all tables in these lines; other lines are counted as not understood. Nothing raises."""
    grids, left = grids_in(lines)
    context = " ".join(text for _, text in left)[:4000]
    stem = source.rsplit("/", maxsplit=1)[-1].split(".", maxsplit=1)[0]
    arms: list[Arm] = []
    understood = 0
    lost = list(left)
    for grid in grids[:_MOST_TABLES]:
        made = arms_of(grid, source, named=stem, context=context)
        if not made:
            lost += [(line, " | ".join(row)) for line, row in zip(grid.lines, grid.rows, strict=True)]
            continue
        if len(grids) > 1 and grid.caption:
            made = [msgspec.structs.replace(arm, keys={"section": grid.caption, **arm.keys}) for arm in made]
        arms += made
        understood += len(made)
    total = sum(1 for _, text in lines if text.strip())
    captions = {grid.caption for grid in grids if grid.caption}
    lost = [(line, text) for line, text in lost if not _is_caption(text, captions)]
    missed = len(lost) + sum(grid.left_out for grid in grids)
    examples = [f"{line}: {text.strip()[:80]}" for line, text in sorted(lost)[:_SHOWN]]
    return Observed(
        arms=_distinct(arms),
        understood=[Understood(source=source, format=kind, understood=total - missed, total=total, examples=examples)],
    )


def _is_caption(text: str, captions: set[str]) -> bool:
    return any(caption in text for caption in captions) or not re.search(r"\w", text)


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


def _reader(kind: str) -> Format:
    def matches(head: str, name: str) -> bool:
        del name
        lines = [(number, text) for number, text in enumerate(head.splitlines()[:400], start=1)]
        grids, left = grids_in(lines)
        wanted = {"markdown table": {"markdown"}, "csv table": {"csv", "tsv"}, "printed table": {"aligned"}}[kind]
        made = [grid for grid in grids if grid.kind in wanted and arms_of(grid, "")]
        return bool(made) and len(left) <= 3 * sum(len(grid.rows) + 1 for grid in made)

    def read(path: Path, source: str) -> Observed:
        return observed_tables(numbered_lines(path), source, kind=kind)

    return Format(name=kind, matches=matches, read=read)


TABLES: Final = (_reader("markdown table"), _reader("csv table"), _reader("printed table"))
