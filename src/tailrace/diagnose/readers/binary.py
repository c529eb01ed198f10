"""What a file is that is no text: said in words, with what to give instead."""

from __future__ import annotations

from typing import Final

__all__ = ["NULS_REMEDY", "binary_words"]

NULS_REMEDY: Final = (
    "Give the log, table or run file itself, unpacked; of a log that was cut while it was written, take the NUL bytes "
    "out: tr -d '\\000' < FILE."
)

_MAGIC: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"\x89PNG", "a picture (PNG)", "Paste what it shows as text, or give the table or log it was taken from."),
    (b"\xff\xd8\xff", "a picture (JPEG)", "Paste what it shows as text, or give the table or log it was taken from."),
    (b"GIF8", "a picture (GIF)", "Paste what it shows as text, or give the table or log it was taken from."),
    (b"%PDF", "a PDF", "Paste its text, or give the table or log it was made from."),
    (b"PK\x03\x04", "a zip archive (or a spreadsheet)", "Unpack it; save a spreadsheet as CSV."),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "Unpack it first: unzstd FILE."),
    (b"\xfd7zXZ", "compressed by xz", "Unpack it first: unxz FILE."),
    (b"BZh", "compressed by bzip2", "Unpack it first: bunzip2 FILE."),
    (b"PAR1", "a Parquet file", "Save it as CSV or JSON lines."),
    (b"SQLite format 3", "an SQLite database", "Export the table as CSV."),
    (b"\x7fELF", "a program", "Give a log, a table, or a run file."),
)
_SOME: Final = 64


def binary_words(head: bytes) -> tuple[str, str] | None:
    """(what it is, what to give instead) of the beginning of a file; `None` for text."""
    for magic, words, remedy in _MAGIC:
        if head.startswith(magic):
            return f"this is {words}", remedy
    sample = head[:4096]
    if sample.count(0) > 0.9 * len(sample):
        return "it begins with NUL bytes, no text", NULS_REMEDY
    odd = sum(byte < 9 or 13 < byte < 27 for byte in sample)
    if len(sample) >= _SOME and odd > 0.1 * len(sample):
        return "this is binary, no text", "Give the log, table or run file itself, unpacked."
    return None
