"""How old requests were when they failed, and whether the ages pile up at one value, as a timer makes them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.age_cluster import WIDTH, WIDTH_MS, densest
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.timer_ends import GAVE_UP

__all__ = ["Ages", "Pile", "failure_ages", "pile_of"]

Floats = NDArray[np.float64]

LEAST: Final = 3
LEAST_AGE_MS: Final = 500.0
"""A hop that answers sooner refused the request at once: no timer is as short."""
MOST: Final = 0.6
"""Of the failures must lie in the pile."""
_LOST: Final = re.compile(
    r"\bU[CR]\b|\bSI\b|\bIT\b|reset|terminat|prematurely|disconnect|remote close|closed|"
    r"hang ?up|eof|time[ -]?d? ?out|idle",
    re.IGNORECASE,
)
"""A hop's word for a connection that ended under it: Envoy's flags, the details beside them, nginx's sentence."""
_OWN: Final = (502.0, 503.0)
"""What a hop says then. Without such a word 503 is a refusal, and both may be the engine's own."""


class Ages(NamedTuple):
    """Failed requests of one table."""

    ms: Floats
    received: Floats
    """Bytes (or tokens) of the answer that had come; NaN where nobody counted."""
    own: NDArray[np.bool_]
    """The client itself gave up."""
    hung: NDArray[np.bool_]
    """The client left: no failure of the way."""
    total: int
    """Requests in the table."""
    rows: Rows
    at: NDArray[np.int64]
    """Their rows."""


class Pile(NamedTuple):
    """Failures of one age."""

    ages: Ages
    ms: float
    low: float
    high: float
    members: NDArray[np.int64]
    """Places in `ages`."""
    failed: int

    @property
    def n(self) -> int:
        """How many."""
        return int(self.members.size)

    @property
    def place(self) -> str:
        """Where the first of them stands."""
        return str(self.ages.rows.line_of(int(self.ages.at[self.members[0]])))


def failure_ages(observed: Observed) -> list[Ages]:
    """Every table of requests, and every access log, that has failures with ages."""
    out = [found for rows in observed.table("access") if (found := _of_access(rows)) is not None]
    for rows in observed.table("requests"):
        status = np.array([text.lower() for text in rows.texts("status")], dtype=object)
        failed = np.flatnonzero(np.isin(status, ["error", "timeout", "failed", "cancelled"]))
        ages = _age(rows)[failed]
        known = np.isfinite(ages) & (ages > 0)
        if not known.any():
            continue
        index = failed[known]
        came = _received(rows)[index]
        out.append(
            Ages(
                ages[known],
                came,
                np.asarray((status[index] == "timeout") & ~_answered(rows)[index], dtype=bool),
                np.asarray(status[index] == "cancelled", dtype=bool),
                len(rows),
                rows,
                index,
            )
        )
    return out


def _of_access(rows: Rows) -> Ages | None:
    """Requests of an access log on which a hop lost its upstream, or gave it up."""
    status = rows.numbers("status")
    words = zip(rows.texts("flags"), rows.texts("reason"), strict=True)
    lost = np.array([_LOST.search(f"{flags} {reason}") is not None for flags, reason in words], dtype=bool)
    failed = np.isin(status, GAVE_UP) | (np.isin(status, _OWN) & lost)
    ages, came = rows.numbers("e2e"), rows.numbers("upstream_bytes")
    first = rows.numbers("ttft") if rows.has("ttft") else rows.numbers("upstream_header")
    begun = np.where(np.isfinite(first), 1.0, 0.0) if np.isfinite(first[~failed]).any() else np.full(len(rows), np.nan)
    at = np.flatnonzero(failed & (ages > 0))
    if not at.size:
        return None
    nobody = np.zeros(at.size, dtype=bool)
    return Ages(
        ages[at], np.where(np.isfinite(came), came, begun)[at], nobody, nobody, len(rows), rows, at.astype(np.int64)
    )


def _answered(rows: Rows) -> NDArray[np.bool_]:
    """A hop's own word ended them, and not the client's patience."""
    return np.isin(rows.numbers("http_status"), (408.0, 502.0, 503.0, 504.0, 524.0))


def _age(rows: Rows) -> Floats:
    age = rows.numbers("t_last_ms") - rows.numbers("t_send_ms")
    told = rows.numbers("e2e_ms")
    return np.where(np.isfinite(age), age, told)


def _received(rows: Rows) -> Floats:
    """Bytes where they were counted; else tokens; else 0 where no first token was seen, if others have one."""
    counted = rows.numbers("bytes_received")
    tokens = rows.numbers("output_tokens")
    first = rows.numbers("t_first_ms") if rows.has("t_first_ms") else rows.numbers("ttft_ms")
    seen = np.where(np.isfinite(first), 1.0, 0.0) if np.isfinite(first).any() else np.full(len(rows), np.nan)
    return np.where(np.isfinite(counted), counted, np.where(np.isfinite(tokens) & (tokens > 0), tokens, seen))


def pile_of(ages: Ages) -> Pile | None:
    """The largest group of failures that agree in their age; `None` where it does not hold most of them."""
    members = densest(ages.ms, apart=WIDTH_MS, share=WIDTH)
    if members.size < LEAST or members.size < MOST * ages.ms.size:
        return None
    group = ages.ms[members]
    if float(np.median(group)) < LEAST_AGE_MS:
        return None
    return Pile(ages, float(np.median(group)), float(group[0]), float(group[-1]), members, int(ages.ms.size))
