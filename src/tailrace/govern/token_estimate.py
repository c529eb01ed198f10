"""Prompt tokens from sizes of text, calibrated by what engines count: the estimate, its error, and from how many.

A prompt's count is modelled as

    tokens = a + b · messages + c · narrow bytes + d · wide bytes + ids

where a and b are what the chat template adds (to a prompt, to each message) and c, d are tokens a byte of text. Each
finished request whose engine counted its prompt is one observation of all four; of a model that is well known, every
eighth. They are fitted by recursive least squares of the *relative* error, so that long prompts do not drown short
ones, with

* a prior as strong as a few requests: bytes / 4, which is what is said before anything is known, and what stays for a
  kind of text that never came;
* forgetting: one 500 observations ago weighs a third of a new one, and less while the errors lean to one side
  (a model behind a name is replaced);
* Huber weights: what is off by more than three times the usual error (a prompt with a hidden system text, a counting
  bug) pulls less the further off it is.

The error is measured on each request before that request is learnt from. It is of the estimates that were made, not of
the fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tailrace.govern.text_size import TextSize

BYTES_PER_TOKEN: Final = 4
"""English under the common BPE vocabularies; 10-30 % off in either direction, more for code and CJK."""
MAX_MODELS: Final = 64
"""Models that are kept apart; names come from clients, and the rest share one account."""
_OTHER: Final = ""
_FORGET: Final = 0.998
_FORGET_FAST: Final = 0.95
"""While the last errors lean to one side: the model behind the name, or its traffic, is another one now."""
_RECENT: Final = 16
_LEANS: Final = 0.8
_LEANS_FROM: Final = 0.1
_WINDOW: Final = 256
"""Errors that the quantiles are of."""
_FIT_EVERY: Final = 8
"""Observations between two solutions, once there are that many; a solution costs as much as ten observations."""
_FIT_SELDOM: Final = 32
"""The same of a model that is well known, unless the errors lean."""
WELL_KNOWN: Final = 256
_EVERY: Final = 8
"""Observations after which only every eighth request is one, unless the errors lean: a fit of 500 gains nothing from
the others, and each costs as much as reading the request."""
_HUBER: Final = 3.0
_LEAST_SCALE: Final = 0.02
"""Errors below this are no outliers, however good the fit is."""
_NOISE: Final = 0.1
"""Relative error of an observation that the prior's strength is relative to."""

_UNKNOWN_MARGIN: Final = 0.4
_LEAST_MARGIN: Final = 0.02
"""Whatever the past says: the next prompt may be of another kind."""

# What is believed at first, how sure that is (one standard deviation), and what cannot be: a template that adds more
# than a page, a character of a text that is no token at all.
_PRIOR: Final = (0.0, 0.0, 1 / BYTES_PER_TOKEN, 1 / BYTES_PER_TOKEN)
_SPREAD: Final = (20.0, 4.0, 0.08, 0.12)
_LEAST: Final = (0.0, 0.0, 0.02, 0.02)
_MOST: Final = (2000.0, 40.0, 1.0, 1.5)
_Row = tuple[float, float, float, float]


class CountError(msgspec.Struct, frozen=True):
    """How far estimates were from the engine's own counts, relative to these."""

    n: int = 0
    """Requests that were compared."""
    p50: float | None = None
    p95: float | None = None
    bias: float | None = None
    """Median of the signed error: positive where the estimate is too high."""

    def __str__(self) -> str:
        """For a person: `±9 % (p95 of 240 requests)`."""
        if self.p95 is None:
            return "error unknown: no engine's count to compare with yet"
        return f"±{self.p95 * 100:.0f} % (p95 of {self.n} requests)"


NO_ERROR: Final = CountError()


