"""The streams of a run file's blocks as flat arrays: checked block by block, computed many blocks at a time.

A block has some dozen timelines. What numpy costs a call is more than what it costs their events, so blocks wait until
there is something to compute.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.store.run_block import gap_planes, stamps_of_gaps
from tailrace.store.timelines import Packed, Timelines

__all__ = ["Streams", "StreamsOfBlock"]

Ints = npt.NDArray[np.int64]

StreamsOfBlock = tuple[list[int], list[int], list[list[int]], list[list[int]], list[int], list[list[int]]]
"""`run_block`'s streams where gaps have a width: lengths, first stamps, kinds, tokens, thinned, merged."""
_TOGETHER: Final = 1 << 18
"""Events that are computed together."""


class _Block(NamedTuple):
    """The streams of one block."""

    lengths: Ints
    """Of every row, -1 without timeline."""
    firsts: Ints
    planes: list[bytes]
    width: int
    kinds: bytes
    tokens: bytes
    thinned: Ints
    merged: list[list[int]]
    """Empty where no stream says any."""


class Streams:
    """Takes the streams of blocks in their order; `timelines` at the end."""

    def __init__(self) -> None:
        self._parts: list[Timelines] = []
        self._waiting: list[_Block] = []
        self._events = 0

    def take(self, rows: int, streams: StreamsOfBlock, width: int, low: bytes, high: bytes) -> None:
        """Those of one block. Whatever is wrong raises, and nothing was taken then."""
        lengths, firsts, kinds, tokens, thinned, merged = streams
        if len(lengths) != rows:
            raise ValueError(f"{len(lengths)} streams for {rows} rows")
        sizes = [length for length in lengths if length >= 0]
        merged = _of_each(merged, sizes)
        block = _Block(
            np.array(lengths, dtype=np.int64),
            np.array(firsts, dtype=np.int64),
            gap_planes(sizes, len(firsts), width, low, high),
            width,
            _bytes_of(kinds, sizes, "b"),
            _bytes_of(tokens, sizes, "i"),
            np.array(_of_each(thinned, sizes), dtype=np.int64),
            merged if any(merged) else [],
        )
        if self._waiting and self._waiting[0].width != width:
            self._lay()
        self._waiting.append(block)
        self._events += len(block.kinds)
        if self._events >= _TOGETHER:
            self._lay()

    def take_lines(self, lines: Timelines) -> None:
        """Those of rows that were decoded as records. ValueError, and nothing is taken, for a number beyond 64 bits."""
        try:
            flat = lines.held.flat()
        except OverflowError as error:
            raise ValueError(f"the time of an event: {error}") from None
        self._lay()
        self._parts.append(Timelines(lines.slot, flat))

    def _lay(self) -> None:
        if not self._waiting:
            return
        blocks, self._waiting, self._events = self._waiting, [], 0
        lengths = np.concatenate([block.lengths for block in blocks])
        there = lengths >= 0
        sizes = lengths[there]
        some = [block for block in blocks if block.planes]
        at = np.empty(0, np.int64)
        if some:
            planes = b"".join(chain.from_iterable(zip(*(block.planes for block in some), strict=True)))
            at = stamps_of_gaps(planes, some[0].width, sizes, np.concatenate([block.firsts for block in some]))
        merged: dict[int, list[int]] = {}
        places = 0
        for block in blocks:
            merged |= {places + place: said for place, said in enumerate(block.merged) if said}
            places += block.thinned.size
        packed = Packed(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            at,
            np.frombuffer(b"".join(block.kinds for block in blocks), np.int8),
            np.frombuffer(b"".join(block.tokens for block in blocks), "<i4"),
            np.concatenate([block.thinned for block in blocks]),
            merged,
        )
        self._parts.append(Timelines(np.where(there, np.cumsum(there) - 1, -1), packed))

    def timelines(self) -> Timelines:
        """Of all blocks that were taken; they are let go."""
        self._lay()
        parts, self._parts = self._parts, []
        return Timelines.concat(parts)


def _of_each(values: list[Any], sizes: Sequence[int]) -> list[Any]:
    """One value a stream. ValueError for another number of them."""
    if len(values) == len(sizes):
        return values
    if len(values) != 1:
        raise ValueError(f"{len(values)} values for {len(sizes)} streams")
    return values * len(sizes)


def _bytes_of(lists: list[list[int]], sizes: list[int], code: str) -> bytes:
    """Small numbers of each stream, one behind the other. Raises where a stream has another length than said, or a
    number does not fit.
    """
    if len(lists) == 1 and len(sizes) != 1:
        if sizes.count(len(lists[0])) != len(sizes):
            raise ValueError("streams of other lengths")
        return struct.pack(f"<{len(lists[0])}{code}", *lists[0]) * len(sizes)
    if [len(one) for one in lists] != sizes:
        raise ValueError("streams of other lengths")
    return struct.pack(f"<{sum(sizes)}{code}", *chain.from_iterable(lists))
