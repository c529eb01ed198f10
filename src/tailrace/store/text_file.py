"""Text that somebody named on a command line, read with a bound: `/dev/zero`, a device or a pipe may never end."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

__all__ = ["bounded_lines", "read_text"]

TEXT_LIMIT: Final = 256 << 20
"""Bytes of a file that is read whole: templates, rules and tokenizers are a thousandth of it, conversations less."""
LINE_LIMIT: Final = 16 << 20
"""Characters of one line: the longest that a trace or a log holds is a few thousand."""


def read_text(path: str | Path, limit: int = TEXT_LIMIT) -> str:
    """The whole file as UTF-8. OSError (EFBIG) where it is longer than `limit` bytes, UnicodeDecodeError as usual."""
    with Path(path).open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it goes on for more than {limit >> 20} MB")
    return content.decode("utf-8")


def bounded_lines(file: TextIO, limit: int = LINE_LIMIT) -> Iterator[str]:
    """The lines of `file`, one at a time. OSError (EFBIG) at one that is longer than `limit` characters."""
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise OSError(errno.EFBIG, f"a line goes on for more than {limit >> 20} MB")
        yield line
