"""What happened once, again and again: the first and the last of each kind are kept, all are counted."""

from __future__ import annotations

from collections import deque
from typing import Final

from tailrace.diagnose.observed import Clock, Event, Place

__all__ = ["Happenings"]

FIRST: Final = 1000
LAST: Final = 1000
_TEXT: Final = 300


class Happenings:
    """Events by kind, in bounded memory."""

    def __init__(self, source: str) -> None:
        """`source` stands in the places of the events."""
        self.source = source
        self.counts: dict[str, int] = {}
        self._first: dict[str, list[Event]] = {}
        self._last: dict[str, deque[Event]] = {}

    def add(
        self,
        kind: str,
        line: int,
        stamp: tuple[float, Clock] | None,
        text: bytes | str,
        attributes: dict[str, float | str] | None = None,
    ) -> None:
        """One more."""
        count = self.counts.get(kind, 0)
        self.counts[kind] = count + 1
        said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        at, clock = stamp or (None, Clock.NONE)
        event = Event(
            kind=kind,
            at=at,
            clock=clock,
            text=said if len(said) <= _TEXT else said[: _TEXT - 1] + "…",
            attributes=attributes or {},
            place=Place(self.source, line),
        )
        if count < FIRST:
            self._first.setdefault(kind, []).append(event)
        else:
            self._last.setdefault(kind, deque(maxlen=LAST)).append(event)

    def events(self) -> list[Event]:
        """Those that were kept, in order of their lines."""
        kept = [event for events in (*self._first.values(), *self._last.values()) for event in events]
        return sorted(kept, key=lambda event: event.place.line)

    def said(self) -> list[str]:
        """Of which kinds not all were kept."""
        return [
            f"{count:,} lines of kind {kind!r}: the first {FIRST} and the last {LAST} were kept"
            for kind, count in self.counts.items()
            if count > FIRST + LAST
        ]
