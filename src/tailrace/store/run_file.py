"""Run files: one load test (or simulation) with every request and every event's time, as JSON lines.

::

    {"tailrace_run": 1, "kind": "bench", "target": …}      header
    {"request_id": …, "ttft_ns": …, "timeline": {…}}       one line a request, in the order in which they ended
    {"end": {"n": 300, "client": {…}, "duration_s": 60.2}} trailer: the run ended, and how many there were

The trailer makes a cut visible: a file without one was interrupted, and is read only when the caller asks for a
partial run. Lines are written in bounded batches, so an interrupted run keeps what was measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from io import BufferedReader, BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from tailrace.model.client_sample import ClientSample
from tailrace.model.conditions import Conditions
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import InputError, RunFileError, StoreError
from tailrace.model.measurement import ClientHealth
from tailrace.model.record import SCHEMA, RequestRecord
from tailrace.model.thresholds import Objectives

if TYPE_CHECKING:
    from tailrace.store.table import RecordTable

__all__ = ["Arrival", "Run", "RunHeader", "RunTrailer", "RunWriter", "read_run"]

RUN_SCHEMA: Final = 1
_FLUSH_RECORDS: Final = 64
_FLUSH_NS: Final = 500_000_000
_MAX_LINE: Final = 64 << 20
"""A record with the longest timeline takes under 1 MB; a longer line is no run file (or a cut one)."""
_QUOTE: Final = 60


class Arrival(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How requests were sent: `closed` (so many at once), or an open schedule `constant`, `poisson`, `trace`."""

    kind: str = "closed"
    rate: float | None = None
    """Requests per second of an open schedule, where that is one number."""
    shape: str = ""
    """A rate (or, closed, a number of workers) that changes with time, as it is typed: `2..20 over 60s`."""
    clients: str = ""
    """Who sends, where many do, as it is typed: `50 clients zipf 1.1`."""
    concurrency: int | None = None
    """Requests in flight of a closed loop."""
    seed: int | None = None


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What was run, against what, and how; enough to run it again."""

    schema: int = msgspec.field(default=RUN_SCHEMA, name="tailrace_run")
    record_schema: int = SCHEMA
    version: str = ""
    """Of the tool that wrote the file."""
    kind: str = "bench"
    """`bench`, `simulate` or `gateway`."""
    target: str = ""
    """The URL, or the simulated preset."""
    model: str = ""
    started_unix_ns: int = 0
    arrival: Arrival = Arrival()
    mix: str = ""
    """As it was typed: `short:0.9,long:0.1`."""
    classes: dict[str, Any] = {}
    """Class -> its length distributions; the class of a request is its record's `lane`."""
    knobs: dict[str, Any] = {}
    """The engine's and gateway's settings, as far as they are known."""
    objectives: Objectives = msgspec.field(default_factory=Objectives)
    notes: list[str] = []
    conditions: Conditions = Conditions()
    source: str = "tailrace"
    """Whose measurement it is: `tailrace`, or the load tool whose result was read: `vllm`, `guidellm`, ..."""
    granularity: str = "event"
    """What is known of each stream: the time of each `event`, of each `chunk` without its tokens, only a `mean`."""
    absent: list[str] = []
    """Metrics and facts that the source does not hold, by name; a reader shows them as absent, never as 0."""


class RunTrailer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line: how the run ended."""

    n: int
    """Records in the file."""
    client: ClientHealth = ClientHealth()
    duration_s: float = 0.0
    interrupted: bool = False
    """The run was ended early on purpose (Ctrl-C); what it has is whole."""
    counters: dict[str, float] = {}
    """Whatever the writer counted: requests not sent, drops, bytes."""


class _End(msgspec.Struct, frozen=True):
    end: RunTrailer


class _Sample(msgspec.Struct, frozen=True):
    sample: ClientSample


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as read. `trailer` is `None`, and `problem` says why, only when a partial run was asked for."""

    path: str
    header: RunHeader
    records: list[RequestRecord]
    trailer: RunTrailer | None = None
    problem: str = ""
    states: list[EngineState] = []
    """What the engine's metrics said while the run went on, oldest first. `at_ns` counts from the start of the
    measured part, as a record's `run_offset_ns` does."""
    health: list[ClientSample] = []
    """How the load generator was, second by second."""

    def table(self) -> RecordTable:
        """The records as columns."""
        from tailrace.store.table import RecordTable  # noqa: PLC0415  (numpy is loaded only where it is used)

        return RecordTable.from_records(self.records)


_encode = msgspec.json.Encoder()
_decode_record = msgspec.json.Decoder(RequestRecord)
_decode_header = msgspec.json.Decoder(RunHeader)
_decode_end = msgspec.json.Decoder(_End)
_decode_sample = msgspec.json.Decoder(_Sample)
_decode_any = msgspec.json.Decoder()


