"""How many tokens the engine computes in one step: learned from prompts whose steps could be counted.

An engine that splits prompts over steps takes at most a budget of tokens a step, and operators set round numbers. Each
prompt that was computed alone while a neighbour's tokens marked the steps votes for the budgets that explain its count.
"""

from __future__ import annotations

from typing import Final

WHOLE: Final = 1 << 30
"""The budget of an engine that computes each prompt in one step, however long."""
CANDIDATES: Final = (
    64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, WHOLE,
)  # fmt: skip
_MEMORY: Final = 200
"""Votes that count: a changed budget wins after as many as it takes to outvote these."""
_ENOUGH: Final = 3.0
_SLIPS: Final = 2.0
_SLIP_SHARE: Final = 0.03
"""Votes by which a budget may lose and still be plausible: so many, or this share of all."""
_TRUST: Final = 0.6
"""The share of the votes that the winner must have: below it no budget explains what is seen."""


class BudgetVotes:
    """The token budgets of a step that are still plausible."""

    def __init__(self, known: int | None = None) -> None:
        self._known = known
        self._score = [0.0] * len(CANDIDATES)
        self._weight = 0.0

    def note(self, tokens: int, steps: int, decodes: int, *, at_most: bool = False) -> None:
        """A prompt of `tokens` uncached tokens took `steps` steps beside `decodes` decoding requests.

        `at_most`: a part of it may have been cached, so that fewer steps contradict nothing.
        """
        fade = 1 - 1 / _MEMORY
        self._weight = self._weight * fade + 1
        for index, budget in enumerate(CANDIDATES):
            expected = steps_of(tokens, budget, decodes)
            fits = 1.0 if expected == steps else 0.5 if at_most and expected > steps else 0.0
            self._score[index] = self._score[index] * fade + fits

    def plausible(self) -> list[int]:
        """Those that explain the votes best, smallest first; empty where too little was seen or nothing explains it."""
        if self._known is not None:
            return [self._known]
        best = max(self._score)
        if self._weight < _ENOUGH or best < _TRUST * self._weight:
            return []
        least = best - max(_SLIPS, _SLIP_SHARE * self._weight)
        return [budget for budget, score in zip(CANDIDATES, self._score, strict=True) if score > least]


def steps_of(tokens: int, budget: int, decodes: int) -> int:
    """Steps that a prompt takes alone beside `decodes` decoding requests, which come first."""
    room = max(budget - decodes, 1)
    return -(-tokens // room)
