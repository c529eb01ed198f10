"""A file that was packed (gzip, bzip2, xz, a zip archive with one file in it) or that Windows wrote (UTF-16), as the
plain one that it holds.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tailrace.diagnose.readers.encodings import encoding_of, recoded
from tailrace.diagnose.readers.logs.log import is_log
from tailrace.model.errors import InputError

__all__ = ["LOG_ENDINGS", "unpacked"]

LOG_ENDINGS: Final = frozenset({".log", ".gz", ".out", ".txt"})
"""Of the files that are logs, and may be longer than what fits anywhere twice."""

MOST_BYTES: Final = 4 << 30
"""Of the plain file: a packed one may be a thousand times smaller than what it holds."""
_BLOCK: Final = 1 << 20
_HEAD: Final = 1 << 16
_GZIP, _BZIP2, _XZ, _ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"PK\x03\x04"
_ENDINGS: Final = (".gz", ".bz2", ".xz", ".zip")
_BROKEN: Final = (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError)
"""What the libraries raise on damaged, cut and encrypted files."""


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The path of a plain file in UTF-8 with what `path` holds: itself where it is that already, or a log packed by
    gzip or in UTF-16, which its reader streams. The copy is gone afterwards.

    InputError where it is cut, damaged or too large.
    """
    magic = _magic(path)
    encoding = None if magic is not None else _encoding(path)
    if (magic is None and encoding is None) or _is_streamed(path, magic, encoding):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-unpacked-") as folder:
        plain = path
        if magic is not None:
            plain = Path(folder) / _plain_name(path)
            _copy(path, _opened(path, magic), plain)
            encoding = _encoding(plain)
        if encoding is not None:
            recoded_ = Path(folder) / "text" / plain.name
            recoded_.parent.mkdir()
            _copy(path, plain.open("rb"), recoded_, encoding)
            plain = recoded_
        yield plain


def _copy(path: Path, opened: IO[bytes], copy: Path, encoding: str | None = None) -> None:
    """Write what is opened; text in `encoding` as UTF-8. `path` is the file that the user named."""
    try:
        with opened as source, copy.open("wb") as target:
            blocks: Iterable[bytes] = iter(lambda: source.read(_BLOCK), b"")
            size = 0
            for block in blocks if encoding is None else recoded(blocks, encoding):
                size += len(block)
                if size > MOST_BYTES:
                    raise InputError(
                        f"it holds more than {MOST_BYTES >> 30} GiB", place=str(path), remedy="Unpack it first."
                    )
                target.write(block)
    except _BROKEN as error:
        raise InputError(
            f"it cannot be unpacked to its end: {error}",
            place=str(path),
            remedy="Copy it again, or unpack it first and give what it holds.",
        ) from None


def _encoding(path: Path) -> str | None:
    """The encoding that a mark at the beginning of a file names; `None` for UTF-8 and what cannot be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return encoding_of(file.read(4))
    except (OSError, ValueError):
        return None  # whoever reads it says what is wrong with it


def _magic(path: Path) -> bytes | None:
    """How it is packed; `None` for a plain file, an archive of several, and what cannot be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(8)
        magic = next((one for one in (_GZIP, _BZIP2, _XZ, _ZIP) if head.startswith(one)), None)
        if magic == _ZIP:
            with zipfile.ZipFile(path) as archive:
                return magic if len(archive.infolist()) == 1 else None
    except (OSError, ValueError, zipfile.BadZipFile):
        return None  # whoever reads it says what is wrong with it
    return magic


def _opened(path: Path, magic: bytes) -> IO[bytes]:
    if magic == _BZIP2:
        return bz2.open(path, "rb")
    if magic == _XZ:
        return lzma.open(path, "rb")
    if magic == _ZIP:
        archive = zipfile.ZipFile(path)
        return archive.open(archive.infolist()[0])
    return io.BufferedReader(gzip.open(path, "rb"))


def _is_streamed(path: Path, magic: bytes | None, encoding: str | None) -> bool:
    """Whether it is a log that its reader unpacks or decodes as it goes, however long it is."""
    if magic == _GZIP:
        head = _packed_head(path)
        # Of what is cut before its first byte the reader of logs says so.
        return not head or is_log(head.decode("utf-8", "replace"), _plain_name(path))
    if encoding is None or path.suffix not in LOG_ENDINGS:
        return False
    with path.open("rb") as file:
        return is_log(file.read(_HEAD).decode(encoding, "replace"), path.name)


def _packed_head(path: Path) -> bytes:
    """The beginning of what is packed by gzip, as far as it is there."""
    head = b""
    try:
        with gzip.open(path, "rb") as file:
            # `read` would lose what it has when the next byte is missing.
            while len(head) < _HEAD and (part := file.read1(_HEAD - len(head))):
                head += part
    except _BROKEN:
        return head
    return head or b"\n"


def _plain_name(path: Path) -> str:
    name = path.name
    for ending in _ENDINGS:
        if name.endswith(ending) and len(name) > len(ending):
            return name.removesuffix(ending)
    return name
