"""History files: one JSON line a run, small enough to keep for ever beside the code (a run file is not).

::

    {"schema":1,"run":"0412.run","started_unix_ns":…,"work":"llama3 · poisson 5/s · short:1","n":600,"values":{…}}
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tailrace.model.errors import InputError, StoreError

__all__ = ["HistoryPoint", "append_history", "read_history"]

SCHEMA: Final = 1
_MAX_BYTES: Final = 256 << 20
"""A line is under 4 kB: tens of thousands of runs."""


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run, reduced to what a history needs."""

    schema: int = SCHEMA
    run: str
    """Its file's name."""
    started_unix_ns: int
    work: str
    """What was asked of which model: runs with another text are another history."""
    n: int
    values: dict[str, float] = {}
    """`ttft_ms.p99` and so on (ms), rates per second, `error_rate` (share of requests that did not complete). In an
    open loop the latencies count from the intended time."""
    label: str = ""
    """What was measured, as whoever ran it calls it: a commit, a version."""
    limited: bool = False
    """The load generator was the limit: the run is shown and left out of the levels."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """What two points of one run have in common, whatever their file was called."""
        return (self.work, self.started_unix_ns, self.n)


_BEGIN: Final = b'{"schema":'
_decode = msgspec.json.Decoder(HistoryPoint).decode


def read_history(path: Path) -> list[HistoryPoint]:
    """The runs in a history file, as they were written. InputError that names file and line when one does not fit.

    A last line without its end (a write that was cut) is left out: `append_history` mends it.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a device may have no end
            raise InputError("this is no regular file", place=str(path), remedy="Name the history file.")
        if path.stat().st_size > _MAX_BYTES:
            raise InputError("this is too long for a history file", place=str(path), remedy="Name the history file.")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the history: {error.strerror or error}", place=str(path)) from None
    out = []
    whole, _, cut = content.rpartition(b"\n")
    if cut.strip() and not cut.startswith(_BEGIN[: len(cut)]):
        # Adding to it would take this line for the rest of a cut write, and it is somebody's file.
        raise InputError(
            "the last line is no run of a history", place=str(path), remedy="Name a history file, or one that is new."
        )
    for number, line in enumerate(whole.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            point = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"this line is no run of a history: {error}",
                place=f"{path}:{number}",
                remedy="Take the line out, or begin a new history from the run files.",
            ) from None
        if point.schema != SCHEMA:
            raise InputError(
                f"schema {point.schema} is not known",
                place=f"{path}:{number}",
                remedy="Read it with the Tailrace that wrote it.",
            )
        out.append(point)
    return out


def append_history(path: Path, points: Sequence[HistoryPoint]) -> int:
    """Add the runs that the file does not hold yet; how many those were. The file is made where there is none.

    One write for all of them, at the end of the file. Raises `StoreError` when the disk refuses.
    """
    known = {point.identity for point in read_history(path)} if path.exists() else set()
    new = [point for point in points if point.identity not in known]
    if not new:
        return 0
    lines = b"".join(msgspec.json.encode(point) + b"\n" for point in new)
    try:
        with path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    _cut_last_line(file.fileno(), path.read_bytes())
            file.write(lines)
    except OSError as error:
        raise StoreError(f"{path}: cannot write the history: {error.strerror or error}") from None
    return len(new)


def _cut_last_line(file: int, content: bytes) -> None:
    os.ftruncate(file, content.rfind(b"\n") + 1)
