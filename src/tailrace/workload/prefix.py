"""Shared prefixes: how much of the prompts a prefix cache can answer.

Every prompt of a class begins with one of `pool` prefixes, entry k with the probability w_k (uniform, or proportional
to 1 / (k+1)^zipf). Of a prompt with P tokens the first L are the prefix's: `tokens`, or, where a share is asked
for, L = hit x scale x P. All that an earlier prompt of the run has already begun with can be found in a cache; the
first use of an entry, and whatever reaches beyond its longest use so far, cannot. With Q the longest earlier P of the
same entry (0 for its first), the tokens that can be found are hit x scale x min(P, Q). So the expected share is what
was asked when

    scale = sum(P) / sum(min(P, Q))

over the requests of the run: `fit` takes it from the plan itself, which is known before the run. An engine that
caches in blocks of b tokens finds (b - 1) / 2 tokens a request less, on average.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tailrace.model.errors import InputError

MOST: Final = 0.98
"""Of a prompt that a prefix may take: the rest tells the requests apart."""
BLOCK_TOKENS: Final = 512
"""Of a block that a Mooncake trace names by its hash."""


class Piece(NamedTuple):
    """Text that every prompt with the same `key` has at the same place, `tokens` of it from its beginning."""

    key: str
    tokens: int


class Prefixes(msgspec.Struct, frozen=True, kw_only=True):
    """The prefixes that the prompts of a class begin with. Exactly one of `tokens` and `hit` says how long they are."""

    pool: int = 1
    tokens: int | None = None
    hit: float | None = None
    """The share of all prompt tokens that a prefix cache can find."""
    zipf: float = 0.0
    """0: all entries alike; 1: the classic skew."""
    scale: float = 1.0
    """Makes up for first uses; see `fit`."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.pool < 1:
            raise InputError(f"must be at least 1, got {self.pool}", place="--prefix-pool")
        if (self.tokens is None) == (self.hit is None):
            raise InputError(
                "a pool of prefixes needs their length or a hit rate, and not both",
                place="--prefix-pool",
                remedy="Add --prefix-hit 0.6, or --shared-prefix 2000",
            )
        if self.hit is not None and not 0 < self.hit <= MOST:
            raise InputError(f"must be above 0 and at most {MOST}, got {self.hit:g}", place="--prefix-hit")
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"must be at least 1, got {self.tokens}", place="--shared-prefix")
        if not 0 <= self.zipf < 10:
            raise InputError(f"must be from 0 to 10, got {self.zipf:g}", place="--prefix-zipf")

    def edges(self) -> np.ndarray:
        """Cumulative probabilities of the entries."""
        weights = np.arange(1, self.pool + 1, dtype=np.float64) ** -self.zipf
        out: np.ndarray = np.cumsum(weights / weights.sum())
        return out

    def length(self, prompt_tokens: int) -> int:
        """Tokens of the prefix of a prompt of `prompt_tokens`."""
        if self.hit is None:
            return min(self.tokens or 0, prompt_tokens)
        return round(min(self.hit * self.scale, MOST) * prompt_tokens)


class Reuse:
    """Counts, over prompts in order, how many of their tokens an earlier one has begun with already."""

    def __init__(self) -> None:
        self.tokens = 0
        """Of all prompts."""
        self.found = 0
        self._longest: dict[tuple[str, ...], int] = {}

    def note(self, prompt_tokens: int, pieces: tuple[Piece, ...]) -> int:
        """Take one prompt; how many of its tokens are known by now."""
        found = 0
        path: tuple[str, ...] = ()
        open_ended = True
        for piece in pieces:
            path = (*path[-1:], piece.key)
            known = self._longest.get(path, 0)
            if open_ended:
                found += min(piece.tokens, known)
                open_ended = known >= piece.tokens
            self._longest[path] = max(known, piece.tokens)
        self.tokens += prompt_tokens
        self.found += found
        return found

    @property
    def share(self) -> float:
        """Of all prompt tokens so far, those that can be found."""
        return self.found / self.tokens if self.tokens else 0.0


def fit(prefixes: Prefixes, prompts: Iterable[tuple[int, str]]) -> Prefixes:
    """`prefixes` with the `scale` for these prompts, each given by its tokens and its entry's key, in order.

    The scale is as large as the longest prefix allows: with a share near 1 and many first uses, less is found than
    was asked, which the run's own count then says.
    """
    if prefixes.hit is None:
        return prefixes
    longest: dict[str, int] = {}
    whole = known = 0
    for tokens, key in prompts:
        before = longest.get(key, 0)
        whole += tokens
        known += min(tokens, before)
        longest[key] = max(tokens, before)
    if not known:
        return prefixes
    return msgspec.structs.replace(prefixes, scale=whole / known)
