"""Records of a run file as columns, block by block, without an object a record.

A million records as objects take five gigabytes and a minute; as columns they are read like a gateway's segments. What
does not decode so is decoded as records (`run_block.decode_records`), which says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from operator import ne
from types import GenericAlias
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tailrace.model.record import RequestRecord
from tailrace.store.run_block import NUMBERS, TEXTS, decode_records, unpacked_texts
from tailrace.store.run_streams import Streams, StreamsOfBlock
from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable, build_column, default_of
from tailrace.store.timelines import Timelines

__all__ = ["RunColumns"]

Column = npt.NDArray[Any]

_INFO: Final = {info.name: info for info in msgspec.structs.fields(RequestRecord) if info.name in FIELDS}
_REQUIRED: Final = frozenset(name for name, info in _INFO.items() if info.required)
_LEAST: Final = 1 << 12
"""Rows that a column has room for at least."""
_SHARED: Final = 4
"""A text that stands so often in a block on average is held once: it is a label, not a name."""
_CODES: Final = {
    ColumnKind.INTEGER: "q",
    ColumnKind.MAYBE_INTEGER: "d",
    ColumnKind.FLOAT: "d",
    ColumnKind.MAYBE_FLOAT: "d",
}
"""How numbers are packed straight into their column, which takes two thirds of numpy's time to read a list."""


class _Form(NamedTuple):
    """How the blocks of one file are decoded, with the types of the record: what it says is checked by that."""

    names: tuple[str, ...]
    block: msgspec.msgpack.Decoder[Any]
    texts: msgspec.msgpack.Decoder[Any]
    absent: tuple[str, ...]
    """Columns of a record that are not in the file."""


@lru_cache(maxsize=16)
def _form(numbers: tuple[str, ...], texts: tuple[str, ...]) -> _Form:
    names = (*numbers, *texts)
    absent = tuple(name for name in FIELDS if name not in names)
    if len({*names}) < len(names) or not _REQUIRED.isdisjoint(absent):
        raise ValueError("a column is there twice, or one that every record has is missing")
    return _Form(
        names,
        msgspec.msgpack.Decoder(GenericAlias(tuple, (_columns_of(numbers), bytes, int, bytes, bytes))),
        msgspec.msgpack.Decoder(GenericAlias(tuple, (_columns_of(texts), StreamsOfBlock))),
        absent,
    )


def _columns_of(names: tuple[str, ...]) -> Any:
    lists = [GenericAlias(list, (_INFO[name].type,)) if name in _INFO else Any for name in names]
    return GenericAlias(tuple, tuple(lists))


@lru_cache(maxsize=4096)
def _packer(count: int, code: str) -> Any:
    return struct.Struct(f"={count}{code}").pack_into


class RunColumns:
    """Takes blocks in their order; `table` at the end."""

    def __init__(self, rows: int = 0) -> None:
        """`rows`: how many are expected; it costs no memory until they are there."""
        self.rows = 0
        self._room = max(rows, _LEAST)
        self._alike: dict[str, list[Any]] = {}
        """What all rows say so far, as a list of one, of each column of which this holds."""
        self._columns: dict[str, Column] = {}
        """The others, with room for more rows."""
        self._streams = Streams()
        self._objects: dict[str, Any] = {}
        """Dicts and lists by what they say: records share theirs."""
        self._labels: dict[str, str] = {}

    def take(
        self,
        payload: bytes | memoryview,
        rows: int,
        numbers: Sequence[str] = NUMBERS,
        texts: Sequence[str] = TEXTS,
    ) -> None:
        """One block. ValueError as of `decode_records`."""
        try:
            form = _form(tuple(numbers), tuple(texts))
            first, packed, width, low, high = form.block.decode(payload)
            second, streams = form.texts.decode(unpacked_texts(packed))
            fresh = self._fresh(form, (*first, *second), rows)
            self._streams.take(rows, streams, width, low, high)
        except Exception:  # noqa: BLE001  (whatever is wrong with it: decoded as records it is named)
            if records := decode_records(payload, rows, numbers, texts):
                self._records(records)
            return
        self._put(fresh, rows)

    def _fresh(self, form: _Form, columns: Sequence[Any], rows: int) -> dict[str, list[Any]]:
        """The columns that say something else than all rows before. Most of a record's say one thing in a whole file,
        so that this is the only look at them. ValueError for one of another length.
        """
        alike = self._alike
        differs = compress(zip(form.names, columns, strict=True), map(ne, columns, map(alike.get, form.names)))
        fresh = {name: values for name, values in differs if name in _INFO}
        for values in fresh.values():
            if len(values) not in (1, rows):
                raise ValueError(f"a column of {len(values)} values for {rows} rows")
        for name in form.absent:
            if alike.get(name) != (default := [default_of(name)]):
                fresh[name] = default
        return fresh

    def _records(self, records: list[RequestRecord]) -> None:
        self._streams.take_lines(Timelines.of(record.timeline for record in records))
        fields = {name: [getattr(record, name) for record in records] for name in FIELDS}
        self._put({name: values[:1] if _same(values) else values for name, values in fields.items()}, len(records))

    def _put(self, fields: dict[str, list[Any]], rows: int) -> None:
        """Columns of one value for all rows, or of one for each; those that are not given are as before."""
        if not rows:
            return
        end = self.rows + rows
        if end > self._room:
            self._grow(end)
        for name, told in fields.items():
            kind = KINDS[name]
            values = self._shared(kind, told)
            if len(values) == 1 and name not in self._columns:
                held = self._alike.setdefault(name, values)
                if held == values:
                    continue
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = self._opened(name)
            _write(column[self.rows : end], name, kind, values)
        self.rows = end

    def _shared(self, kind: ColumnKind, values: list[Any]) -> list[Any]:
        """What says the same as one object: a million labels take no memory then, and are told apart at once."""
        if kind is ColumnKind.OBJECT:
            return [self._objects.setdefault(repr(value), value) for value in values]
        if kind is ColumnKind.TEXT and _SHARED * len(set(values)) <= len(values):
            return list(map(self._labels.setdefault, values, values))
        return values

    def _opened(self, name: str) -> Column:
        """A column that begins to vary: behind rows that all said one thing, where there are any."""
        out: Column = np.empty(self._room, dtype=build_column(name, []).dtype)
        if self.rows:
            out[: self.rows] = build_column(name, self._alike.pop(name))
        return out

    def _grow(self, rows: int) -> None:
        self._room = max(rows, 2 * self._room)
        for name, column in self._columns.items():
            wider = np.empty(self._room, dtype=column.dtype)
            wider[: self.rows] = column[: self.rows]
            self._columns[name] = wider

    def table(self) -> RecordTable:
        """All blocks that were taken; they are let go."""
        if not self.rows:
            return RecordTable.empty()
        columns = {
            name: self._columns.pop(name)[: self.rows]
            if name in self._columns
            else np.broadcast_to(build_column(name, self._alike[name]), (self.rows,))
            for name in FIELDS
        }
        return RecordTable(columns, self._streams.timelines())


def _same(values: list[Any]) -> bool:
    return values.count(values[0]) == len(values)


def _write(place: Column, name: str, kind: ColumnKind, values: list[Any]) -> None:
    """Write one value for all rows of `place`, or one for each, laid out as by `build_column`."""
    code = _CODES.get(kind)
    if code is not None and len(values) == place.size:
        try:
            _packer(len(values), code)(place, 0, *values)
        except struct.error:  # a value is absent, or beyond the column's type
            pass
        else:
            return
    if kind is ColumnKind.TEXT:
        place[:] = values
        return
    place[:] = build_column(name, values)
