"""How long an answer will be: learnt from finished requests of the same class, with its error shown.

A class is (lane, model, requested `max_tokens` to a power of two). Where it has too few requests the prediction falls
back outward: to (lane, model), to the lane, to everything, and at last to a prior. Quantiles, not means: output lengths
have long tails, and the median of a class is what its next request most likely needs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Final

import msgspec

from tailrace.govern.lane import RequestFacts
from tailrace.govern.prediction_error import NO_ERROR, ErrorSummary, PredictionError

WINDOW: Final = 256
"""Finished requests that a class remembers; each new one pushes the oldest out."""
WELL_KNOWN: Final = 256
_EVERY: Final = 4
ENOUGH: Final = 16
"""Finished requests before a class speaks for itself: its median is then within about a quarter of its ranks."""
CLASSES: Final = 512
"""Classes remembered. Model names come from clients, so that their number must have a bound."""
PRIOR_TOKENS: Final = 128
"""Before anything has finished: the median answer of the public Azure 2023 conversation trace is 129 tokens."""
PRIOR_LOW: Final = 16
PRIOR_HIGH: Final = 1024
"""The same trace's longest answers; a request that names `max_tokens` has that as its bound instead."""

_LOW_QUANTILE: Final = 0.1
_HIGH_QUANTILE: Final = 0.9

_Key = tuple[str, ...]


class LengthPrediction(msgspec.Struct, frozen=True):
    """Output tokens that a request will need: the class's median, its p10 and p90, none above `max_tokens`."""

    tokens: int
    low: int
    high: int
    n: int
    """Finished requests that this rests on; 0 for the prior."""


class _Class:
    """The last lengths of one class, in order of size too."""

    __slots__ = ("_recent", "ordered", "seen")

    def __init__(self) -> None:
        self.seen = 1
        """Completed requests of the class, those too from which nothing was learnt."""
        self._recent: deque[int] = deque()
        self.ordered: list[int] = []

    def add(self, tokens: int) -> None:
        if len(self._recent) == WINDOW:
            old = self._recent.popleft()
            del self.ordered[bisect_left(self.ordered, old)]
        self._recent.append(tokens)
        insort(self.ordered, tokens)

    def predict(self, max_tokens: int | None) -> LengthPrediction:
        ordered = self.ordered
        last = len(ordered) - 1
        low = ordered[round(last * _LOW_QUANTILE)]
        middle = ordered[last // 2]
        high = ordered[round(last * _HIGH_QUANTILE)]
        if max_tokens is not None:
            low, middle, high = min(low, max_tokens), min(middle, max_tokens), min(high, max_tokens)
        return LengthPrediction(middle, low, high, last + 1)


class LengthModel:
    """Learns from `observe`, answers with `predict`; a call of either costs a few microseconds."""

    def __init__(self) -> None:
        self._classes: dict[_Key, _Class] = {}
        self._errors: dict[str, PredictionError] = {}
        self._said: dict[tuple[str, str, int | None], LengthPrediction] = {}
        """What was predicted since the last one was learnt from."""

    def predict(self, facts: RequestFacts, lane: str) -> LengthPrediction:
        """The length of the answer to a request of `lane`."""
        asked = lane, facts.model, facts.max_tokens
        said = self._said.get(asked)
        if said is None:
            if len(self._said) >= CLASSES:
                self._said.clear()
            said = self._said[asked] = self._predict(*asked)
        return said

    def observe(
        self, lane: str, model: str, prompt_tokens: int, max_tokens: int | None, output_tokens: int
    ) -> LengthPrediction | None:
        """A request completed with so many tokens; returns what would have been predicted, where it was learnt from.

        One that was cancelled, failed or timed out is not told: how long its answer would have been is unknown.
        """
        del prompt_tokens  # lanes part prompts by length already; within a lane the two hardly depend on each other
        if output_tokens < 1:
            return None
        keys = _keys(lane, model, max_tokens)
        own = self._classes.get(keys[0])
        if own is not None:
            own.seen += 1
            # A class that is well known learns from every fourth: quantiles gain little from the others.
            if own.seen > WELL_KNOWN and own.seen % _EVERY:
                return None
        predicted = self._predict(lane, model, max_tokens)
        # Before it is learnt from: a prediction is judged only by what it had not seen.
        error = self._errors.get(lane)
        if error is None:
            error = self._errors[lane] = PredictionError()
        error.add(predicted.tokens, output_tokens, inside=predicted.low <= output_tokens <= predicted.high)
        self._said.clear()
        for key in keys:
            known = self._classes.get(key)
            if known is None:
                if len(self._classes) >= CLASSES and len(key) > 1:
                    continue  # the wider classes learn of it all the same
                known = self._classes[key] = _Class()
            known.add(output_tokens)
        return predicted

    def error(self, lane: str) -> ErrorSummary:
        """How far predictions for `lane` were from what came, and how often it lay in their range."""
        known = self._errors.get(lane)
        return NO_ERROR if known is None else known.summary()

    def keep(self, lanes: set[str]) -> None:
        """Forget the lanes that are no longer there."""
        self._said.clear()
        for lane in [lane for lane in self._errors if lane not in lanes]:
            del self._errors[lane]
        for key in [key for key in self._classes if key and key[0] not in lanes]:
            del self._classes[key]

    def _predict(self, lane: str, model: str, max_tokens: int | None) -> LengthPrediction:
        classes = self._classes
        for key in _keys(lane, model, max_tokens):
            known = classes.get(key)
            if known is not None and len(known.ordered) >= ENOUGH:
                return known.predict(max_tokens)
        if max_tokens is None:
            return LengthPrediction(PRIOR_TOKENS, PRIOR_LOW, PRIOR_HIGH, 0)
        bound = max(1, max_tokens)
        return LengthPrediction(min(PRIOR_TOKENS, bound), min(PRIOR_LOW, bound), bound, 0)


def _keys(lane: str, model: str, max_tokens: int | None) -> tuple[_Key, _Key, _Key, _Key]:
    """The classes of a request, the narrowest first."""
    bucket = "" if max_tokens is None else str(max(1, max_tokens - 1).bit_length())
    return (lane, model, bucket), (lane, model), (lane,), ()
