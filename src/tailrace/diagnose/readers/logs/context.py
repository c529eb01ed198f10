"""What every dialect gets with a line, and where it puts what the line says."""

from __future__ import annotations

import msgspec

from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.logs.accesses import Accesses
from tailrace.diagnose.readers.logs.happenings import Happenings
from tailrace.diagnose.readers.logs.stamps import Yearless, stamp_in

__all__ = ["Context"]

_PAIRS = 200


class Context(msgspec.Struct, kw_only=True):
    """One source while it is read."""

    source: str
    events: Happenings
    accesses: Accesses
    number: int = 0
    """Of the line in hand."""
    outer: tuple[float, Clock] | None = None
    """The collector's stamp of the line in hand."""
    origin: str = ""
    """The container, pod or program that wrote the line in hand, as the collector names it."""
    years: Yearless = msgspec.field(default_factory=Yearless)
    offsets: list[float] = []
    """UTC minus the line's own stamp, of lines that carry both."""
    clock: Clock = Clock.NONE
    """Of the engine's own stamps."""
    dialects: dict[str, int] = {}
    """How many lines each dialect understood."""
    rejected: int = 0
    """Values that cannot be: shares outside 0..1, negative numbers."""
    unknown_keys: dict[str, int] = {}

    def stamp(self, text: bytes, end: int = 300) -> tuple[float, Clock] | None:
        """The line's own stamp, else the collector's. Stamps without a year are made to rise over the new year."""
        own = stamp_in(text, end)
        if own is None:
            return self.outer
        at, clock = own
        if clock is Clock.LOCAL and at < 2 * 366 * 86400:
            at = self.years.rising(at)
        if self.outer is not None and clock is Clock.LOCAL and len(self.offsets) < _PAIRS:
            self.offsets.append(self.outer[0] - at)
        return at, clock

    def understood(self, dialect: str) -> bool:
        """Count a line for a dialect; always true."""
        self.dialects[dialect] = self.dialects.get(dialect, 0) + 1
        return True
