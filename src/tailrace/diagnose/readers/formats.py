"""All formats of foreign evidence, in the order in which they are tried: the particular before the general."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.readers.chunks import CHUNKS
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.requests import REQUESTS
from tailrace.diagnose.readers.timeseries import TIMESERIES

__all__ = ["FORMATS", "format_of"]

FORMATS: Final[tuple[Format, ...]] = (
    CHUNKS,
    REQUESTS,
    TIMESERIES,
)


def format_of(head: str, name: str) -> Format | None:
    """The first format that recognises the beginning of a file; `None` when none does."""
    return next((item for item in FORMATS if item.matches(head, name)), None)
