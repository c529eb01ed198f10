"""`RecordTable`: many records as numpy columns, the noun that analyses, figures and queries read.

One column a field of `RequestRecord`, in its order, `timeline` excepted (it is kept beside, one object a row):

* integers and floats that are always there: `int64`, `float64`
* integers and floats that may be absent, and `bool | None`: `float64`, NaN where absent (whole nanoseconds are
  exact up to 2**53 ns, which is 104 days)
* text and enumerations: object arrays of plain `str`
* booleans: `bool`
* dicts and lists (`stage_sources`, `slow`): object arrays

Importing this module loads numpy and msgspec only.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from enum import Enum, StrEnum
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import Timeline
from tailrace.store.timelines import Timelines

__all__ = ["FIELDS", "KINDS", "ColumnKind", "RecordTable", "build_column", "column_of", "default_of", "values_of"]

Column = npt.NDArray[Any]


class ColumnKind(StrEnum):
    """How a field of the record is laid out in a column."""

    INTEGER = "integer"
    FLOAT = "float"
    MAYBE_INTEGER = "maybe_integer"
    MAYBE_FLOAT = "maybe_float"
    BOOLEAN = "boolean"
    MAYBE_BOOLEAN = "maybe_boolean"
    TEXT = "text"
    ENUM = "enum"
    OBJECT = "object"


_PLAIN: Final = {
    int: (ColumnKind.INTEGER, ColumnKind.MAYBE_INTEGER),
    float: (ColumnKind.FLOAT, ColumnKind.MAYBE_FLOAT),
    bool: (ColumnKind.BOOLEAN, ColumnKind.MAYBE_BOOLEAN),
}


def _kind(annotation: Any) -> ColumnKind:
    maybe = False
    if isinstance(annotation, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
        maybe, annotation = True, members[0]
    if annotation in _PLAIN:
        return _PLAIN[annotation][maybe]
    if annotation is str:
        return ColumnKind.TEXT
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ColumnKind.ENUM
    return ColumnKind.OBJECT


_INFO: Final = {info.name: info for info in msgspec.structs.fields(RequestRecord)}
FIELDS: Final[tuple[str, ...]] = tuple(name for name in _INFO if name != "timeline")
"""The columns, in the record's order."""
KINDS: Final[dict[str, ColumnKind]] = {name: _kind(_INFO[name].type) for name in FIELDS}
"""Column -> its layout, derived from the record's annotations, so that a new field needs no second edit."""

_DTYPES: Final[dict[ColumnKind, Any]] = {
    ColumnKind.INTEGER: np.int64,
    ColumnKind.FLOAT: np.float64,
    ColumnKind.MAYBE_INTEGER: np.float64,
    ColumnKind.MAYBE_FLOAT: np.float64,
    ColumnKind.BOOLEAN: np.bool_,
    ColumnKind.MAYBE_BOOLEAN: np.float64,
    ColumnKind.TEXT: object,
    ColumnKind.ENUM: object,
    ColumnKind.OBJECT: object,
}
_LEAST, _MOST = -(2**63), 2**63 - 1
_ENUM_VALUE = attrgetter("_value_")
_row_of = msgspec.structs.astuple
_INDEX: Final = {name: place for place, name in enumerate(_INFO)}
_ENUMS: Final[dict[str, dict[str, Any]]] = {
    "outcome": {member.value: member for member in OutcomeKind},
    "reason": {member.value: member for member in Reason},
}


def default_of(name: str) -> Any:
    """What a record holds in `name` when nobody set it (a fresh object for dicts and lists); `None` if required."""
    info = _INFO[name]
    if info.default_factory is not msgspec.NODEFAULT:
        return info.default_factory()
    return None if info.default is msgspec.NODEFAULT else info.default


def build_column(name: str, values: Sequence[Any]) -> Column:
    """Lay out the values of one field, `None` where absent; enumerations may come as members or as text."""
    kind = KINDS[name]
    dtype = _DTYPES[kind]
    if dtype is not object:
        # numpy turns None into NaN by itself when the type is float64.
        try:
            return np.array(values, dtype=dtype)
        except OverflowError:
            # msgpack holds integers up to 2**64. One such value must not make all its neighbours unreadable.
            return np.array([min(max(value, _LEAST), _MOST) for value in values], dtype=dtype)
    out = np.empty(len(values), dtype=object)
    if kind is ColumnKind.ENUM and len(values) and isinstance(values[0], Enum):
        values = list(map(_ENUM_VALUE, values))
    out[:] = values
    return out


