"""Listening on a Unix socket: whose file it is, what becomes of a stale one, who may connect."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from tailrace.model.errors import InputError


class UnixListener:
    """A bound socket and its file, which goes away with it."""

    def __init__(self, path: str, mode: int, *, backlog: int = 4096) -> None:
        """Bind and listen.

        A file that a dead process left behind is replaced. InputError where somebody listens there, or where the path
        cannot be a socket.
        """
        self.path = path
        _clear(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.served = False
        """A server has taken the socket, and closes it."""
        self._mark: tuple[int, int] | None = None
        try:
            self.socket.bind(path)
            found = os.stat(path)  # noqa: PTH116
            self._mark = found.st_dev, found.st_ino
            Path(path).chmod(mode)  # before `listen`: until then nobody can connect
            self.socket.listen(backlog)
        except OSError as error:
            self.close()
            raise _refused(path, error) from None

    def close(self) -> None:
        """Take the file away unless another has taken its place; close what no server closes."""
        if not self.served:
            self.socket.close()
        with contextlib.suppress(OSError):
            found = os.stat(self.path)  # noqa: PTH116
            if self._mark == (found.st_dev, found.st_ino):
                Path(self.path).unlink()


def _clear(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError("there is a file that is no socket", place=f"unix:{path}", remedy="Choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(path)
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise _refused(path, error) from None
        else:
            raise InputError(
                "the socket is in use",
                place=f"unix:{path}",
                remedy="Stop whatever listens there, or choose another path with --listen.",
            )
    with contextlib.suppress(FileNotFoundError):
        Path(path).unlink()


def _refused(path: str, error: OSError | ValueError) -> InputError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(
        f"cannot listen there: {why}",
        place=f"unix:{path}",
        remedy="Choose a path in a directory that exists and that this user may write, at most 107 bytes long.",
    )
