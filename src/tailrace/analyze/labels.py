"""Text columns as codes: a million rows of a dozen lanes are compared as integers, not as text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailrace.store.table import RecordTable

__all__ = ["among", "codes_of", "known_by", "labelled"]


def codes_of(column: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """(code of each row, the distinct texts in alphabetical order); about 0.05 us a row, nothing for a constant."""
    if column.size and column.strides == (0,):
        return np.zeros(column.size, dtype=np.int64), [str(column[0])]
    values = column.tolist()
    distinct = set(values)
    names = sorted({str(value) for value in distinct})
    if len(names) <= 1:
        return np.zeros(len(values), dtype=np.int64), names
    code = {name: place for place, name in enumerate(names)}
    place = {value: code[str(value)] for value in distinct}
    return np.fromiter(map(place.__getitem__, values), dtype=np.int64, count=len(values)), names


def among(column: NDArray[Any], names: Collection[str]) -> NDArray[np.bool_]:
    """Which rows hold one of these texts."""
    codes, known = codes_of(column)
    if not codes.size:
        return np.zeros(0, dtype=bool)
    mask: NDArray[np.bool_] = np.array([name in names for name in known], dtype=bool)[codes]
    return mask


def known_by(sources: NDArray[Any], stage: str, kind: str) -> NDArray[np.bool_]:
    """Which rows know a stage or part by this kind of source (`reported`, `measured`); `sources` is `stage_sources`.

    Records share their dicts where they say the same: each is looked at once.
    """
    rows = sources.tolist()
    ids = np.fromiter(map(id, rows), dtype=np.int64, count=len(rows))
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    said = np.array([str(rows[place].get(stage, "")).startswith(kind) for place in first.tolist()], dtype=np.bool_)
    return said[which] if said.size else np.zeros(0, dtype=np.bool_)


def labelled(tables: list[RecordTable], name: str) -> tuple[list[NDArray[np.int64]], list[str]]:
    """Codes of one column in several tables, by the same names."""
    found = [codes_of(table.column(name)) for table in tables]
    names = sorted({label for _, labels in found for label in labels})
    place = {label: code for code, label in enumerate(names)}
    return [
        np.array([place[label] for label in labels], dtype=np.int64)[codes] if codes.size else codes
        for codes, labels in found
    ], names
