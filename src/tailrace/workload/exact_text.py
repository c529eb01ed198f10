"""Prompt text of exactly n tokens, with the model's tokenizer.

Only words that are one token each are used, where the vocabulary has enough of them, so that a text of n tokens is n
words and costs no more to write than one that is calibrated. That a text's tokens are the sum of its words' is tried
out when the writer is made; with a tokenizer for which it is not so, every text is counted and corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tailrace.workload.prefix import Piece
from tailrace.workload.text import digest, head_words, pool_words

_INSTRUCTION: Final = " Continue this text at length."
_ENOUGH_WORDS: Final = 32
_TRIED: Final = (1, 2, 3, 17, 64, 300, 1500)
"""Lengths (tokens) at which the sum of the words' tokens is compared with what the tokenizer counts."""
_CORRECTIONS: Final = 24
_UNITS: Final = (" a", "a", ".", " .", "!", "0", "\n")
"""What may be one token more, where no word of the list is one by itself."""

Count = Callable[[Sequence[str]], Sequence[float]]
"""Tokens of each of several texts, without special tokens."""


class ExactWriter:
    """Writes prompts of an exact number of tokens; a pure function of its arguments, as `PromptWriter` is.

    `overhead_tokens` is what the server adds to a text: its chat template and special tokens.
    """

    def __init__(
        self, count: Count, *, seed: int = 0, nonce: str = "", overhead_tokens: float = 0.0, shared_prefix: int = 0
    ) -> None:
        self.seed = seed
        self.nonce = nonce
        self.overhead_tokens = round(overhead_tokens)
        self.shared_prefix = shared_prefix
        self._count = count
        pool = pool_words(seed)
        known = sorted(set(pool))
        costs = [round(one) for one in count([f" {word}" for word in known])]
        single = {word for word, cost in zip(known, costs, strict=True) if cost == 1}
        self._fillers = sorted(single)
        words = [word for word in pool if word in single] if len(single) >= _ENOUGH_WORDS else list(pool)
        cost_of = dict(zip(known, costs, strict=True))
        self._words = words
        self._ends = np.cumsum([cost_of[word] for word in words])
        """Tokens of the pool up to and with each word."""
        first = [round(one) for one in count(known)]
        self._first_more = {word: a - b for word, a, b in zip(known, first, costs, strict=True)}
        """What a word costs more at the beginning of a text, where no space is before it."""
        self._tail_cost = round(count([f" word{_INSTRUCTION}"])[0] - count([" word"])[0])
        self._cost_of = cost_of
        tried = [self._compose(-1 - i, tokens, ()) for i, tokens in enumerate(_TRIED)]
        found = count([" ".join(words) + tail for words, tail, _ in tried])
        self.additive = all(round(one) == cost for one, (_, _, cost) in zip(found, tried, strict=True))
        """Whether a text's tokens are the sum of its words'."""

    def write(self, index: int, tokens: int, pieces: Sequence[Piece] = ()) -> str:
        """The prompt of request `index`; see `Prompts.write`."""
        wanted = max(1, tokens - self.overhead_tokens)
        if self.shared_prefix and not pieces:
            pieces = (Piece("all", self.shared_prefix),)
        words, tail, cost = self._compose(index, wanted, pieces)
        if self.additive and cost == wanted:
            return " ".join(words) + tail
        return self._corrected(words, tail, wanted)

    def _compose(self, index: int, wanted: int, pieces: Sequence[Piece]) -> tuple[list[str], str, int]:
        """(words, what follows them, tokens by the sum of their costs)."""
        words: list[str] = []
        used = 0
        for piece in pieces:
            room = min(piece.tokens, wanted - used)
            if room <= 0:
                break
            taken, cost = self._take(digest(self.seed, self.nonce, piece.key), room, first=not words)
            words += taken
            used += cost
        tail = ""
        if used < wanted:
            mark = digest(self.seed, self.nonce, index)
            head = head_words(mark)
            room = wanted - used
            if room > 2 * (self._tail_cost + len(head)):
                tail = _INSTRUCTION
                room -= self._tail_cost
                used += self._tail_cost
            own, cost = self._take(mark, room, first=not words, head=head)
            words += own
            used += cost
        return words, tail, used

    def _take(self, mark: bytes, tokens: int, *, first: bool, head: Sequence[str] = ()) -> tuple[list[str], int]:
        """Words of so many tokens: of `head` what fits, the rest of the pool from the place that `mark` says."""
        out: list[str] = []
        left = tokens
        start = int.from_bytes(mark[8:], "big") % len(self._words)
        if first:
            # The one word whose cost may differ for its place has to be known before the rest is counted.
            lead = (
                head[0] if head and self._cost_of[head[0]] + self._first_more[head[0]] <= left else self._words[start]
            )
            left -= self._cost_of[lead] + self._first_more[lead]
            out.append(lead)
            head = head[1:]
        for word in head:
            if self._cost_of[word] <= left:
                out.append(word)
                left -= self._cost_of[word]
        start += 1
        while left > 0:
            start %= len(self._words)
            before = int(self._ends[start - 1]) if start else 0
            stop = int(np.searchsorted(self._ends, before + left, side="right"))
            if stop == start:
                break
            out += self._words[start:stop]
            left -= int(self._ends[stop - 1]) - before
            start = stop
        if left > 0 and self._fillers:
            out += [self._fillers[(mark[0] + i) % len(self._fillers)] for i in range(left)]
            left = 0
        return out, tokens - left

    def _corrected(self, words: list[str], tail: str, wanted: int) -> str:
        """Count the text and change its end until it has `wanted` tokens, or as near as that comes."""
        suffix = ""
        best, nearest = "", 0
        for _ in range(_CORRECTIONS):
            text = " ".join(words) + tail + suffix
            gap = wanted - round(self._count([text])[0])
            if not best or abs(gap) < nearest:
                best, nearest = text, abs(gap)
            if gap == 0:
                break
            if gap < 0:
                suffix = ""
                while gap < 0 and len(words) > 1:
                    gap += self._cost_of[words.pop()]
                continue
            more, _ = self._take(digest(self.seed, self.nonce, len(words)), gap, first=False)
            words += more
            if not more:
                longer = [suffix + unit for unit in _UNITS]
                found = self._count([" ".join(words) + tail + one for one in longer])
                fitting = [(round(n), one) for n, one in zip(found, longer, strict=True) if round(n) <= wanted]
                if not fitting or max(fitting)[0] <= wanted - gap:
                    break
                suffix = max(fitting)[1]
        return best
