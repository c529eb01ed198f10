"""Stops that streams share, in a table of chunks: they begin at other times and stand still at one moment.

Streams that began together and stop at the same moment stop at the same place of their answers too: nothing then tells
a stop of the engine from one of the text, and no stop is called shared.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Rows

__all__ = ["ChunkStops", "stops_in_chunks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAST_CHUNKS: Final = 8
LEAST_STREAMS: Final = 2
LONGER: Final = 3.0
LEAST_MS: Final = 50.0
SHARE: Final = 0.8
"""Of the streams that were under way."""
ALIGNED_MS: Final = 30.0
"""They go on within so much of each other, or within two usual gaps."""
MOST: Final = 20_000
"""The longest stops are looked at."""


class ChunkStops(NamedTuple):
    """Stops of a table; times in ms as the table has them."""

    begin: Floats
    end: Floats
    length_ms: Floats
    """Median over the streams."""
    streams: int
    """The most that shared one."""
    usual_ms: float
    alone: int
    """Stops that fewer streams had."""
    together: bool
    """The streams began at other times: moment and place are told apart."""
    rows: Ints
    """The row with which one of the streams went on."""


class _Gap(NamedTuple):
    stream: int
    begin: float
    end: float
    row: int


@lru_cache(maxsize=8)
def stops_in_chunks(rows: Rows) -> ChunkStops | None:
    """Moments at which most streams under way stand still; `None` without two streams, or without one such moment."""
    name = "t_upstream_ms" if rows.has("t_upstream_ms") else "t_client_ms"
    at = rows.numbers(name)
    if len({arm for arm in rows.texts("arm") if arm}) > 1 or np.isnan(at).all():
        return None
    members = [every[np.isfinite(at[every])] for every in rows.members("req").values()]
    members = [mine[np.argsort(at[mine], kind="stable")] for mine in members if mine.size >= LEAST_CHUNKS]
    if len(members) < LEAST_STREAMS:
        return None
    usual = float(np.median(np.concatenate([np.diff(at[mine]) for mine in members])))
    bar = max(LONGER * usual, LEAST_MS)
    gaps = [
        _Gap(stream, float(at[mine[index]]), float(at[mine[index + 1]]), int(mine[index + 1]))
        for stream, mine in enumerate(members)
        for index in np.flatnonzero(np.diff(at[mine]) >= bar)
    ]
    gaps = sorted(sorted(gaps, key=lambda gap: gap.begin - gap.end)[:MOST], key=lambda gap: gap.end)
    first = np.array([at[mine[0]] for mine in members])
    last = np.array([at[mine[-1]] for mine in members])
    shared: list[list[_Gap]] = []
    alone = 0
    for group in _grouped(gaps, max(ALIGNED_MS, 2.0 * usual)):
        begin, end = (float(np.median([getattr(gap, side) for gap in group])) for side in ("begin", "end"))
        under_way = int(((first <= begin + usual) & (last >= end - usual)).sum())
        streams = len({gap.stream for gap in group})
        if streams >= LEAST_STREAMS and streams >= SHARE * under_way:
            shared.append(group)
        else:
            alone += 1
    if not shared:
        return None
    return ChunkStops(
        begin=np.array([np.median([gap.begin for gap in group]) for group in shared]),
        end=np.array([np.median([gap.end for gap in group]) for group in shared]),
        length_ms=np.array([np.median([gap.end - gap.begin for gap in group]) for group in shared]),
        streams=max(len({gap.stream for gap in group}) for group in shared),
        usual_ms=usual,
        alone=alone,
        together=float(np.ptp(first)) > max(10.0 * usual, ALIGNED_MS),
        rows=np.array([group[0].row for group in shared], dtype=np.int64),
    )


def _grouped(gaps: list[_Gap], near: float) -> list[list[_Gap]]:
    """Gaps that end together, in order of their ends."""
    out: list[list[_Gap]] = []
    for gap in gaps:
        if out and gap.end - out[-1][0].end <= near:
            out[-1].append(gap)
        else:
            out.append([gap])
    return out