class RunWriter:
    """Writes a run file while the run goes on: `write` records as they end, then `close(trailer)`.

    Not thread-safe. Used as a context manager, leaving it without `close` flushes what was measured and writes no
    trailer: the file then reads as an interrupted run.
    """

    def __init__(self, path: str | Path, header: RunHeader) -> None:
        """Create (or replace) `path` and write the header. InputError when the place cannot be written."""
        self.path = Path(path)
        self.count = 0
        self._lines: list[bytes] = []
        self._flushed_ns = time.monotonic_ns()
        try:
            self._file: BufferedWriter | None = self.path.open("wb")
        except OSError as error:
            raise InputError(
                f"cannot write the run file: {error.strerror or error}",
                place=str(path),
                remedy="Give --out a path in an existing directory that you may write to.",
            ) from None
        self._lines.append(_encode.encode(header))
        try:
            self.flush()
        except StoreError:
            self._release()
            raise

    def write(self, record: RequestRecord) -> None:
        """Append one record; on disk after at most 64 records, or with the first write half a second later."""
        self._lines.append(_encode.encode(record))
        self.count += 1
        if len(self._lines) >= _FLUSH_RECORDS or time.monotonic_ns() - self._flushed_ns > _FLUSH_NS:
            self.flush()

    def write_all(self, records: Iterable[RequestRecord]) -> None:
        """Append many records."""
        for record in records:
            self.write(record)

    def write_sample(self, sample: ClientSample) -> None:
        """Append how the client was over a second."""
        self._lines.append(_encode.encode(_Sample(sample)))

    def flush(self) -> None:
        """Hand what is buffered to the operating system. StoreError when the disk refuses (full, gone)."""
        file = self._file
        if file is None:
            raise ValueError("this run file is closed")
        self._flushed_ns = time.monotonic_ns()
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            file.write(b"\n".join(lines) + b"\n")
            file.flush()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot write the run file: {error.strerror or error}") from None

    def close(self, trailer: RunTrailer | None = None) -> None:
        """Flush, write the trailer if one is given, and close. Closing twice does nothing."""
        if self._file is None:
            return
        try:
            if trailer is not None:
                if trailer.n != self.count:
                    raise ValueError(f"the trailer says {trailer.n} records, {self.count} were written")
                self._lines.append(_encode.encode(_End(trailer)))
            self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # A disk that refused the flush refuses the close as well; the first error is the one to tell.
            with contextlib.suppress(OSError):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_RERUN: Final = "`tailrace bench URL --out RUN` writes a run file."
_PARTIAL: Final = "Pass --partial to use the {n} requests before it, or measure again."


def read_run(path: str | Path, *, allow_partial: bool = False) -> Run:
    """Read a run file.

    RunFileError (a bad file; names file, line and remedy) when it is missing, is no run, has another schema, was
    cut, or has something foreign in it. With `allow_partial`, everything before the first bad line is returned and
    `Run.problem` says what stopped the reading; a bad header is always an error.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _read(file, str(path), allow_partial=allow_partial)
    except FileNotFoundError:
        raise RunFileError("there is no such file", place=str(path), remedy=_RERUN) from None
    except IsADirectoryError:
        raise RunFileError(
            "this is a directory, not a run file",
            place=str(path),
            remedy="Name the run file itself; `tailrace records` reads a gateway's data directory.",
        ) from None
    except OSError as error:
        raise RunFileError(
            f"cannot be read: {error.strerror or error}", place=str(path), remedy="Check its permissions."
        ) from None


def _read(file: BufferedReader, name: str, *, allow_partial: bool) -> Run:
    header = _header(file, name)
    records: list[RequestRecord] = []
    health: list[ClientSample] = []
    trailer: RunTrailer | None = None
    number, problem = 1, ""
    while line := file.readline(_MAX_LINE):
        number += 1
        if trailer is not None:
            problem = _after_end(line)
            break
        try:
            if line.startswith(b'{"end":'):
                trailer = _decode_end.decode(line).end
            elif line.startswith(b'{"sample":'):
                health.append(_decode_sample.decode(line).sample)
            else:
                # Decoding first, looking for the newline after: a cut line fails by itself, and the flaw is named.
                records.append(_decode_record.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = _bad_line(line, error)
            break
    if not problem and trailer is None:
        problem = "the file ends without its trailer: the run was interrupted, or the file was cut"
    elif not problem and trailer is not None and trailer.n != len(records):
        problem = f"the trailer says {trailer.n} requests, but the file holds {len(records)}: lines are missing"
    if problem and not allow_partial:
        raise RunFileError(problem, place=f"{name}:{number}", remedy=_PARTIAL.format(n=len(records)))
    return Run(
        path=name,
        header=header,
        records=records,
        health=health,
        trailer=None if problem else trailer,
        problem=f"line {number}: {problem}" if problem else "",
    )


def _header(file: BufferedReader, name: str) -> RunHeader:
    place = f"{name}:1"
    line = file.readline(_MAX_LINE)
    if not line:
        raise RunFileError("the file is empty", place=place, remedy=_RERUN)
    try:
        head = _decode_any.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        head = None
    if not isinstance(head, dict) or "tailrace_run" not in head:
        if line.startswith(b'{"tailrace_run"'):
            raise RunFileError("the header is cut", place=place, remedy="Nothing can be read from it: measure again.")
        raise RunFileError(f"this is not a run file; it begins with {_quote(line)}", place=place, remedy=_RERUN)
    for key, known in (("tailrace_run", RUN_SCHEMA), ("record_schema", SCHEMA)):
        schema = head.get(key, known)
        if schema != known:
            raise RunFileError(
                f"{key} is {schema!r}, this Tailrace reads {known}",
                place=place,
                remedy=f"Read it with the Tailrace that wrote it (version {head.get('version') or 'unknown'}).",
            )
    try:
        return _decode_header.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(f"the header does not fit: {error}", place=place, remedy=_RERUN) from None


def _bad_line(line: bytes, error: Exception) -> str:
    if b'"tailrace_run"' in line[:40]:
        return "a second run begins here: two files were joined"
    if not line.endswith(b"\n"):
        return "the line is cut: the run was interrupted, or the file was"
    if not line.startswith(b"{"):
        return f"this is no record: {_quote(line)}"
    return f"the record does not fit: {error}"


def _after_end(line: bytes) -> str:
    if b'"tailrace_run"' in line[:40]:
        return "a second run begins after the end of the first: two files were joined"
    return f"something follows the end of the run: {_quote(line)}"


def _quote(line: bytes) -> str:
    text = line[:_QUOTE].decode("utf-8", "replace").rstrip("\r\n")
    return repr(text + ("…" if len(line) > _QUOTE else ""))
