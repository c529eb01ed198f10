"""Timelines: the stamps of one request's events, kept for slow and failed requests and a sample of the rest."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class EventKind(IntEnum):
    """What an event of a stream was. Only `CONTENT`, `REASONING`, `TOOL` and `REFUSAL` carry tokens."""

    CONTENT = 0
    REASONING = 1
    TOOL = 2
    REFUSAL = 3
    ROLE = 4
    EMPTY = 5
    COMMENT = 6
    USAGE = 7
    FINISH = 8
    ERROR = 9
    DONE = 10
    PROGRESS = 11
    OTHER = 12


TOKEN_KINDS: frozenset[EventKind] = frozenset(
    {EventKind.CONTENT, EventKind.REASONING, EventKind.TOOL, EventKind.REFUSAL}
)


class Timeline(msgspec.Struct, frozen=True, omit_defaults=True):
    """Event stamps of one request, as three lists of equal length.

    `at_ns` are offsets from the request's start (our clock, monotonic). `tokens` is how many tokens the event
    brought, -1 where nobody said. `thinned` counts token events that were merged away to keep the list bounded:
    the first and last events and the longest gaps survive thinning, and `tokens` of a surviving event includes
    those merged into it. `merged`, present once anything was thinned, says how many token events each entry
    swallowed: the gap before an entry with `merged` > 0 is a sum, not a gap of the stream.
    """

    at_ns: list[int] = []
    kind: list[int] = []
    tokens: list[int] = []
    thinned: int = 0
    merged: list[int] = []

    def token_stamps(self) -> list[int]:
        """Offsets of the token-carrying events only, in order (ns)."""
        return [at for at, kind in zip(self.at_ns, self.kind, strict=True) if kind <= EventKind.REFUSAL]
