"""Prompt text of about n tokens, without a tokenizer.

The text is made of common English words, each of which is one token in most vocabularies of today, and is cut to
a number of characters: `chars_per_token` says how many make a token. `Calibration` estimates that figure from
what the server itself counted (its `usage`), so that no tokenizer and no download is needed.

Prefix caches: every prompt begins with words of its own, which differ between requests and between runs
(`nonce`), so that a cache cannot answer for the engine. A shared prefix has to be asked for; it is the run's own, too,
so that no earlier run has it cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Protocol

import msgspec
import numpy as np

from tailrace.workload.prefix import Piece

_VOCABULARY: Final = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
kid body information back parent face others level office door health person art war history party result
change morning reason research girl guy moment air teacher force education foot boy age policy music market
sense nation plan college interest death experience effect use class control care field development role
effort rate heart drug show leader light voice wife police mind price report decision son view relationship
town road arm difference value building action season society tax director position player record paper
space ground form event official matter center couple site project activity star table need court oil
situation cost industry figure street image phone data picture practice piece land product doctor wall
patient worker news test movie north love support technology step baby computer type attention film tree
source hair window culture chance brother energy period course summer plant opportunity term letter condition
choice rule daughter south husband floor campaign material population call economy hospital church risk fire
future bank west sport board subject officer private rest behavior performance fight throw top quickly past
goal bed order author fill blood agency nature color store sound note movement page race concern series
language response animal factor decade article east artist scene stock career treatment approach size dog
fund media sign thought list individual quality pressure answer resource meeting disease success cup amount
ability staff character growth loss degree attack region television box training trade deal election feeling
standard bill message analysis benefit forward lawyer section glass skill sister professor operation crime
stage compare authority design sort knowledge gun station strategy truth song example environment leg dark
"""
_WORDS: Final = tuple(_VOCABULARY.split())
_POOL_WORDS = 1 << 17
"""About 0.8 MB of text, from which prompts are cut at random places: cutting costs a copy, not a loop over words."""

DEFAULT_CHARS_PER_TOKEN: Final = 6.6
"""The mean length of a word of the list with its space: one token a word."""
_INSTRUCTION: Final = " Continue this text at length."
_HEAD_WORDS = 4


class Calibration(msgspec.Struct):
    """Running estimate of characters per token and of the tokens that a template adds.

    `observe` takes pairs of characters sent and prompt tokens counted by the server. Two different lengths give
    slope and overhead (least squares of tokens on characters); one length gives the slope with the overhead 0.
    """

    n: int = 0
    sum_chars: float = 0.0
    sum_tokens: float = 0.0
    sum_cc: float = 0.0
    sum_ct: float = 0.0

    def observe(self, chars: int, tokens: int) -> None:
        """Take what one prompt of `chars` characters cost in tokens."""
        self.n += 1
        self.sum_chars += chars
        self.sum_tokens += tokens
        self.sum_cc += chars * chars
        self.sum_ct += chars * tokens

    def estimate(self) -> tuple[float, float]:
        """`(characters per token, overhead in tokens)`; the defaults before any observation."""
        if self.n == 0 or self.sum_tokens <= 0:
            return DEFAULT_CHARS_PER_TOKEN, 0.0
        spread = self.n * self.sum_cc - self.sum_chars**2
        if spread > 1e-6 * self.sum_cc * self.n:
            slope = (self.n * self.sum_ct - self.sum_chars * self.sum_tokens) / spread
            overhead = (self.sum_tokens - slope * self.sum_chars) / self.n
            if slope > 0 and overhead >= 0:
                return 1 / slope, overhead
        return self.sum_chars / self.sum_tokens, 0.0


class Prompts(Protocol):
    """Writes the text of prompts."""

    nonce: str

    def write(self, index: int, tokens: int, pieces: Sequence[Piece] = ()) -> str:
        """The prompt of request `index`: `tokens` long, the pieces at its beginning."""


