"""JSON lines that are no requests, series or log of a known kind: a row of somebody's own table each."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

from tailrace.diagnose.observed import Observed, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.grids import Grid
from tailrace.diagnose.readers.heading import heading
from tailrace.diagnose.readers.json_numbers import observed_numbers
from tailrace.diagnose.readers.json_objects import Objects
from tailrace.diagnose.readers.lenient_json import decode_json
from tailrace.diagnose.readers.table_arms import arms_of
from tailrace.measure.dialect import UNREADABLE

__all__ = ["JSON_ROWS"]

MOST_ROWS: Final = 500
"""Nobody writes more by hand; what is longer is a log of no known kind, of which the rest is counted."""
_FORM: Final = "rows in JSON lines"
_LABELS: Final = ("name", "label", "arm", "path", "run", "case", "variant", "config", "id", "req", "request_id")


def _read(path: Path, source: str) -> Observed:
    objects = Objects(path, source, _FORM)
    rows = list(itertools.islice(objects, MOST_ROWS))
    rest = sum(1 for _ in objects) if len(rows) == MOST_ROWS else 0
    told = objects.understood()
    understood = [
        Understood(
            source=source, format=_FORM, understood=told.understood - rest, total=told.total, examples=told.examples
        )
    ]  # fmt: skip
    if any(isinstance(value, (dict, list)) for _, row in rows for value in row.values()):
        found = observed_numbers([row for _, row in rows], source)
        return Observed(arms=found.arms, understood=understood)
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    names.sort(key=lambda name: _LABELS.index(name) if name in _LABELS else len(_LABELS))
    grid = Grid(
        kind="csv",
        header=names,
        rows=[[_cell(row.get(name)) for name in names] for _, row in rows],
        lines=[number for number, _ in rows],
    )
    stem = source.rsplit("/", maxsplit=1)[-1].split(".", maxsplit=1)[0]
    return Observed(arms=arms_of(grid, source, named=stem), understood=understood)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matches(head: str, name: str) -> bool:
    del name
    lines = [line.strip() for line in head.splitlines() if line.strip()][:2]
    if not lines or not all(line.startswith("{") and line.endswith("}") for line in lines):
        return False
    try:
        found = [decode_json(line.encode()) for line in lines]
    except UNREADABLE:
        return False
    known = {key for one in found if isinstance(one, dict) for key in one if heading(str(key)).quantity}
    return len(found) > 1 and bool(known)


JSON_ROWS: Final = Format(name=_FORM, matches=_matches, read=_read)
