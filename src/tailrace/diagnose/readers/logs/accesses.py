"""Rows of access logs, kept in bounded memory.

A row stands for `count` requests: lines without any time are counted by what they say, and of ordinary lines (answered,
one attempt) every second goes when there are too many, while the others count double.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Clock, Place, Rows

__all__ = ["LIMIT", "Access", "Accesses", "plain_path"]

LIMIT: Final = 100_000
_PATHS: Final = 2000
_NAN: Final = float("nan")
_IDS: Final = re.compile(r"/(?:[0-9a-f]{8,}(?:-[0-9a-f]{4,})*|\d{3,})(?=/|$)", re.IGNORECASE)
NUMBERS: Final = (
    "at",
    "e2e",
    "ttft",
    "upstream",
    "upstream_last",
    "upstream_header",
    "upstream_connect",
    "overhead",
    "hop_queue",
    "server_conns",
    "queued",
    "bytes",
    "upstream_bytes",
    "status",
    "upstream_status",
    "attempts",
    "prompt_tokens",
    "output_tokens",
)
TEXTS: Final = ("method", "path", "upstream_address", "flags", "reason")


class Access(msgspec.Struct, kw_only=True):
    """One line of an access log. Durations in ms, sizes in bytes, `at` in seconds since 1970 as the log stamps it."""

    line: int = 0
    count: float = 1.0
    at: float = _NAN
    e2e: float = _NAN
    ttft: float = _NAN
    upstream: float = _NAN
    """All attempts together."""
    upstream_last: float = _NAN
    """The last attempt."""
    upstream_header: float = _NAN
    upstream_connect: float = _NAN
    overhead: float = _NAN
    """The gateway's own time, by its own word."""
    hop_queue: float = _NAN
    """Time in the balancer's queue for a connection to a server."""
    server_conns: float = _NAN
    """Connections to the server when the request ended."""
    queued: float = _NAN
    """Requests in the balancer's queues when it ended."""
    bytes: float = _NAN
    upstream_bytes: float = _NAN
    status: float = _NAN
    upstream_status: float = _NAN
    attempts: float = _NAN
    prompt_tokens: float = _NAN
    output_tokens: float = _NAN
    method: str = ""
    path: str = ""
    upstream_address: str = ""
    flags: str = ""
    reason: str = ""

    @property
    def ordinary(self) -> bool:
        """Answered, in one attempt, by nobody's timer."""
        return not self.flags and self.status < 400 and not self.attempts > 1


@lru_cache(maxsize=8192)
def plain_path(target: str) -> str:
    """A path without query and without what looks like an id."""
    return _IDS.sub("/…", target.split("?", 1)[0])[:120]


class Accesses:
    """The requests that a log's access lines tell of."""

    def __init__(self, source: str, *, limit: int = LIMIT) -> None:
        """`source` stands in the place of the table."""
        self.source = source
        self.limit = limit
        self.total = 0
        self.clock = Clock.NONE
        self._timed: list[Access] = []
        self._untimed: dict[tuple[str, str, float], Access] = {}
        self.thinned = 0

    def add(self, access: Access, clock: Clock = Clock.NONE) -> None:
        """One line."""
        self.total += 1
        if clock is not Clock.NONE:
            self.clock = clock
        access.path = plain_path(access.path)
        # NaN is not itself.
        if access.e2e == access.e2e or access.upstream == access.upstream or access.flags or access.attempts > 1:
            self._timed.append(access)
            if len(self._timed) > self.limit:
                self._thin()
            return
        key = (access.method, access.path, access.status)
        known = self._untimed.get(key)
        if known is None:
            if len(self._untimed) >= _PATHS:
                access.path = "(others)"
                known = self._untimed.get((access.method, access.path, access.status))
            if known is None:
                self._untimed[access.method, access.path, access.status] = access
                return
        known.count += 1

    def count_more(self, key: tuple[str, str, float], more: int) -> None:
        """`more` further lines like one that was added."""
        self.total += more
        self._untimed[key].count += more

    def _thin(self) -> None:
        self.thinned += 1
        goal = self.limit // 2
        rare = [one for one in self._timed if not one.ordinary]
        often = [one for one in self._timed if one.ordinary]
        for group in (often, rare):
            while len(group) > goal // 2:
                # Drop every second and let its neighbour count for it: sums stay what they are.
                for kept, gone in zip(group[::2], group[1::2], strict=False):
                    kept.count += gone.count
                del group[1::2]
        self._timed = sorted([*rare, *often], key=lambda one: one.line)

    def table(self) -> Rows | None:
        """All of it, in order of lines; `None` without a line."""
        rows = sorted([*self._timed, *self._untimed.values()], key=lambda one: one.line)
        if not rows:
            return None
        columns: dict[str, NDArray[Any]] = {
            name: np.array([getattr(one, name) for one in rows], dtype=np.float64) for name in ("count", *NUMBERS)
        }
        for name in TEXTS:
            texts = [getattr(one, name) for one in rows]
            if any(texts):
                columns[name] = np.array(texts, dtype=object)
        columns = {
            name: column for name, column in columns.items() if column.dtype == object or not np.isnan(column).all()
        }
        lines = np.array([one.line for one in rows], dtype=np.int64)
        return Rows(kind="access", columns=columns, clock=self.clock, lines=lines, place=Place(self.source))
