"""`RecordWriter`: from the request path to the disk, without the request path ever waiting for the disk.

::

    put() ──> Backlog (bounded) ──> writer thread ──> hot file (commit = acknowledged) ──> sealing process ──> segment
    amendments.put() ──> AmendmentQueue ──┘

One thread does everything that touches a file. The records of 200 ms are committed together; a record costs about 4 us
of that thread. When the disk fails, the batch in hand is kept and tried again, the backlog fills and drops by
class, and `error` says what the disk said: relaying never stops for want of records.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from tailrace.model.amendment import Amendment
from tailrace.model.errors import StoreError
from tailrace.model.record import RequestRecord
from tailrace.store.amendment_file import encode_amendments
from tailrace.store.amendment_queue import AmendmentQueue
from tailrace.store.backlog import Backlog, record_class
from tailrace.store.batch import MAX_BATCH, encode_batch
from tailrace.store.hot import HotFile, Packed, ignore_step
from tailrace.store.layout import DataDirectory
from tailrace.store.sealer import Job, Reply
from tailrace.store.sealing import SEALER_COMMAND, Sealing
from tailrace.store.series import AMENDMENTS, RECORDS, SERIES, Series

__all__ = ["RecordWriter", "WriterOptions"]

_COMMIT_RECORDS: Final = 8 * MAX_BATCH
_RETRY_S: Final = 1.0
_SEAL_RETRY_S: Final = 10.0
_TIDY_S: Final = 3600.0


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The writer's numbers; the defaults are right for one gateway process."""

    capacity: int = 20_000
    """Records that may wait for the disk."""
    event_capacity: int = 1_000_000
    """Timeline events among them (about 60 bytes each)."""
    amendment_capacity: int = 20_000
    """Amendments that may wait beside them (some 600 bytes each)."""
    linger_s: float = 0.2
    """How long the thread lets records gather before it commits them; the delay of an acknowledgement. A commit costs
    half a millisecond, however few records are in it: at sixteen requests a second that was a third of a gateway's
    work when it came every 50 ms."""
    seal_rows: int = 25_000
    """Seal as soon as so many records are hot."""
    seal_after_s: float = 30.0
    """Seal what is there when its oldest record has been hot for so long."""
    seal_min_rows: int = 500
    """... but let fewer records than this wait ten times as long: thousands of tiny files slow every query."""
    keep_days: float | None = None
    """Segments older than this are pruned once an hour; `None` keeps everything."""
    sealing: bool = True
    """Off: everything stays in the hot file, and the next start seals it."""


class _Hot(msgspec.Struct):
    """What lies unsealed in the hot file, of one series."""

    rows: int = 0
    since: float = 0.0

    def grew(self, rows: int) -> None:
        if not self.rows:
            self.since = time.monotonic()
        self.rows += rows