def column_of(name: str, value: Any, n: int) -> Column:
    """The column of one field in which `n` rows hold one value: as `build_column` of a list of them."""
    if _DTYPES[KINDS[name]] is object:
        return build_column(name, [value] * n)
    return np.full(n, build_column(name, [value])[0])


class _Chosen(MutableMapping[str, Column]):
    """Some rows of other columns, each taken when it is first asked for.

    A record has a hundred columns and a question looks at a dozen: a table of a million rows would copy a gigabyte for
    nothing at every `where`.
    """

    __slots__ = ("_taken", "base", "rows")

    def __init__(self, base: Mapping[str, Column], rows: npt.NDArray[np.int64]) -> None:
        if isinstance(base, _Chosen):
            # A choice of a choice looks at the columns themselves: what lies between need not stay alive.
            rows, base = base.rows[rows], base.base
        self.base: Mapping[str, Column] = base
        self._taken: dict[str, Column] = {}
        self.rows: npt.NDArray[np.int64] = rows

    @property
    def everything(self) -> bool:
        """Whether these are all rows in their order: then there is nothing to choose."""
        size = len(next(iter(self.base.values())))
        return self.rows.size == size and bool((self.rows == np.arange(size)).all())

    def __getitem__(self, name: str) -> Column:
        taken = self._taken.get(name)
        if taken is None:
            array = self.base[name]
            constant = array.size > 0 and array.strides == (0,)
            taken = np.broadcast_to(array[:1], self.rows.shape) if constant else array[self.rows]
            self._taken[name] = taken
        return taken

    def __setitem__(self, name: str, column: Column) -> None:
        # Whatever is set must survive a further choice: from here on, everything is taken.
        every = {known: self[known] for known in self.base}
        every[name] = column
        self.base, self._taken = every, {}
        self.rows = np.arange(self.rows.size)

    def __delitem__(self, name: str) -> None:
        every = {known: self[known] for known in self.base if known != name}
        self.base, self._taken = every, {}
        self.rows = np.arange(self.rows.size)

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)

    def __contains__(self, name: object) -> bool:
        return name in self.base