@lru_cache(maxsize=4)
def pool_words(seed: int) -> tuple[str, ...]:
    """The words from which the prompts of a seed are cut."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0x7E87]))
    return tuple(_WORDS[i] for i in rng.integers(0, len(_WORDS), _POOL_WORDS).tolist())


@lru_cache(maxsize=4)
def _pool(seed: int) -> str:
    return " ".join(pool_words(seed))


def digest(seed: int, nonce: str, name: int | str) -> bytes:
    """16 bytes that tell one text of a run from all others; `name` is a request's number, or a piece's key."""
    return hashlib.blake2b(f"{seed}/{nonce}/{name}".encode(), digest_size=16).digest()


def head_words(mark: bytes) -> list[str]:
    """The words of its own with which a prompt begins."""
    return [_WORDS[int.from_bytes(mark[2 * i : 2 * i + 2], "big") % len(_WORDS)] for i in range(_HEAD_WORDS)]


class PromptWriter:
    """Writes prompts of about a given number of tokens.

    The text is a pure function of `(seed, nonce, index, tokens, pieces, calibration)`. `shared_prefix` tokens at the
    beginning are the same for every prompt of a run that has no pieces of its own (never longer than the prompt).
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        nonce: str = "",
        chars_per_token: float = DEFAULT_CHARS_PER_TOKEN,
        overhead_tokens: float = 0.0,
        shared_prefix: int = 0,
    ) -> None:
        self.seed = seed
        self.nonce = nonce
        self.chars_per_token = chars_per_token
        self.overhead_tokens = overhead_tokens
        self.shared_prefix = shared_prefix
        self._pool = _pool(seed)

    def write(self, index: int, tokens: int, pieces: Sequence[Piece] = ()) -> str:
        """The prompt of request `index`: ASCII words and spaces, safe inside a JSON string without escaping."""
        wanted = max(1, round((tokens - self.overhead_tokens) * self.chars_per_token))
        if self.shared_prefix and not pieces:
            pieces = (Piece("all", self.shared_prefix),)
        shared = self._shared(pieces, wanted) if pieces else ""
        own = wanted - len(shared)
        if own <= 0:
            return shared
        mark = digest(self.seed, self.nonce, index)
        head = " ".join(head_words(mark))
        tail = _INSTRUCTION if own > len(head) + 2 * len(_INSTRUCTION) else ""
        start = int.from_bytes(mark[8:], "big") % len(self._pool)
        rest = own - len(head) - len(tail) - 1
        body = f"{head} {self._cut(start, rest)}{tail}" if rest > 0 else f"{head} "[:own]
        return shared + body

    def _shared(self, pieces: Sequence[Piece], most: int) -> str:
        """The text of the pieces, up to `most` characters. A piece cut shorter is the beginning of the longer one."""
        out: list[str] = []
        tokens = done = 0
        for piece in pieces:
            tokens += piece.tokens
            length = min(most, round(tokens * self.chars_per_token)) - done
            if length <= 0:
                break
            done += length
            start = int.from_bytes(digest(self.seed, self.nonce, piece.key)[8:], "big") % len(self._pool)
            text = self._cut(start, length)
            out.append(text[:-1] + " ")
        return "".join(out)

    def _cut(self, start: int, length: int) -> str:
        """`length` characters of the pool from the first word after `start`, around its end as often as needed."""
        begin = self._pool.find(" ", start) + 1
        out = self._pool[begin : begin + length]
        while len(out) < length:
            out += " " + self._pool[: length - len(out) - 1]
        return out


class FixedPrompt:
    """One text for every request, as it was given."""

    def __init__(self, text: str, *, nonce: str = "") -> None:
        self.text = text
        self.nonce = nonce

    def write(self, index: int, tokens: int, pieces: Sequence[Piece] = ()) -> str:
        """See `Prompts.write`."""
        del index, tokens, pieces
        return self.text
