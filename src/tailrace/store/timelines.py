"""`Timelines`: the timelines of a table's rows as flat arrays, each made into an object when somebody looks at it.

A million records of which a tenth keeps its timeline hold ten million events. As lists of numbers these are gigabytes
and minutes of the garbage collector; here an event is thirteen bytes, and a question that is about all of them
(`events`) is answered without an object.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from tailrace.model.timeline import Timeline

__all__ = ["Events", "Packed", "Timelines"]

Ints = npt.NDArray[np.int64]
BLOCK: Final = 1 << 20
"""Events that are looked at together."""


class Events(NamedTuple):
    """The events of some rows' timelines, one after the other. Rows without a timeline have none."""

    rows: Ints
    """The rows (of those asked for) that have a timeline, in the order asked for."""
    sizes: Ints
    """Events of each of them."""
    at_ns: npt.NDArray[Any]
    kind: npt.NDArray[Any]
    tokens: npt.NDArray[Any]
    thinned: Ints
    """Of each of `rows`, the token events that were merged away."""
    merged: npt.NDArray[np.bool_]
    """Of each of `rows`, whether its timeline says what was merged into which entry."""


class Packed(NamedTuple):
    """Many timelines as flat arrays: `first` has the place of each one's first event, and the end of the last."""

    first: Ints
    at_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[Any]
    tokens: npt.NDArray[Any]
    thinned: Ints
    merged: dict[int, list[int]]
    """Timeline -> what `Timeline.merged` says, of those that say it."""

    @classmethod
    def of(cls, lines: Sequence[Timeline]) -> Packed:
        """The same timelines, flat."""
        sizes = np.array([len(line.at_ns) for line in lines], dtype=np.int64)
        total = int(sizes.sum())

        def flat(name: str, dtype: Any) -> npt.NDArray[Any]:
            wide = np.fromiter(chain.from_iterable(getattr(line, name) for line in lines), np.int64, count=total)
            # A file from elsewhere may say anything; it shall not be refused here, nor come back as another number.
            narrow = wide.astype(dtype)
            return narrow if (narrow == wide).all() else wide

        return cls(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            flat("at_ns", np.int64),
            flat("kind", np.int8),
            flat("tokens", np.int32),
            np.array([line.thinned for line in lines], dtype=np.int64),
            {place: line.merged for place, line in enumerate(lines) if line.merged},
        )

    @property
    def size(self) -> int:
        """How many timelines."""
        return self.first.size - 1

    def line(self, place: int) -> Timeline:
        """One of them as an object."""
        begin, end = int(self.first[place]), int(self.first[place + 1])
        return Timeline(
            at_ns=self.at_ns[begin:end].tolist(),
            kind=self.kind[begin:end].tolist(),
            tokens=self.tokens[begin:end].tolist(),
            thinned=int(self.thinned[place]),
            merged=self.merged.get(place, []),
        )


def _events(rows: Ints, flat: Packed, chosen: Ints) -> Events:
    """The events of the timelines at `chosen`, which are those of `rows`."""
    sizes = flat.first[chosen + 1] - flat.first[chosen]
    says = np.isin(chosen, np.fromiter(flat.merged, np.int64, count=len(flat.merged)))
    if chosen.size and (np.diff(chosen) == 1).all():
        # One behind the other: nothing is copied.
        place: Any = slice(int(flat.first[chosen[0]]), int(flat.first[chosen[-1] + 1]))
    else:
        shift = flat.first[chosen] - (np.cumsum(sizes) - sizes)
        place = np.arange(int(sizes.sum())) + np.repeat(shift, sizes)
    return Events(rows, sizes, flat.at_ns[place], flat.kind[place], flat.tokens[place], flat.thinned[chosen], says)


class _Held:
    """Timelines that several tables share, as they came; flat once somebody asked for all events."""

    __slots__ = ("lines", "packed")

    def __init__(self, *, lines: Sequence[Timeline] | None = None, packed: Packed | None = None) -> None:
        self.lines = lines
        self.packed = packed

    @property
    def size(self) -> int:
        if self.lines is not None:
            return len(self.lines)
        return self.packed.size if self.packed is not None else 0

    def flat(self) -> Packed:
        if self.packed is None:
            self.packed = Packed.of(self.lines or [])
        return self.packed

    def line(self, place: int) -> Timeline:
        if self.lines is not None:
            return self.lines[place]
        return self.flat().line(place)


