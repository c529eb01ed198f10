"""Words by which routing policies and changes of routing are called."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["affine", "of_routing", "spreading"]

# What they say of a text is remembered: an arm stands in a hundred pairs.

_AFFINE: Final = re.compile(
    r"cache[ _-]?aware|prefix|affinity|sticky|session|consistent[ _-]?hash|ring[ _-]?hash|kv[ _-]?aware|"
    r"kv[ _-]?(?:cache[ _-]?)?(?:routing|router)|ip[ _-]?hash|precise",
    re.IGNORECASE,
)
_SPREADING: Final = re.compile(
    r"round[ _-]?robin|\brr\b|random|least|power[ _-]?of[ _-]?two|\bp2c\b|shortest|load[ _-]?(?:aware|based|balanc)|"
    r"join|even|uniform|no[ _-]affinity|without",
    re.IGNORECASE,
)
_ROUTING: Final = re.compile(
    r"rout(?:er|ing|e)|load[ _-]?balanc|\blb\b|balancer|tie[ _-]?break|scorer|stick|affinity|dispatch|"
    r"endpoint[ _-]?pick|"
    r"\bepp\b|session|hash|\bpin(?:ned|ning)?\b|"
    r"(?:host|replica|provider)[ _-]?(?:switch|order)|dp[ _-]?(?:rank|coordinator)|ingress|gateway polic",
    re.IGNORECASE,
)


@lru_cache(maxsize=512)
def affine(words: str) -> bool:
    """A policy that follows a prefix or a session: `cache_aware`, `sticky session`."""
    return _AFFINE.search(words) is not None and "no affinity" not in words.lower().replace("-", " ").replace("_", " ")


@lru_cache(maxsize=512)
def spreading(words: str) -> bool:
    """A policy that spreads: `round_robin`, `least_load`."""
    return _SPREADING.search(words) is not None


@lru_cache(maxsize=512)
def of_routing(words: str) -> bool:
    """Whether a change is one of routing."""
    return _ROUTING.search(words) is not None
