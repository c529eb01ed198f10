"""Text columns as codes: a million rows of a dozen lanes are compared as integers, not as text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailrace.store.table import RecordTable

__all__ = ["codes_of", "labelled"]


def codes_of(column: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """(code of each row, the distinct texts in alphabetical order); about 0.1 us a row."""
    values = column.tolist()
    names = sorted({str(value) for value in set(values)})
    if len(names) == 1:
        return np.zeros(len(values), dtype=np.int64), names
    place = {name: code for code, name in enumerate(names)}
    return np.fromiter((place[str(value)] for value in values), dtype=np.int64, count=len(values)), names


def labelled(tables: list[RecordTable], name: str) -> tuple[list[NDArray[np.int64]], list[str]]:
    """Codes of one column in several tables, by the same names."""
    found = [codes_of(table.column(name)) for table in tables]
    names = sorted({label for _, labels in found for label in labels})
    place = {label: code for code, label in enumerate(names)}
    return [
        np.array([place[label] for label in labels], dtype=np.int64)[codes] if codes.size else codes
        for codes, labels in found
    ], names
