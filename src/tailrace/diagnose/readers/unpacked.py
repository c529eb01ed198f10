"""A file that was packed (gzip, bzip2, xz, a zip archive with one file in it), as the file that it holds."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tailrace.diagnose.readers.logs.log import is_log
from tailrace.model.errors import InputError

__all__ = ["unpacked"]

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
    """The path of a plain file with what `path` holds: itself where it is plain already, or a log packed by gzip, which
    its reader streams. The copy is gone afterwards.

    InputError where it is cut, damaged or too large.
    """
    magic = _magic(path)
    if magic is None or (magic == _GZIP and _is_packed_log(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-unpacked-") as folder:
        copy = Path(folder) / _plain_name(path)
        try:
            with _opened(path, magic) as source, copy.open("wb") as target:
                size = 0
                while block := source.read(_BLOCK):
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
        yield copy


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


def _is_packed_log(path: Path) -> bool:
    try:
        with gzip.open(path, "rb") as file:
            head = file.read(_HEAD)
    except _BROKEN:
        return True  # the reader of logs says where it ends
    return is_log(head.decode("utf-8", "replace"), _plain_name(path))


def _plain_name(path: Path) -> str:
    name = path.name
    for ending in _ENDINGS:
        if name.endswith(ending) and len(name) > len(ending):
            return name.removesuffix(ending)
    return name
