"""Where things lie in a data directory, and the locks that say who is alive.

::

    tailrace-data/
    ├── hot/                 <writer>.sqlite (+ -wal, -shm), <writer>.lock, <writer>.sealing
    ├── segments/2026-11-29/ <name>.parquet, <name>.replaces.json
    ├── amendments/2026-11-29/  the same, of what became known of requests later
    └── counters.jsonl       counters of writers whose hot files are sealed away

A writer holds an exclusive `flock` on `<writer>.lock` for as long as it lives, and the operating system lets it go
when the process is killed: that is how the next start tells a hot file left behind from one in use. The sealing
process holds `<writer>.sealing` while it works on a file, because it may outlive its parent for a moment.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final, Self

from tailrace.model.errors import InputError
from tailrace.store.series import AMENDMENTS, RECORDS, Series

__all__ = ["DEFAULT_DIRECTORY", "DataDirectory", "FileLock"]

DEFAULT_DIRECTORY: Final = "tailrace-data"


class DataDirectory:
    """The paths of one data directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.hot = self.root / "hot"
        self.segments = self.root / RECORDS.folder
        self.amendments = self.root / AMENDMENTS.folder
        self.counters = self.root / "counters.jsonl"

    def prepare(self) -> None:
        """Create the directories. InputError when that is not allowed or something else is in the way."""
        try:
            self.hot.mkdir(parents=True, exist_ok=True)
            self.segments.mkdir(exist_ok=True)
            self.amendments.mkdir(exist_ok=True)
            probe = self.hot / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"records cannot be written there: {error.strerror or error}",
                place=str(self.root),
                remedy="Give --data-dir a directory that you may write to.",
            ) from None

    def require(self) -> None:
        """InputError unless this is a data directory that can be read."""
        if not self.root.exists():
            raise InputError(
                "there is no such data directory",
                place=str(self.root),
                remedy="`tailrace serve --data-dir DIR` writes one; name it with --data-dir.",
            )
        if not (self.hot.is_dir() or self.segments.is_dir()):
            raise InputError(
                "this is not a data directory: it has neither `hot` nor `segments`",
                place=str(self.root),
                remedy="Name the directory that `tailrace serve --data-dir` wrote; of a folder with logs or tables, "
                "name its files (FOLDER/*).",
            )

    def segments_of(self, series: Series) -> Path:
        """Where the segments of a series lie."""
        return self.root / series.folder

    def hot_file(self, writer: str) -> Path:
        """The hot file of a writer."""
        return self.hot / f"{writer}.sqlite"

    def hot_files(self) -> list[Path]:
        """Every hot file, of writers alive and dead."""
        return sorted(self.hot.glob("*.sqlite")) if self.hot.is_dir() else []

    def life_lock(self, writer: str) -> FileLock:
        """The lock that a writer holds for life."""
        return FileLock(self.hot / f"{writer}.lock")

    def sealing_lock(self, writer: str) -> FileLock:
        """The lock held while a writer's hot file is being sealed."""
        return FileLock(self.hot / f"{writer}.sealing")

    def remove_hot(self, writer: str) -> None:
        """Remove a writer's hot file and its companions; the database first, for without its log it would lie."""
        path = self.hot_file(writer)
        path.unlink(missing_ok=True)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        for lock in (self.life_lock(writer), self.sealing_lock(writer)):
            lock.path.unlink(missing_ok=True)


class FileLock:
    """An exclusive advisory lock (`flock`) on a file; released by `release`, or by the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Try for `timeout_s` seconds; whether it is ours now."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return False
                time.sleep(0.02)
            else:
                self._fd = fd
                return True

    def release(self) -> None:
        """Let it go."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        if self._fd is None and not self.acquire(10.0):
            raise TimeoutError(str(self.path))
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()
