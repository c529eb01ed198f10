"""Run files: one load test (or simulation) with every request and every event's time.

One binary file: a header (`RunHeader`), blocks of records, engine states and samples of the client as they come, and
a trailer (`RunTrailer`) with an index of the blocks. Each block carries its length, its number and a checksum, so a
file that was cut is readable to its last whole block, and damage is named by place. `store.run_frame` has the bytes,
`store.run_block` how records are laid out in them.

The trailer makes a cut visible: a file without one was interrupted, and is read only when the caller asks for a
partial run.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from tailrace import __version__
from tailrace.model.client_sample import ClientSample
from tailrace.model.conditions import Conditions
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import InputError, StoreError
from tailrace.model.measurement import ClientHealth
from tailrace.model.record import SCHEMA, RequestRecord
from tailrace.model.thresholds import Objectives
from tailrace.store.run_block import NUMBERS, TEXTS, encode_records
from tailrace.store.run_frame import FORMAT, MAGIC, FrameKind, end_mark, frame, pack, preamble

if TYPE_CHECKING:
    from tailrace.store.table import RecordTable

__all__ = ["Arrival", "Run", "RunHeader", "RunTrailer", "RunWriter", "is_run_file", "read_run"]

RUN_SCHEMA: Final = FORMAT
_BATCH_RECORDS: Final = 128
_BATCH_EVENTS: Final = 16_384
"""Laying out a block holds the event loop: 16,384 events are 1.0 to 1.5 ms of it."""
_LINGER_S: Final = 0.25
"""A record waits at most twice this long for its block to be written."""
_MOST_WAITING: Final = 256
"""Blocks that a disk may be behind before the writer waits for it."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How requests were sent: `closed` (so many at once), or on schedule (`constant`, `poisson`, `gamma`, `trace`)."""

    kind: str = "closed"
    rate: float | None = None
    """Requests per second of an open schedule, where that is one number."""
    shape: str = ""
    """A rate (or, closed, a number of workers) that changes with time, as it is typed: `2..20 over 60s`."""
    burstiness: float | None = None
    """Of gamma arrivals: the shape of the distribution of the gaps, 1 is Poisson."""
    clients: str = ""
    """Who sends, where many do, as it is typed: `50 clients zipf 1.1`."""
    concurrency: int | None = None
    """Requests in flight of a closed loop; the most of them in an open one."""
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
    """The last block: how the run ended."""

    n: int
    """Records in the file."""
    client: ClientHealth = ClientHealth()
    duration_s: float = 0.0
    interrupted: bool = False
    """The run was ended early on purpose (Ctrl-C); what it has is whole."""
    counters: dict[str, float] = {}
    """Whatever the writer counted: requests not sent, drops, bytes."""
    notes: list[str] = []
    """What turned out while it ran."""


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
    columns: RecordTable | None = None
    """The records, where they were read as columns; `records` is empty then."""

    def table(self) -> RecordTable:
        """The records as columns."""
        from tailrace.store.table import RecordTable  # noqa: PLC0415  (numpy is loaded only where it is used)

        return RecordTable.from_records(self.records) if self.columns is None else self.columns


class Contents(msgspec.Struct, frozen=True):
    """Frame 0: the header, and the names of the columns in all blocks of records."""

    header: RunHeader
    numbers: list[str]
    texts: list[str]
    mark: bytes
    """Random: with it, no two files have the same checksums, and a block of one never passes for one of another."""


class End(msgspec.Struct, frozen=True):
    """The last frame."""

    trailer: RunTrailer
    index: list[tuple[int, int, int]]
    """Of every frame before it: `(kind, its first byte, rows)`; the place in the list is its number."""


class SeenState(msgspec.Struct, frozen=True):
    """An engine's state without its names, which are said when they change."""

    state: EngineState
    names: dict[str, str] | None = None


_encode: Final = msgspec.msgpack.Encoder().encode