class TokenRates:
    """One model's calibration.

    With `exact_text` the sizes are a tokenizer's own counts of text: only what the template adds is learnt, and what
    the error shows is the rest (special tokens, tools that the template renders).
    """

    __slots__ = (
        "_errors",
        "_forced",
        "_gram",
        "_moment",
        "_passed",
        "_prior",
        "_recent",
        "_since_fit",
        "margin",
        "n",
        "rates",
    )

    def __init__(self, *, exact_text: bool = False) -> None:
        means = (0.0, 0.0, 1.0, 1.0) if exact_text else _PRIOR
        spread = (20.0, 4.0, 1e-6, 1e-6) if exact_text else _SPREAD
        self._forced = exact_text
        self._prior = tuple((mean, (_NOISE / sd) ** 2) for mean, sd in zip(means, spread, strict=True))
        self._gram = [[0.0] * 4 for _ in range(4)]
        self._moment = [0.0] * 4
        self._errors: deque[float] = deque(maxlen=_WINDOW)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._since_fit = 0
        self._passed = 0
        """Requests since the last observation, where not all are observed; -1 where all are."""
        self.rates: _Row = means
        """(a prompt, a message, a narrow byte, a wide byte), in tokens."""
        self.margin = _UNKNOWN_MARGIN
        """The p95 of the error as of the last fit; how far an estimate may well be off."""
        self.n = 0
        """Observations so far."""

    def tokens(self, size: TextSize) -> float:
        """The count that a prompt of this size is expected to have."""
        a, b, c, d = self.rates
        of_chat = a + b * size.messages if size.messages else 0.0
        return of_chat + c * size.narrow + d * size.wide + size.ids

    def learn(self, size: TextSize, counted: int) -> None:
        """An engine counted `counted` tokens in a prompt of this size.

        One with unseen parts teaches nothing, nor does a count that no tokenizer could come to: some servers say what
        they have computed, without what was cached, and test servers say anything.
        """
        if self._passed >= 0 and self.n >= WELL_KNOWN:
            self._passed += 1
            if self._passed < _EVERY:
                return
            self._passed = 0
        text = counted - size.ids
        if size.unseen or not size.text or not self._possible(size, text):
            return
        error = self.tokens(size) / counted - 1
        self._errors.append(error)
        self.n += 1
        chat = 1.0 if size.messages else 0.0
        row = (chat / text, size.messages / text, size.narrow / text, size.wide / text)
        usual, forget = self._usual()
        self._passed = -1 if forget is _FORGET_FAST else max(self._passed, 0)
        scale = _HUBER * max(usual, _LEAST_SCALE)
        weight = 1.0 if abs(error) <= scale else scale / abs(error)
        self._recent.append(error)
        gram, moment = self._gram, self._moment
        for i, left in enumerate(row):
            line = gram[i]
            part = weight * left
            moment[i] = moment[i] * forget + part
            for j in range(i, 4):  # the other half is its mirror image
                line[j] = line[j] * forget + part * row[j]
        self._since_fit += 1
        seldom = self.n > WELL_KNOWN and self._passed >= 0
        if self._since_fit >= (_FIT_SELDOM if seldom else _FIT_EVERY) or self.n <= _FIT_EVERY:
            self._fit()

    def _possible(self, size: TextSize, text: int) -> bool:
        if self._forced:
            return text >= 1
        most = _MOST[0] + _MOST[1] * size.messages + _MOST[2] * size.narrow + _MOST[3] * size.wide
        return max(1.0, _LEAST[2] * size.narrow + _LEAST[3] * size.wide) <= text <= most

    @property
    def error(self) -> CountError:
        """Of the last 256 estimates at most. Sorts them: for views and refusals, not for every request."""
        if not self._errors:
            return NO_ERROR
        signed = sorted(self._errors)
        sizes = sorted(map(abs, signed))
        middle = (len(sizes) - 1) // 2
        return CountError(n=self.n, p50=sizes[middle], p95=_p95(sizes), bias=signed[middle])

    def _usual(self) -> tuple[float, float]:
        """The usual error (the mean of the last ones without their largest quarter), and what to forget by."""
        recent = self._recent
        if len(recent) < _RECENT:
            return 1.0, _FORGET  # before anything is known nothing is an outlier
        sizes = sorted(map(abs, recent))
        kept = sizes[: _RECENT * 3 // 4]
        leans = abs(sum(recent)) > _LEANS * sum(sizes) and sizes[_RECENT // 2] > _LEANS_FROM
        return sum(kept) / len(kept), _FORGET_FAST if leans else _FORGET

    def _fit(self) -> None:
        """Solve (X'WX + P) r = X'Wy + P r0."""
        self._since_fit = 0
        gram = self._gram
        matrix = [[gram[min(i, j)][max(i, j)] for j in range(4)] for i in range(4)]
        vector = self._moment.copy()
        for i, (mean, precision) in enumerate(self._prior):
            matrix[i][i] += precision
            vector[i] += precision * mean
        solved = _solve(matrix, vector)
        if self._forced:
            solved[2] = solved[3] = 1.0
        a, b, c, d = (min(max(value, low), high) for value, low, high in zip(solved, _LEAST, _MOST, strict=True))
        self.rates = (a, b, c, d)
        if len(self._errors) >= _RECENT:
            self.margin = max(_p95(sorted(map(abs, self._errors))), _LEAST_MARGIN)


def _p95(ordered: list[float]) -> float:
    return ordered[round((len(ordered) - 1) * 0.95)]


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Gauss on a symmetric, positive definite matrix (the prior makes it so): no pivoting needed."""
    n = len(vector)
    for i in range(n):
        for k in range(i + 1, n):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, n):
                matrix[k][j] -= factor * matrix[i][j]
            vector[k] -= factor * vector[i]
    for i in reversed(range(n)):
        rest = sum(matrix[i][j] * vector[j] for j in range(i + 1, n))
        vector[i] = (vector[i] - rest) / matrix[i][i]
    return vector


class TokenEstimates:
    """The calibrations of all models; bounded, because clients choose the names."""

    def __init__(self) -> None:
        self._models: dict[str, TokenRates] = {}
        self._tokenizers: dict[str, TokenRates] = {}

    def of(self, model: str) -> TokenRates | None:
        """The calibration of `model`, or `None` where none of its requests has been counted."""
        return self._models.get(model) or self._models.get(_OTHER)

    def of_tokenizer(self, model: str) -> TokenRates:
        """What a model's template adds to a tokenizer's count. The configuration bounds these names."""
        rates = self._tokenizers.get(model)
        if rates is None:
            rates = self._tokenizers[model] = TokenRates(exact_text=True)
        return rates

    def estimate(self, model: str, size: TextSize) -> int | None:
        """Tokens of a prompt, or `None` where nothing better is known than bytes / 4."""
        rates = self.of(model)
        return None if rates is None else max(1, round(rates.tokens(size)))

    def learn(self, model: str, size: TextSize, counted: int) -> None:
        """The engine counted a prompt."""
        rates = self._models.get(model)
        if rates is None:
            # The name is kept only once the shared account is not the better one.
            name = model if len(self._models) < MAX_MODELS else _OTHER
            rates = self._models.setdefault(name, TokenRates())
        rates.learn(size, counted)

    def view(self) -> dict[str, dict[str, Any]]:
        """Model -> rates and error, for people."""
        return {
            **{model or "other": _shown(rates, "estimate") for model, rates in self._models.items()},
            **{f"{model} (tokenizer)": _shown(rates, "tokenizer") for model, rates in self._tokenizers.items()},
        }

    def errors(self) -> Iterable[tuple[str, str, CountError]]:
        """(model, source, error) of each calibration, for metrics."""
        for model, rates in self._models.items():
            yield model, "estimate", rates.error
        for model, rates in self._tokenizers.items():
            yield model, "tokenizer", rates.error


def _shown(rates: TokenRates, source: str) -> dict[str, Any]:
    a, b, c, d = rates.rates
    error = rates.error
    return {
        "source": source,
        "n": error.n,
        "error_p50": error.p50,
        "error_p95": error.p95,
        "bias": error.bias,
        "tokens_a_prompt": a,
        "tokens_a_message": b,
        **({} if source == "tokenizer" else {"bytes_a_token": 1 / c, "bytes_a_token_wide": 1 / d}),
    }
