"""Small files of the kernel, read so that none of them can hold or fail us."""

from __future__ import annotations

import os
from typing import Final

_MOST_PROBLEMS: Final = 256
_MOST: Final = 256 * 1024
"""Bytes of one file; `/proc/net/tcp` of a busy machine is larger, and is read by lines elsewhere."""


class KernelFiles:
    """`/proc` and what is mounted under `/`, or a tree of files that looks like it."""

    def __init__(self, proc: str = "/proc") -> None:
        self.proc = proc
        self.problems: dict[str, str] = {}
        """File -> why it could not be read the last time; of the last few that could not."""

    def text(self, name: str) -> str:
        """A file under `/proc`; empty where it is not there or not ours to read."""
        return self.at(f"{self.proc}/{name}")

    def at(self, path: str, most: int = _MOST) -> str:
        """A file; empty where it is not there or not ours to read."""
        try:
            # Not blocking: whatever stands at this path, opening it must not wait for a writer.
            number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._note(path, error)
            return ""
        try:
            parts, left = [], most
            while left > 0 and (part := os.read(number, min(left, 65536))):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            # A process that ends between open and read says ESRCH; a pressure file of a kernel without it, EOPNOTSUPP.
            self._note(path, error)
            return ""
        finally:
            os.close(number)
        self.problems.pop(path, None)
        return b"".join(parts).decode("utf-8", "replace")

    def _note(self, path: str, error: OSError) -> None:
        # Threads and processes come and go, each with a path of its own.
        if len(self.problems) >= _MOST_PROBLEMS:
            self.problems.clear()
        self.problems[path] = error.strerror or str(error)

    def names(self, path: str) -> list[str]:
        """Entries of a directory under `/proc`; none where it is gone."""
        try:
            return os.listdir(f"{self.proc}/{path}")  # noqa: PTH208  (a tenth of the cost of pathlib's objects)
        except OSError:
            return []

    def link(self, path: str) -> str:
        """Target of a link under `/proc`; empty where it is not ours to read."""
        try:
            return os.readlink(f"{self.proc}/{path}")  # noqa: PTH115  (as above)
        except OSError:
            return ""

    def pids(self) -> list[int]:
        """The processes of this machine, as far as this process sees them."""
        return [int(name) for name in self.names("") if name.isdigit()]