class RecordTable:
    """Columns of equal length, one row a request. Treat the arrays as read-only: views are shared."""

    __slots__ = ("columns", "timelines")

    def __init__(self, columns: Mapping[str, Column], timelines: Sequence[Timeline | None] | None = None) -> None:
        """Take `columns` (every name of `FIELDS`) and the timelines beside them (all absent when not given)."""
        missing = [name for name in FIELDS if name not in columns]
        if missing:
            raise ValueError(f"a RecordTable needs every column of the record; missing: {', '.join(missing)}")
        chosen = isinstance(columns, _Chosen)
        self.columns: MutableMapping[str, Column] = columns if isinstance(columns, _Chosen) else dict(columns)
        """Field name -> array; extra columns are allowed and travel along."""
        rows = len(self.columns[FIELDS[0]])
        uneven = {} if chosen else {name: len(one) for name, one in self.columns.items() if len(one) != rows}
        if uneven:
            raise ValueError(f"columns of different lengths: {rows} rows, but {uneven}")
        self.timelines: Timelines = Timelines.none(rows) if timelines is None else Timelines.of(timelines)
        """One a row, `None` where it was not kept."""
        if len(self.timelines) != rows:
            raise ValueError(f"{len(self.timelines)} timelines for {rows} rows")

    @classmethod
    def from_records(cls, records: Iterable[RequestRecord]) -> RecordTable:
        """Transpose records into columns (about 10 us a record)."""
        rows = list(map(_row_of, records))
        if not rows:
            return cls.empty()
        by_place = list(zip(*rows, strict=True))
        columns = {name: build_column(name, by_place[_INDEX[name]]) for name in FIELDS}
        return cls(columns, by_place[_INDEX["timeline"]])

    @classmethod
    def empty(cls) -> RecordTable:
        """A table of no rows whose columns have their types."""
        return cls({name: np.empty(0, dtype=_DTYPES[KINDS[name]]) for name in FIELDS})

    @classmethod
    def concat(cls, tables: Sequence[RecordTable]) -> RecordTable:
        """Stack tables, rows in the order given; columns that only some of them have are dropped."""
        tables = [table for table in tables if len(table)]
        if not tables:
            return cls.empty()
        if len(tables) == 1:
            return tables[0]
        names = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
        columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in names}
        return cls(columns, Timelines.concat([table.timelines for table in tables]))

    def __len__(self) -> int:
        return len(self.timelines)

    def __repr__(self) -> str:
        kept = int(self.timelines.kept.sum())
        return f"RecordTable({len(self)} rows, {kept} timelines)"

    def column(self, name: str) -> Column:
        """The array of one field; KeyError names the fields that come near."""
        try:
            return self.columns[name]
        except KeyError:
            near = [known for known in self.columns if name.split("_", maxsplit=1)[0] in known]
            raise KeyError(f"no column {name!r}; near it: {', '.join(near) or ', '.join(FIELDS[:8])}") from None

    def ms(self, name: str) -> npt.NDArray[np.float64]:
        """A duration in milliseconds, NaN where absent. `ttft`, `ttft_ns`, `queue.engine` all name a column."""
        column = name.replace(".", "_")
        if not column.endswith("_ns"):
            column += "_ns"
        values: npt.NDArray[np.float64] = self.column(column) / 1e6
        return values

    def lacks(self, name: str) -> bool:
        """Whether no row can have this number: all of them share one NaN, as in a column that nobody wrote. False says
        nothing; it takes no look at the rows.
        """
        values = self.column(name)
        return values.size > 0 and values.strides == (0,) and bool(np.isnan(values[0]))

    def where(self, mask: npt.ArrayLike) -> RecordTable:
        """The rows that a boolean mask keeps, or those at integer positions, in the order given."""
        chosen = np.asarray(mask)
        if chosen.dtype == np.bool_:
            if len(chosen) != len(self):
                raise ValueError(f"a mask of {len(chosen)} for {len(self)} rows")
            chosen = np.flatnonzero(chosen)
        elif chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.size and not -len(self) <= int(chosen.min()) <= int(chosen.max()) < len(self):
            raise IndexError(f"a row that is none of {len(self)}")
        chosen = np.where(chosen < 0, chosen + len(self), chosen)
        columns = _Chosen(self.columns, chosen)
        return RecordTable(columns.base if columns.everything else columns, self.timelines.choose(chosen))

    def sorted_by(self, name: str = "start_unix_ns", *, descending: bool = False) -> RecordTable:
        """The rows ordered by a column, stable; absent values come last in both directions."""
        values = self.column(name)
        if descending and values.dtype != object:
            values = -values.astype(np.float64) if values.dtype != np.int64 else -values
            return self.where(np.argsort(values, kind="stable"))
        order = np.argsort(values, kind="stable")
        return self.where(order[::-1] if descending else order)

    def records(self) -> Iterator[RequestRecord]:
        """The rows back as records; `from_records(table.records())` is the same table."""
        lists = {name: values_of(name, self.columns[name]) for name in FIELDS}
        for place, timeline in enumerate(self.timelines):
            fields = {name: values[place] for name, values in lists.items()}
            yield RequestRecord(**fields, timeline=timeline)


def values_of(name: str, array: Column) -> list[Any]:
    """A column's values as a record holds them: `None` where absent, enumerations as members."""
    kind = KINDS[name]
    if kind is ColumnKind.ENUM:
        members = _ENUMS[name]
        return [members[value] for value in array]
    values: list[Any] = array.tolist()
    if kind is ColumnKind.MAYBE_INTEGER:
        return [None if value != value else int(value) for value in values]  # noqa: PLR0124  (NaN is not itself)
    if kind is ColumnKind.MAYBE_FLOAT:
        return [None if value != value else value for value in values]  # noqa: PLR0124
    if kind is ColumnKind.MAYBE_BOOLEAN:
        return [None if value != value else bool(value) for value in values]  # noqa: PLR0124
    return values