class RecordWriter:
    """Writes the records of one process into a data directory, and amendments to the records of any process.

    `put` may be called from any thread. `acknowledged` counts the committed records; a process killed at any moment
    loses none of those.
    """

    def __init__(
        self,
        root: str | Path,
        options: WriterOptions | None = None,
        *,
        sealer_command: Sequence[str] = SEALER_COMMAND,
        open_hot: Callable[..., HotFile] = HotFile,
        on_commit: Callable[[Sequence[RequestRecord]], None] | None = None,
        on_step: Callable[[str], None] = ignore_step,
    ) -> None:
        """Claim a hot file of our own and start the thread. InputError when the directory cannot be written.

        `on_commit` is called by the writer thread with the records of each commit. `open_hot`, `sealer_command` and
        `on_step` exist for fault injection.
        """
        self.options = options or WriterOptions()
        self.directory = DataDirectory(root)
        self.directory.prepare()
        self.name = f"{os.getpid()}x{secrets.token_hex(4)}"
        """Unique for ever: never a name of an earlier process."""
        self._life = self.directory.life_lock(self.name)
        if not self._life.acquire():
            raise StoreError(f"{self._life.path}: a new lock is taken already")
        self._left_behind = [path.stem for path in self.directory.hot_files()]
        self._hot = open_hot(self.directory.hot_file(self.name), self.name, on_step=on_step)
        self._on_commit = on_commit
        self._wake = threading.Event()
        self._sealing = Sealing(sealer_command)
        self._backlog = Backlog(self.options.capacity, self.options.event_capacity)
        self.acknowledged = 0
        """Records committed to the hot tier."""
        self.sealed = 0
        """Records sealed into segments by this writer."""
        self.error = ""
        """What went wrong last on the disk; empty again once a commit succeeds."""
        self.seal_error = ""
        """What went wrong in the last sealing; empty again once one succeeds."""
        self.amendments = AmendmentQueue(self.options.amendment_capacity, self._nudge)
        """Takes amendments: `amendments.put`, from any thread."""
        self._in_hand: list[RequestRecord] = []
        self._encoded: list[Packed] = []
        self._late_in_hand: list[Amendment] = []
        self._lies = {RECORDS: _Hot(), AMENDMENTS: _Hot()}
        self._seal_not_before = 0.0
        self._tidy_at = time.monotonic() + _TIDY_S
        self._saved_counters: dict[str, int] = {}
        self._closing = threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="tailrace-records", daemon=True)
        self._thread.start()

    # -- the request path

    def put(self, record: RequestRecord) -> bool:
        """Queue a record; never waits. False when it was dropped (and counted by class)."""
        if self._closing.is_set():
            self._backlog.count_drop(record_class(record))
            return False
        taken = self._backlog.put(record)
        self._nudge()
        return taken

    def _nudge(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    # -- seen from outside

    @property
    def waiting(self) -> int:
        """Records not yet committed."""
        return len(self._backlog) + len(self._in_hand)

    @property
    def dropped(self) -> dict[str, int]:
        """Class -> records lost: the queue was full, or closing ran out of time."""
        return dict(self._backlog.dropped)

    def counters(self) -> dict[str, int]:
        """Everything counted, flat: `acknowledged`, `sealed`, `waiting`, `dropped.normal`, `dropped.slow`, ...

        Amendments are counted apart (`amendments.acknowledged`, ...): losing one loses no request.
        """
        out = {"acknowledged": self.acknowledged, "sealed": self.sealed, "waiting": self.waiting}
        out.update({f"dropped.{kind}": n for kind, n in sorted(self._backlog.dropped.items())})
        return out | self.amendments.counters()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything put so far is committed. For tests, tools and shutdown, never for a request."""
        return self._until(lambda: self.waiting == 0 and not self.amendments and not self._late_in_hand, timeout_s)

    def seal_now(self, timeout_s: float = 60.0) -> bool:
        """Commit and seal everything, and wait for it. For tools and tests."""
        if not self.flush(timeout_s):
            return False
        self._seal_all = True
        try:
            return self._until(lambda: not self._unsealed and not self._sealing.busy, timeout_s)
        finally:
            self._seal_all = False

    _seal_all = False

    @property
    def _unsealed(self) -> int:
        return sum(lies.rows for lies in self._lies.values())

    def _until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline or not self._thread.is_alive():
                return done()
            self._wake.set()
            time.sleep(0.002)
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """Commit what waits, end the sealing process and the thread. What could not be written is counted as dropped.

        Records still hot stay in their file: every reader finds them there, and the next start seals them.
        """
        self._deadline = time.monotonic() + timeout_s
        self.amendments.closed = True
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s + 0.5)
        if self._thread.is_alive():
            # A disk that hangs: the thread is a daemon and dies with the process.
            for record in (*self._in_hand, *self._backlog.take(self.options.capacity)):
                self._backlog.count_drop(record_class(record))
            self._give_up_late()

    def _give_up_late(self) -> None:
        for amendment in (*self._late_in_hand, *self.amendments.take(self.amendments.capacity)):
            self.amendments.count_drop(amendment)
        self._late_in_hand = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -- the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._patience())
            if (self._backlog or self.amendments) and len(self._backlog) < self.options.capacity // 4:
                self._closing.wait(self.options.linger_s)
            self._wake.clear()
            self._commit_all()
            self._look_after_sealing()
        self._finish()

    def _patience(self) -> float:
        """Seconds to sleep when nobody wakes us."""
        if self._sealing.busy:
            return 0.05
        return 1.0 if self._unsealed or self._left_behind else 5.0

    def _commit_all(self) -> None:
        while self._has_work():
            self._take()
            if not self._commit():
                # The batch stays in hand. Meanwhile the backlog takes what it can, and drops by class.
                self._closing.wait(_RETRY_S)
                return
            self._look_after_sealing()
            if len(self._backlog) < self.options.capacity // 4 and not self.amendments.overfull:
                # What came meanwhile gathers like the rest: a commit costs a millisecond, however few are in it.
                break
        counters = self._counters_to_save()
        if counters != self._saved_counters and not self.error:
            self._save_counters(counters)

    def _has_work(self) -> bool:
        return bool(self._in_hand or self._late_in_hand or self._backlog or self.amendments)

    def _take(self) -> None:
        """Take the next commit in hand, unless the last one is still there."""
        if self._in_hand or self._late_in_hand:
            return
        self._in_hand = self._backlog.take(_COMMIT_RECORDS)
        self._encoded = self._encode(self._in_hand)
        self._late_in_hand = self.amendments.take(_COMMIT_RECORDS)

    def _counters_to_save(self) -> dict[str, int]:
        lost = {f"dropped.{kind}": n for kind, n in self._backlog.dropped.items()}
        return lost | {f"amendments.dropped.{kind}": n for kind, n in self.amendments.dropped.items()}

    def _save_counters(self, counters: dict[str, int]) -> None:
        try:
            self._hot.put_counters(counters)
            self._saved_counters = counters
        except StoreError as error:
            self.error = str(error)

    def _encode(self, records: list[RequestRecord]) -> list[Packed]:
        out: list[Packed] = []
        for at in range(0, len(records), MAX_BATCH):
            part = records[at : at + MAX_BATCH]
            try:
                out.append(_packed(part))
            except (OverflowError, TypeError, ValueError):
                # One record that does not fit must not take its neighbours along, nor be tried for ever.
                for record in part:
                    try:
                        out.append(_packed([record]))
                    except (OverflowError, TypeError, ValueError):
                        self._backlog.count_drop("unencodable")
        return out

    def _commit(self) -> bool:
        counters = self._counters_to_save()
        late = self._late_in_hand
        try:
            if self._encoded or late:
                self._hot.append(self._encoded, counters, _packed_late(late))
        except StoreError as error:
            self.error = str(error)
            return False
        self.error = ""
        self._saved_counters = counters
        committed, self._in_hand, self._late_in_hand = self._in_hand, [], []
        rows = sum(batch[0] for batch in self._encoded)
        self._encoded = []
        self._lies[RECORDS].grew(rows)
        self.acknowledged += rows
        self._lies[AMENDMENTS].grew(len(late))
        self.amendments.acknowledged += len(late)
        if self._on_commit is not None and committed:
            self._on_commit(committed)
        return True

    # -- sealing, driven by the same thread

    def _look_after_sealing(self) -> None:
        reply = self._sealing.poll()
        if reply is not None:
            self._take_answer(reply)
        if self._sealing.busy or not self.options.sealing:
            return
        now = time.monotonic()
        if now < self._seal_not_before:
            return
        job = self._next_job(now)
        if job is None:
            return
        try:
            self._sealing.start(job)
        except OSError as error:
            self._seal_failed(str(error))

    def _next_job(self, now: float) -> Job | None:
        for series, lies in self._lies.items():
            if not self._seal_due(lies, now):
                continue
            try:
                name = self._hot.begin_seal(self.options.seal_rows, series)
            except StoreError as error:
                self._seal_failed(str(error))
                return None
            if name is not None:
                return self._job("seal", self.name, name.text, series)
        if self._left_behind:
            return self._job("adopt", self._left_behind.pop(0))
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_S
            return self._job("tidy")
        return None

    def _seal_due(self, lies: _Hot, now: float) -> bool:
        if not lies.rows:
            return False
        if self._seal_all or lies.rows >= self.options.seal_rows:
            return True
        patience = self.options.seal_after_s * (1 if lies.rows >= self.options.seal_min_rows else 10)
        return now - lies.since >= patience

    def _job(self, kind: str, writer: str = "", segment: str = "", series: Series = RECORDS) -> Job:
        return Job(
            kind=kind,
            root=str(self.directory.root.absolute()),
            writer=writer,
            segment=segment,
            keep_days=self.options.keep_days,
            series=series.name,
        )

    def _take_answer(self, reply: Reply) -> None:
        if reply.error:
            self._seal_failed(reply.error)
            return
        self.seal_error = ""
        if reply.kind != "seal":
            return
        series = SERIES[reply.series]
        name = next((name for name in self._hot.pending(series) if name.text == reply.segment), None)
        if name is None or reply.skipped:
            self._seal_failed(f"segment {reply.segment} was not written")
            return
        try:
            self._hot.finish_seal(name, series)
        except StoreError as error:
            self._seal_failed(str(error))
            return
        if series is RECORDS:
            self.sealed += name.rows
        else:
            self.amendments.sealed += name.rows
        lies = self._lies[series]
        lies.rows -= name.rows
        lies.since = time.monotonic()

    def _seal_failed(self, message: str) -> None:
        self.seal_error = message
        self._seal_not_before = time.monotonic() + _SEAL_RETRY_S

    # -- the end

    def _finish(self) -> None:
        while self._has_work() and time.monotonic() < self._deadline:
            self._take()
            if not self._commit():
                time.sleep(0.05)
        for record in (*self._in_hand, *self._backlog.take(self.options.capacity)):
            self._backlog.count_drop(record_class(record))
        self._in_hand = []
        self._give_up_late()
        reply = self._sealing.wait(max(0.0, self._deadline - time.monotonic() - 0.3))
        if reply is not None:
            self._take_answer(reply)
        self._sealing.close(max(0.1, min(0.3, self._deadline - time.monotonic())))
        self._save_counters(self._counters_to_save())
        self._hot.close()
        if not self._unsealed and not self.acknowledged and not self.amendments.acknowledged:
            # Nothing was ever written: leave no empty file behind.
            self.directory.remove_hot(self.name)
        self._life.release()


def _packed(records: list[RequestRecord]) -> Packed:
    starts = [record.start_unix_ns for record in records]
    return len(records), min(starts), max(starts), encode_batch(records)


def _packed_late(amendments: list[Amendment]) -> list[Packed]:
    out = []
    for at in range(0, len(amendments), MAX_BATCH):
        part = amendments[at : at + MAX_BATCH]
        came = [one.received_unix_ns for one in part]
        out.append((len(part), min(came), max(came), encode_amendments(part)))
    return out
