"""Records of a run file as columns, block by block, without an object a record.

A million records as objects take five gigabytes and a minute; as columns they are read like a gateway's segments. What
does not decode so is decoded as records (`run_block.decode_records`), which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import GenericAlias
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tailrace.model.record import RequestRecord
from tailrace.store.run_block import NUMBERS, TEXTS, block_parts, decode_records, flat_stamps
from tailrace.store.table import FIELDS, RecordTable, build_column, default_of
from tailrace.store.timelines import Packed, Timelines

__all__ = ["RunColumns"]

Column = npt.NDArray[Any]

_INFO: Final = {info.name: info for info in msgspec.structs.fields(RequestRecord) if info.name in FIELDS}
_TYPES: Final[dict[str, Any]] = {name: GenericAlias(list, (info.type,)) for name, info in _INFO.items()}
_REQUIRED: Final = frozenset(name for name, info in _INFO.items() if info.required)
_EVENTS: Final = list[list[int]]
_CHUNK: Final = 1 << 16
"""Rows that are laid out together."""


class RunColumns:
    """Takes blocks in their order; `table` at the end."""

    def __init__(self) -> None:
        self.rows = 0
        self._waiting = 0
        self._values: dict[str, list[Any]] = {name: [] for name in FIELDS}
        self._columns: dict[str, list[Column]] = {name: [] for name in FIELDS}
        self._slots: list[Any] = []
        self._packed: list[Packed] = []
        self._known: dict[str, Any] = {}
        """Dicts and lists by what they say: records share theirs."""

    def take(self, payload: bytes, rows: int, numbers: Sequence[str] = NUMBERS, texts: Sequence[str] = TEXTS) -> None:
        """One block. ValueError as of `decode_records`."""
        try:
            fields, slot, packed = self._decoded(payload, rows, numbers, texts)
        except Exception:  # noqa: BLE001  (whatever is wrong with it: decoded as records it is named)
            self._records(decode_records(payload, rows, numbers, texts))
            return
        for name, values in self._values.items():
            found = fields.get(name)
            values.extend([default_of(name)] * rows if found is None else found)
        self._slots.append(slot)
        self._packed.append(packed)
        self._count(rows)

    def _decoded(
        self, payload: bytes, rows: int, numbers: Sequence[str], texts: Sequence[str]
    ) -> tuple[dict[str, list[Any]], Any, Packed]:
        first, second, streams, width, low, high = block_parts(payload)
        fields = {}
        for name, values in (*zip(numbers, first, strict=True), *zip(texts, second, strict=True)):
            if name not in _TYPES:
                continue
            told = msgspec.convert(values, _TYPES[name])
            if name in ("stage_sources", "slow"):
                told = [self._known.setdefault(repr(value), value) for value in told]
            if len(told) not in (1, rows):
                raise ValueError(f"a column of {len(told)} values for {rows} rows")
            fields[name] = told if len(told) == rows else told * rows
        if len(streams[0]) != rows or not fields.keys() >= _REQUIRED:
            raise ValueError("not as many streams as rows")
        lengths = np.array(streams[0], dtype=np.int64)
        there = lengths >= 0
        sizes = lengths[there]
        at = flat_stamps(sizes.tolist(), streams[1], width, low, high)
        kinds, tokens = (_flat(column, sizes) for column in streams[2:4])
        thinned, merged = (column * sizes.size if len(column) == 1 else column for column in streams[4:6])
        packed = Packed(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            at,
            kinds.astype(np.int8),
            tokens.astype(np.int32),
            np.array(thinned, dtype=np.int64),
            {place: said for place, said in enumerate(merged) if said},
        )
        if packed.thinned.size != sizes.size or not (packed.kind == kinds).all() or not (packed.tokens == tokens).all():
            raise ValueError("streams of other lengths, or numbers beyond their types")
        return fields, np.where(there, np.cumsum(there) - 1, -1), packed

    def _records(self, records: list[RequestRecord]) -> None:
        table = RecordTable.from_records(records)
        self._lay()
        for name, columns in self._columns.items():
            columns.append(table.columns[name])
        self._slots.append(table.timelines.slot)
        self._packed.append(table.timelines.held.flat())
        self.rows += len(records)

    def _count(self, rows: int) -> None:
        self.rows += rows
        self._waiting += rows
        if self._waiting >= _CHUNK:
            self._lay()

    def _lay(self) -> None:
        if self._waiting:
            for name, values in self._values.items():
                self._columns[name].append(_column(name, values))
                values.clear()
            self._waiting = 0

    def table(self) -> RecordTable:
        """All blocks that were taken; they are let go."""
        self._lay()
        if not self.rows:
            return RecordTable.empty()
        columns = {}
        for name in FIELDS:
            columns[name] = _stacked(self._columns.pop(name))
        parts = [Timelines(slot, packed) for slot, packed in zip(self._slots, self._packed, strict=True)]
        return RecordTable(columns, Timelines.concat(parts))


def _column(name: str, values: list[Any]) -> Column:
    """One value for all rows takes no memory."""
    if values[0] is values[-1] and values.count(values[0]) == len(values):
        return np.broadcast_to(build_column(name, values[:1]), (len(values),))
    return build_column(name, values)


def _stacked(parts: list[Column]) -> Column:
    if all(part.strides == (0,) for part in parts):
        first = parts[0][0]
        if all(part[0] is first or part[0] == first or (part[0] != part[0] and first != first) for part in parts):  # noqa: PLR0124  (NaN is not itself)
            return np.broadcast_to(parts[0][:1], (sum(part.size for part in parts),))
    return np.concatenate(parts)


def _flat(column: Any, sizes: Any) -> Any:
    """Numbers of each stream, one behind the other. ValueError where a stream has another length than said."""
    lists = msgspec.convert(column, _EVENTS)
    if len(lists) == 1 and sizes.size != 1:
        if not (sizes == len(lists[0])).all():
            raise ValueError("streams of other lengths")
        return np.tile(np.array(lists[0], dtype=np.int64), sizes.size)
    if [len(one) for one in lists] != sizes.tolist():
        raise ValueError("streams of other lengths")
    return np.fromiter(chain.from_iterable(lists), np.int64, count=int(sizes.sum()))
