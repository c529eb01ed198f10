"""How much of the prompts came from the prefix cache, and how much could have: turns repeat their session's history."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among, codes_of
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import or_zero

__all__ = ["Reuse", "groups", "reuse"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST: Final = 20


class Reuse(NamedTuple):
    """By row of `Window.done`."""

    known: bool
    """Cached tokens are there for most rows."""
    cached: Floats
    """Cached tokens, 0 where nobody said."""
    repeat: Floats
    """Prompt tokens that the turn before had (its prompt and answer), at most this prompt; 0 for first turns."""
    later: Mask
    """Rows whose session had a turn before in the window."""
    moved: Mask
    """Of those, the ones that another replica served than the turn before."""
    hit: float
    """Cached tokens / prompt tokens of all."""
    offered: float
    """Repeated tokens / prompt tokens of all."""


@once_a_window
def reuse(window: Window) -> Reuse:
    """What of each prompt was cached, and what a turn repeats of the one before."""
    done = window.done
    said = done.column("cached_tokens")
    tokens = or_zero(window.tokens)
    cached = np.minimum(or_zero(said), tokens)
    session, _ = codes_of(done.column("session_id"))
    named = ~among(done.column("session_id"), {""})
    backend, _ = codes_of(done.column("backend"))
    repeat = np.zeros(window.n)
    later = np.zeros(window.n, dtype=bool)
    moved = np.zeros(window.n, dtype=bool)
    inside = np.flatnonzero(named)
    if inside.size:
        order = inside[np.lexsort((window.start[inside], session[inside]))]
        same = session[order[1:]] == session[order[:-1]]
        now, before = order[1:][same], order[:-1][same]
        whole = tokens[before] + or_zero(done.column("output_tokens")[before])
        later[now] = True
        repeat[now] = np.minimum(whole, tokens[now])
        moved[now] = backend[now] != backend[before]
    total = max(float(tokens.sum()), 1.0)
    return Reuse(
        known=window.n > 0 and float((~np.isnan(said)).mean()) >= 0.5,
        cached=cached,
        repeat=repeat,
        later=later,
        moved=moved,
        hit=float(cached.sum()) / total,
        offered=float(repeat.sum()) / total,
    )


@once_a_window
def groups(window: Window) -> tuple[str, NDArray[np.int64], list[str]] | None:
    """(what the groups are, group of each row of `done`, the groups' names): tenants, else sessions; `None` where there
    are no two.
    """
    for name, word in (("tenant", "tenant"), ("session_id", "session"), ("lane", "lane")):
        codes, names = codes_of(window.done.column(name))
        if sum(map(bool, names)) >= 2:
            return word, codes, names
    return None
