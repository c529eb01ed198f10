"""Open files: two a request, the client's socket and the engine's.

A shell's soft limit is usually 1024, which some 500 streams reach; the hard limit, up to which a process may raise it
by itself, is usually far higher.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

SPARE: Final = 200
"""Segments, logs, the admin port, the scraper."""
FEW: Final = 512
"""Room for fewer clients than this is worth a warning."""


def raise_open_files(connections: int) -> int:
    """Raise the soft limit as far as `connections` clients need; returns how many there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(0, (soft - SPARE) // 2))