class Timelines(Sequence[Timeline | None]):
    """One a row, `None` where it was not kept. Of objects, or of flat arrays; compares equal to a list of the same."""

    __slots__ = ("held", "slot")

    def __init__(self, slot: Ints, held: _Held | Packed) -> None:
        """`slot`: for each row the place of its timeline in `held`, -1 where there is none."""
        self.slot = slot
        self.held = held if isinstance(held, _Held) else _Held(packed=held)

    @classmethod
    def of(cls, lines: Iterable[Timeline | None]) -> Timelines:
        """From one object a row."""
        if isinstance(lines, Timelines):
            return lines
        listed = list(lines)
        there = np.fromiter((line is not None for line in listed), dtype=np.bool_, count=len(listed))
        slot = np.where(there, np.cumsum(there) - 1, -1).astype(np.int64)
        return cls(slot, _Held(lines=[line for line in listed if line is not None]))

    @classmethod
    def none(cls, rows: int) -> Timelines:
        """No timeline was kept, or none was asked for."""
        return cls(np.broadcast_to(np.int64(-1), (rows,)), _Held(lines=[]))

    @classmethod
    def concat(cls, parts: Sequence[Timelines]) -> Timelines:
        """Those of several tables, one after the other."""
        some = [part for part in parts if part.kept.any()]
        if len(some) <= 1:
            slots = [part.slot if part.kept.any() else np.full(len(part), -1, dtype=np.int64) for part in parts]
            return cls(np.concatenate([np.empty(0, dtype=np.int64), *slots]), some[0].held if some else _Held(lines=[]))
        if all(part.held.lines is not None for part in parts):
            return cls.of(chain.from_iterable(parts))
        flat = [part.held.flat() for part in parts]
        base = np.cumsum([0, *(one.size for one in flat)]).tolist()
        events = np.cumsum([0, *(one.at_ns.size for one in flat)]).tolist()
        packed = Packed(
            np.concatenate([[0], *(one.first[1:] + start for one, start in zip(flat, events, strict=False))]),
            np.concatenate([one.at_ns for one in flat]),
            np.concatenate([one.kind for one in flat]),
            np.concatenate([one.tokens for one in flat]),
            np.concatenate([one.thinned for one in flat]),
            {place + start: said for one, start in zip(flat, base, strict=False) for place, said in one.merged.items()},
        )
        moved = [np.where(part.slot < 0, -1, part.slot + start) for part, start in zip(parts, base, strict=False)]
        return cls(np.concatenate(moved), packed)

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Which rows have a timeline."""
        there: npt.NDArray[np.bool_] = self.slot >= 0
        return there

    def choose(self, rows: Ints) -> Timelines:
        """Those of some rows, in the order given. Nothing is copied but places."""
        return Timelines(self.slot[rows], self.held)

    def events(self, rows: Ints | None = None) -> Events:
        """The events of all rows, or of some in the order given."""
        rows, flat, chosen = self._laid_out(np.arange(len(self)) if rows is None else rows)
        return _events(rows, flat, chosen)

    def blocks(self, rows: Ints, most: int = BLOCK) -> Iterator[Events]:
        """The same in blocks of whole timelines with about `most` events each: what is computed by timeline needs no
        arrays of all events at once.
        """
        rows, flat, chosen = self._laid_out(rows)
        ends = np.cumsum(np.diff(flat.first)[chosen])
        edges = np.searchsorted(ends, np.arange(most, int(ends[-1]) if ends.size else 0, most), side="right")
        edges = np.unique(np.concatenate([[0], edges, [chosen.size]]))
        for begin, end in itertools.pairwise(edges.tolist()):
            yield _events(rows[begin:end], flat, chosen[begin:end])

    def _laid_out(self, rows: Ints) -> tuple[Ints, Packed, Ints]:
        """(those of the rows that have a timeline, timelines as flat arrays, the place of each row's among them)."""
        slot = self.slot[rows]
        there = slot >= 0
        chosen = slot[there]
        if self.held.packed is None and 2 * chosen.size < self.held.size:
            # Few of many: the others need not be laid out.
            return (
                rows[there],
                Packed.of([self.held.line(place) for place in chosen.tolist()]),
                np.arange(chosen.size, dtype=np.int64),
            )
        return rows[there], self.held.flat(), chosen

    def _at(self, slot: int) -> Timeline | None:
        return None if slot < 0 else self.held.line(slot)

    def __len__(self) -> int:
        return self.slot.size

    @overload
    def __getitem__(self, index: int) -> Timeline | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[Timeline | None]: ...
    def __getitem__(self, index: int | slice) -> Timeline | list[Timeline | None] | None:
        if isinstance(index, slice):
            return [self._at(slot) for slot in self.slot[index].tolist()]
        return self._at(int(self.slot[index]))

    def __iter__(self) -> Iterator[Timeline | None]:
        return map(self._at, self.slot.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Timelines, list, tuple)):
            return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"Timelines({len(self)} rows, {int(self.kept.sum())} kept)"
