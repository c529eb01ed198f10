"""Text columns as codes: a million rows of a dozen lanes are compared as integers, not as text."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tailrace.store.table import RecordTable

__all__ = ["among", "codes_of", "known_by", "labelled"]

Answer = TypeVar("Answer")

_MANY: Final = 50_000
"""Rows from which on what is known of a column is remembered while it lives: a dozen rules ask for the same."""
_LOOKED_AT: Final = 4096
_FEW: Final = 256
"""More objects than this in a sample of a column, and its rows share none."""
_known: Final[dict[tuple[str, int], tuple[weakref.ref[NDArray[Any]], Any]]] = {}


def _once(what: str, column: NDArray[Any], compute: Callable[[NDArray[Any]], Answer]) -> Answer:
    """`compute(column)`, once for each large column: the columns of a table are not changed."""
    if column.size < _MANY:
        return compute(column)
    key = (what, id(column))
    there = _known.get(key)
    if there is not None and there[0]() is column:
        found: Answer = there[1]
        return found
    answer = compute(column)
    _known[key] = (weakref.ref(column, lambda _: _known.pop(key, None)), answer)
    return answer


def codes_of(column: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """(code of each row, the distinct texts in alphabetical order); about 0.05 us a row, nothing for a constant."""
    if column.size and column.strides == (0,):
        return np.broadcast_to(np.int64(0), column.shape), [str(column[0])]
    codes, names = _once("codes", column, _codes)
    return codes, list(names)


def _codes(column: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    shared = _shared(column)
    if shared is not None:
        said = [str(value) for value in shared[0]]
        names = sorted(set(said))
        order = {name: place for place, name in enumerate(names)}
        codes: NDArray[np.int64] = np.array([order[name] for name in said], dtype=np.int64)[shared[1]]
        codes.flags.writeable = False
        return codes, names
    values = column.tolist()
    distinct = set(values)
    names = sorted({str(value) for value in distinct})
    if len(names) <= 1:
        return np.zeros(len(values), dtype=np.int64), names
    code = {name: place for place, name in enumerate(names)}
    place = {value: code[str(value)] for value in distinct}
    codes = np.fromiter(map(place.__getitem__, values), dtype=np.int64, count=len(values))
    codes.flags.writeable = False
    return codes, names


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
    if sources.size and sources.strides == (0,):
        return np.full(sources.size, _says(sources[0], stage, kind))
    distinct, which = _once("objects", sources, _objects)
    said = np.array([_says(one, stage, kind) for one in distinct], dtype=np.bool_)
    return said[which] if said.size else np.zeros(0, dtype=np.bool_)


def _says(source: Any, stage: str, kind: str) -> bool:
    return str(source.get(stage, "")).startswith(kind)


def _shared(column: NDArray[Any]) -> tuple[list[Any], NDArray[np.int64]] | None:
    """(the objects that the rows share, which of them each row holds); `None` where most rows have one of their own.

    Readers keep one object for all rows that say the same. Rows of one object are told apart by where it lies, which
    takes a fifth of the time of asking each row's text.
    """
    if column.dtype != object or not column.flags.c_contiguous:
        return None
    if not column.size:
        # Without a request nothing is counted; the first count loads numpy's masked arrays.
        return [], np.zeros(0, dtype=np.int64)
    at = np.frombuffer(column, dtype=np.intp)
    if np.unique(at[:: max(1, at.size // _LOOKED_AT)]).size > _FEW:
        return None
    places = np.unique(at)
    if places.size > _FEW:
        return None
    which = np.searchsorted(places, at)
    first = np.zeros(places.size, dtype=np.int64)
    first[which[::-1]] = np.arange(at.size - 1, -1, -1)
    return column[first].tolist(), which


def _objects(column: NDArray[Any]) -> tuple[list[Any], NDArray[Any]]:
    """(the distinct objects, which of them each row holds)."""
    shared = _shared(column)
    if shared is not None:
        return shared[0], shared[1].astype(np.min_scalar_type(max(len(shared[0]), 1)))
    rows = column.tolist()
    ids = np.fromiter(map(id, rows), dtype=np.int64, count=len(rows))
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    return [rows[place] for place in first.tolist()], which.astype(np.min_scalar_type(max(first.size, 1)))


def labelled(tables: list[RecordTable], name: str) -> tuple[list[NDArray[np.int64]], list[str]]:
    """Codes of one column in several tables, by the same names."""
    found = [codes_of(table.column(name)) for table in tables]
    names = sorted({label for _, labels in found for label in labels})
    place = {label: code for code, label in enumerate(names)}
    return [
        np.array([place[label] for label in labels], dtype=np.int64)[codes] if codes.size else codes
        for codes, labels in found
    ], names
