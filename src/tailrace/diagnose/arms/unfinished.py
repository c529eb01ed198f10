"""Requests that began and did not end well, in the words that tables and counters have for them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.observed import Arm, Counter, Observed

__all__ = ["lost_share", "unfinished_of"]

_WORDS: Final = re.compile(r"cancel|abort|time(?:d_|_)?outs?\b|time(?:d_|_)?outs?(?=_|$)|disconnect|client_left")
_NOT: Final = re.compile(r"_(?:seconds|ms|s|bytes|limit|budget|setting|tokens)(?:_total)?$")


def lost_share(arm: Arm) -> float | None:
    """Requests of an arm that failed, were cancelled or timed out, over all that it sent (0..1); `None` where nothing
    says so.
    """
    counts = [
        value.value
        for value in arm.values.values()
        if not value.relative and not value.stat and value.unit in ("", "count") and _WORDS.search(value.quantity)
    ]
    share, good, failed, n = (arm.get(name) for name in ("failed_share", "success_share", "failed", "n"))
    if share is None and good is not None:
        share = 1.0 - good
    if share is None and failed is not None and n:
        share = failed / max(n + failed, 1.0)
    if counts and n:
        return (share or 0.0) + sum(counts) / max(n + sum(counts), 1.0)
    return share


@asked_once
def _unfinished(observed: Observed) -> dict[int, list[Counter]]:
    """By window, the counters of such requests: hours of scrapes are thousands of windows, each with its hundreds."""
    out: dict[int, list[Counter]] = {}
    for item in observed.counters:
        if item.name == "aborted" or _names_unfinished(item.name, item.raw):
            out.setdefault(item.order, []).append(item)
    return out


@lru_cache(maxsize=4096)
def _names_unfinished(name: str, raw: str) -> bool:
    return _WORDS.search(f"{name} {raw}".lower()) is not None and _NOT.search(raw) is None


@asked_once
def unfinished_of(observed: Observed, order: int) -> tuple[float, str, str]:
    """(how many, metric, place) the counters of one window say were cancelled, aborted or timed out; 0 without any."""
    found: dict[str, tuple[float, str]] = {}
    for item in _unfinished(observed).get(order, ()):
        moved = item.last if item.lifetime else item.delta
        if moved is not None and moved > 0:
            count, place = found.get(item.raw or item.name, (0.0, str(item.place)))
            found[item.raw or item.name] = (count + moved, place)
    if not found:
        return 0.0, "", ""
    # Two counters of one program may count the same requests: the larger one, never their sum.
    raw = max(found, key=lambda name: found[name][0])
    return found[raw][0], raw, found[raw][1]