class RunWriter:
    """Writes a run file while the run goes on: `write` records as they end, then `close(trailer)`.

    `write`, `write_sample` and `write_state` never wait for the disk, unless it is far behind: a thread of the
    writer's own hands blocks to the operating system, the first after half a second at most. What was handed over
    survives the end of the process, whatever ends it. Call it from one thread. Used as a context manager, leaving it
    without `close` flushes what was measured and writes no trailer: the file then reads as an interrupted run.
    """

    def __init__(self, path: str | Path, header: RunHeader) -> None:
        """Create (or replace) `path` and write the header. InputError when the place cannot be written."""
        self.path = Path(path)
        self.count = 0
        """Records so far."""
        self._records: list[RequestRecord] = []
        self._states: list[SeenState] = []
        self._samples: list[ClientSample] = []
        self._events = 0
        self._since = 0.0
        """When the oldest of what is not yet in a block came."""
        self._names: dict[str, str] | None = None
        self._index: list[tuple[int, int, int]] = []
        self._at = 0
        self._seed = 0
        self._saved = 0
        """Records in blocks that are written."""
        self._error: OSError | None = None
        self._stopped = False
        """Closed, or the disk has refused."""
        self._fault: Exception | None = None
        """What was wrong with a record that the writer's thread could not lay out."""
        self._told = False
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._blocks: list[tuple[bytes, int]] = []
        self._busy = self._closing = False
        self._thread: threading.Thread | None = None
        try:
            self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InputError(
                f"cannot write the run file: {error.strerror or error}",
                place=str(path),
                remedy="Give --out a path in an existing directory that you may write to.",
            ) from None
        begin = preamble(header.version or __version__)
        self._at = len(begin)
        self._seed = zlib.crc32(begin)
        coding, payload = pack(_encode(Contents(header, list(NUMBERS), list(TEXTS), os.urandom(8))))
        first = self._frame(FrameKind.HEADER, 1, payload, coding)
        self._seed = zlib.crc32(first, zlib.crc32(begin))
        if not self._append(begin + first):
            self._release()
            raise self._failure()
        self._thread = threading.Thread(target=self._run, name="run-writer", daemon=True)
        self._thread.start()

    # -- the run's thread

    def write(self, record: RequestRecord) -> None:
        """Append one record. StoreError when the disk has refused (full, gone): what was written before stays."""
        line = record.timeline
        with self._lock:  # the condition's own lock: half the price of entering the condition
            if self._stopped:
                self._check()
            if not self._since:
                self._since = time.monotonic()
            self._records.append(record)
            self.count += 1
            self._events += 1 if line is None else 1 + len(line.at_ns)
            if len(self._records) < _BATCH_RECORDS and self._events < _BATCH_EVENTS:
                return
            self._lay_out()
            self._turn.notify_all()
            while len(self._blocks) > _MOST_WAITING and self._error is None:
                self._turn.wait()

    def write_all(self, records: Iterable[RequestRecord]) -> None:
        """Append many records."""
        for record in records:
            self.write(record)

    def write_sample(self, sample: ClientSample) -> None:
        """Append how the client was over a second. Raises as `write`."""
        with self._turn:
            self._check()
            self._since = self._since or time.monotonic()
            self._samples.append(sample)

    def write_state(self, state: EngineState) -> None:
        """Append what the engine's metrics said; `at_ns` counts from the start of the measured part. As `write`."""
        with self._turn:
            self._check()
            self._since = self._since or time.monotonic()
            names = None if state.names == self._names else state.names
            self._names = state.names
            self._states.append(SeenState(msgspec.structs.replace(state, names={}), names))

    def flush(self) -> None:
        """Hand everything to the operating system and wait for it. StoreError when the disk refuses."""
        with self._turn:
            self._check()
            self._lay_out()
            self._turn.notify_all()
            while self._blocks or self._busy:
                self._turn.wait()
            self._check()

    def close(self, trailer: RunTrailer | None = None) -> None:
        """Flush, write the trailer if one is given, and close. Closing twice does nothing."""
        if self._file is None:
            return
        try:
            if trailer is not None and trailer.n != self.count:
                raise ValueError(f"the trailer says {trailer.n} records, {self.count} were written")
            self._stop()
            if trailer is not None and self._error is None:
                at = self._at
                coding, payload = pack(_encode(End(trailer, self._index)))
                self._append(self._frame(FrameKind.TRAILER, 1, payload, coding) + end_mark(at))
        finally:
            self._stop()
            self._release()
        if self._error is not None and not self._told:
            raise self._failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told = self._told or error is not None  # the first error is the one to tell
        self.close()

    # -- blocks

    def _check(self) -> None:
        if self._file is None:
            raise ValueError("this run file is closed")
        if self._fault is not None:
            raise self._fault
        if self._error is not None:
            raise self._failure()

    def _failure(self) -> StoreError:
        error = self._error
        assert error is not None
        self._told = True
        kept = f"The first {self._saved} requests are in it: read them with --partial. " if self._saved else ""
        return StoreError(
            f"{self.path}: cannot write the run file: {error.strerror or error}. {kept}"
            "Free space there, or give --out a path on another disk."
        )

    def _frame(self, kind: FrameKind, rows: int, payload: bytes, coding: int = 0) -> bytes:
        data = frame(kind, len(self._index), rows, payload, coding=coding, seed=self._seed)
        self._index.append((int(kind), self._at, rows))
        self._at += len(data)
        return data

    def _lay_out(self) -> None:
        """Make blocks of what has come. The caller holds the lock."""
        records, self._records = self._records, []
        states, self._states = self._states, []
        samples, self._samples = self._samples, []
        self._events, self._since = 0, 0.0
        if records:
            self._blocks.append((self._frame(FrameKind.RECORDS, len(records), encode_records(records)), len(records)))
        for kind, rows in ((FrameKind.STATES, states), (FrameKind.SAMPLES, samples)):
            if rows:
                coding, payload = pack(_encode(rows))
                self._blocks.append((self._frame(kind, len(rows), payload, coding), 0))

    # -- the writer's thread

    def _run(self) -> None:
        while True:
            with self._turn:
                while not self._blocks and not self._closing:
                    self._turn.wait(_LINGER_S)
                    if self._since and time.monotonic() - self._since >= _LINGER_S:
                        self._lay_out_here()
                if not self._blocks:
                    return
                blocks, self._blocks = self._blocks, []
                self._busy = True
            self._append(b"".join(data for data, _ in blocks), sum(records for _, records in blocks))
            with self._turn:
                self._busy = False
                self._turn.notify_all()

    def _lay_out_here(self) -> None:
        """For the writer's own thread, which must go on: whoever writes next is told what was wrong with a record."""
        try:
            self._lay_out()
        except Exception as error:  # noqa: BLE001  (whatever a value that cannot be laid out raises)
            self._fault, self._stopped = error, True

    def _append(self, data: bytes, records: int = 0) -> bool:
        """Write whole blocks, or nothing of them: a block that a full disk has torn is taken back."""
        file = self._file
        if file is None or self._error is not None:
            return False
        done = 0
        try:
            while done < len(data):
                done += os.write(file, memoryview(data)[done:])
            self._saved += records
        except OSError as error:
            self._error, self._stopped = error, True
            with contextlib.suppress(OSError):
                os.ftruncate(file, os.lseek(file, 0, os.SEEK_CUR) - done)
            return False
        return True

    def _stop(self) -> None:
        with self._turn:
            if self._error is None:
                self._lay_out()
            self._closing = True
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _release(self) -> None:
        file, self._file, self._stopped = self._file, None, True
        if file is not None:
            try:
                os.close(file)
            except OSError as error:  # some file systems say only now that there was no room
                self._error = self._error or error


EMPTY, HEADER_CUT = "the file is empty", "the header is cut"
NOTHING_YET: Final = (EMPTY, HEADER_CUT)
"""What a `RunFileError` says of a file whose writer was killed before it had written anything."""


def is_run_file(head: bytes) -> bool:
    """Whether a file that begins so is a run file, of this form or of the older one, which `read_run` names."""
    return head.startswith((MAGIC, b'{"tailrace_run"'))


def read_run(path: str | Path, *, allow_partial: bool = False, columns: bool = False) -> Run:
    """Read a run file; with `columns`, as a table without an object a record, which a million of them need.

    RunFileError (a bad file; names file, byte and remedy) when it is missing, is no run, has another schema, was
    cut, is damaged, or has something foreign in it. With `allow_partial`, every whole block is returned and
    `Run.problem` says what is missing and where; a bad header is always an error.
    """
    from tailrace.store.run_reader import read  # noqa: PLC0415  (it makes the classes above)

    return read(Path(path), allow_partial=allow_partial, columns=columns)
