"""Two ways to one engine in a table: straight to it, and through a hop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.diagnose.arms.asked import USUAL_FIRST, condition, figure, said
from tailrace.diagnose.observed import Arm, Observed

__all__ = ["Hop", "hops", "is_direct", "is_via"]

_DIRECT: Final = re.compile(
    r"\bdirect|\bbare|\bnative|\braw\b|without|\bno (?:proxy|gateway|hop|router|lb|mesh|serve)|in[ -]?process|"
    r"localhost|\bengine only|\bstandalone|\bvllm serve\b",
    re.IGNORECASE,
)
_VIA: Final = re.compile(
    r"\bvia\b|through|proxy|proxied|gateway|\bserve\b|serving layer|router|load balancer|\blb\b|ingress|\blayer|"
    r"\bhop\b|"
    r"sidecar|\bmesh\b|envoy|nginx|haproxy|traefik|litellm|kong|istio|api ?six|frontend|front end|behind",
    re.IGNORECASE,
)


class Hop(NamedTuple):
    """The two paths at one concurrency (`None` where none is written down)."""

    direct: Arm
    via: Arm
    concurrency: float | None


def is_direct(words: str) -> bool:
    """Whether words say that a path goes straight to the engine."""
    return _DIRECT.search(words) is not None and not re.search(r"\b(?:via|through|behind)\b", words, re.IGNORECASE)


def is_via(words: str) -> bool:
    """Whether words say that a path goes through something."""
    return not is_direct(words) and _VIA.search(words) is not None


def hops(observed: Observed) -> list[Hop]:
    """The pairs of paths, by concurrency, lowest first. One of the two must be called by a word for a path: two builds
    of an engine are none.
    """
    by_load: dict[float | None, list[Arm]] = {}
    for arm in observed.arms:
        if figure(arm, "ttft", stats=USUAL_FIRST) is not None:
            by_load.setdefault(condition(arm, r"concurrency|max concurrency|in flight|users|clients"), []).append(arm)
    out = []
    for load in sorted(by_load, key=lambda value: -1.0 if value is None else value):
        found = _split(by_load[load])
        if found is not None:
            out.append(Hop(*found, load))
    return out


def _split(arms: Sequence[Arm]) -> tuple[Arm, Arm] | None:
    direct = [arm for arm in arms if is_direct(said(arm))]
    via = [arm for arm in arms if is_via(said(arm))]
    others = [arm for arm in arms if arm not in direct and arm not in via]
    if direct and via:
        return direct[0], via[0]
    # `vllm` against `through the gateway`: one side is named, the other is the only one left.
    if direct and len(others) == 1:
        return direct[0], others[0]
    if via and len(others) == 1:
        return others[0], via[0]
    return None
