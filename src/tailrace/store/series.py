"""What a data directory keeps, each kind in tables and segments of its own: records, and their amendments.

Both go the same way (queue, hot file, sealed segment, merged segment, pruned) by the same code; this says what differs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["AMENDMENTS", "RECORDS", "SERIES", "Series"]


class Series(NamedTuple):
    """One kind of thing that is kept."""

    name: str
    batches: str
    """Table of the hot file that holds committed batches."""
    seals: str
    """Table of the hot file that is its seal log."""
    folder: str
    """Directory of its segments in the data directory."""
    clock: str
    """The column (wall clock, ns) by which segments are named, sorted, cut to a window and pruned."""


RECORDS: Final = Series("records", "batch", "seal", "segments", "start_unix_ns")
AMENDMENTS: Final = Series("amendments", "amendment", "amendment_seal", "amendments", "received_unix_ns")
SERIES: Final = {series.name: series for series in (RECORDS, AMENDMENTS)}
