"""Tables with one chunk of a stream a row: when the hop before us had it, when the client had it, how large it was.

Columns: `arm`, `req`, `chunk`, `bytes`, `t_upstream_ms`, `t_client_ms`; any other keeps its own name (`text_offset`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Clock, Observed, Place, Rows, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.headings import heading, stamp_ms
from tailrace.diagnose.readers.request_columns import canonical
from tailrace.diagnose.readers.table_text import TableText, first_headings, read_table
from tailrace.model.errors import InputError

__all__ = ["CHUNKS", "looks_like_chunks", "read_chunks"]

_SYNONYMS: Final[Mapping[str, str]] = {
    "arm": "arm path route variant via experiment config side",
    "req": "req request request_id req_id stream stream_id id rid session connection",
    "chunk": "chunk chunk_id chunk_index chunk_no index idx seq i n event frame number",
    "bytes": "bytes size len length chunk_bytes chunk_size n_bytes num_bytes size_bytes payload",
    "t_upstream_ms": "t_upstream upstream ts_upstream upstream_ts upstream_time t_engine engine t_server server sent "
    "t_sent t_send send ts_sent server_send produced t_produced emitted t_emit gateway_in t_in "
    "engine_sent upstream_sent server_sent engine_out "
    "backend_sent upstream_received from_engine generated_at produced_at",
    "t_client_ms": "t_client client ts_client client_ts client_time received t_received t_recv recv ts_recv recv_ts "
    "arrival arrived t_arrival gateway_out t_out client_received browser_received client_recv received_at delivered "
    "written client_written to_client client_got seen_at t ts time timestamp at",
    "text_offset": "text_offset offset char_offset text_position",
    "output_position": "output_position position token token_index token_position token_no",
}
_BY_WORD: Final = {word: name for name, words in reversed(tuple(_SYNONYMS.items())) for word in words.split()}
_TO_MS: Final = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "": 1.0}
_TEXTS: Final = frozenset({"arm", "req"})
_SPEECH: Final = frozenset({"utt_id", "speech_id", "raw_type", "audio_start", "turn_final", "segment_final"})
_TIMES: Final = ("t_upstream_ms", "t_client_ms")


def looks_like_chunks(headings: Iterable[str]) -> bool:
    """Whether a table with these headings has one chunk a row: chunks are counted or weighed, and timed."""
    names = list(headings)
    if {heading(name).name for name in names} & _SPEECH:
        return False
    if set(canonical(names).values()) & {"t_first_ms", "t_last_ms", "ttft_ms", "e2e_ms"}:
        return False  # one request a row
    ours = set(_names(names).values())
    timed = ours & set(_TIMES)
    # Stamps of both sides say that a row is a chunk, of one stream where none is named.
    a_chunk = bool(ours & {"chunk", "bytes", "output_position"})
    return (len(timed) == 2 and "chunk" in ours) or (bool(timed) and "req" in ours and a_chunk)


def read_chunks(path: Path, name: str) -> Observed:
    """The table in a file. InputError where no row has a time."""
    return rows_of_chunks(read_table(path), name)


def rows_of_chunks(table: TableText, name: str) -> Observed:
    """The same of a table that was read already."""
    out: dict[str, NDArray[Any]] = {}
    clock = Clock.RELATIVE
    doubts = []
    for theirs, ours in _names(table.columns).items():
        if ours in _TEXTS:
            out[ours] = _text(table.texts(theirs))
            continue
        unit = heading(theirs).unit
        values = table.numbers(theirs)
        if values is None and ours in _TIMES:
            told = stamp_ms(table.columns[theirs])
            if told is None:
                doubts.append(f"{theirs}: no times")
                continue
            values, unit, clock = told[0], "ms", Clock.UTC if told[1] else Clock.LOCAL
        if values is None:
            out[ours] = _text(table.texts(theirs))
            continue
        array = np.array(values, dtype=np.float64)
        if ours in _TIMES:
            array, clock = _in_ms(array, unit, clock, theirs, doubts)
        out[ours] = array
    if not len(table) or not any(column in out for column in _TIMES):
        raise InputError("no row of it has a time", place=name, remedy="Name them t_upstream_ms and t_client_ms.")
    understood = [
        Understood(
            source=name, format="chunks", understood=len(table), total=table.total, what="rows", examples=table.not_read
        ),
        *table.cut(name, "chunks"),
    ]
    if doubts:
        whole = len(table.columns)
        understood.append(
            Understood(
                source=name,
                format="chunks",
                understood=whole - len(doubts),
                total=whole,
                what="columns",
                examples=doubts,
            )
        )
    rows = Rows(kind="chunks", columns=out, clock=clock, lines=np.array(table.lines, dtype=np.int64), place=Place(name))
    return Observed(rows=[rows], understood=understood)


def _names(headings: Iterable[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    taken: set[str] = set()
    for name in headings:
        base = heading(name).name
        ours = _BY_WORD.get(base, base)
        if ours in taken:
            ours = base if base not in taken else name
        out[name] = ours
        taken.add(ours)
    return out


def _in_ms(
    values: NDArray[np.float64], unit: str, clock: Clock, name: str, doubts: list[str]
) -> tuple[NDArray[np.float64], Clock]:
    """Stamps in ms; of this century's seconds without a unit, seconds; without a hint, milliseconds, and it is said."""
    known = values[np.isfinite(values)]
    middle = float(np.median(known)) if known.size else 0.0
    for epoch, least in (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 1e8)):
        if least <= middle < least * 1e3 and (not unit or unit == epoch):
            return values * _TO_MS[epoch], Clock.UTC
    if not unit:
        unit = "s" if known.size and float(known.max()) < 1e3 and bool((known % 1 != 0).any()) else "ms"
        doubts.append(f"{name}: no unit is written, taken as {unit}")
    return values * _TO_MS.get(unit, 1.0), clock


def _text(values: list[str]) -> NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _matches(head: str, name: str) -> bool:
    _ = name
    return looks_like_chunks(first_headings(head))


CHUNKS: Final = Format(name="chunks", matches=_matches, read=read_chunks)
