"""Records as JSON lines: the public form (milliseconds, as a gateway's /records) or the records themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tailrace.store.table import RecordTable

__all__ = ["parse_lines", "read_lines"]

_own = msgspec.json.Decoder(RequestRecord)


def read_lines(path: Path, decode: Callable[[bytes, str], RequestRecord]) -> RecordTable:
    """Read a file of records. InputError names the file and line that is no record."""
    with path.open("rb") as file:
        return parse_lines(file, decode, str(path))


def parse_lines(
    lines: Iterable[bytes], decode: Callable[[bytes, str], RequestRecord], name: str = "records"
) -> RecordTable:
    """Read lines of records; empty lines are skipped."""
    records = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            records.append(_one(line, decode, f"{name}:{number}"))
    if not records:
        raise InputError("there is no record in it", place=name)
    return RecordTable.from_records(records)


def _one(line: bytes, decode: Callable[[bytes, str], RequestRecord], place: str) -> RequestRecord:
    # The record's own form says `e2e_ns`, the public one `e2e_ms`; neither has the other's.
    if b'"e2e_ns"' in line:
        try:
            return _own.decode(line)
        except UNREADABLE as error:
            raise InputError(f"this line is no record: {error}", place=place) from None
    return decode(line, place)
