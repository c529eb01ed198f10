"""Work as one number: tokens, of which a prompt's are cheaper than an answer's.

Two prices, for two questions:

* `machine_work` is what a request costs the engine, for balance, order and fairness. A prefill token is computed among
  two thousand others and is bound by arithmetic; a decode token re-reads the weights, shared with the batch.
* `WorkPrice` is what a request costs *its place*: for how long it occupies it. Decode is one token a step however large
  the batch is, so that a prompt token is far cheaper here, and how much so depends on the engine, its chunk size and
  its load: it is learnt.
"""

from __future__ import annotations

from typing import Final

PREFILL_WEIGHT: Final = 1 / 8
"""Machine time of a prompt token in that of an output token. An 8B model on an A100 computes a prompt token in about
0.05 ms (2 x 7e9 operations at 0.87 x 312 TFLOP/s); a decode step of 32 requests takes about 12 ms, 0.4 ms a token."""

_PRIOR: Final = 1 / 100
"""The same ratio in time of a place, before it is learnt: 0.05-0.1 ms a prompt token, 8-20 ms a token of the answer."""
_LOWEST: Final = 1 / 5000
_HIGHEST: Final = 1.0
_ENOUGH: Final = 20
_KEEP: Final = 0.99
"""What is left of a sample's weight after each new one: about the last hundred decide."""


def machine_work(prompt_tokens: int, output_tokens: int) -> float:
    """What a request costs the engine, in output tokens."""
    return output_tokens + PREFILL_WEIGHT * prompt_tokens


class WorkPrice:
    """Time of a place = a x prompt tokens + b x output tokens; `ratio` is a / b, by least squares over finished
    requests. Each is weighted by 1 / time, so that a long one does not outvote a hundred short ones; old ones fade.
    """

    __slots__ = ("_oo", "_ot", "_po", "_pp", "_pt", "n", "ratio")

    def __init__(self) -> None:
        self.ratio = _PRIOR
        """Price of a prompt token in output tokens."""
        self.n = 0
        self._pp = self._po = self._oo = self._pt = self._ot = 0.0

    def work(self, prompt_tokens: int, output_tokens: int) -> float:
        """How long a request occupies its place, in output tokens; at least 1."""
        return max(1.0, self.ratio * prompt_tokens + output_tokens)

    def observe(self, prompt_tokens: int, output_tokens: int, service_ns: int) -> None:
        """A request completed after `service_ns` in its place."""
        if service_ns <= 0 or output_tokens <= 0:
            return
        prompt, output, time = float(prompt_tokens), float(output_tokens), service_ns / 1e6
        self._pp = self._pp * _KEEP + prompt * prompt / time
        self._po = self._po * _KEEP + prompt * output / time
        self._oo = self._oo * _KEEP + output * output / time
        self._pt = self._pt * _KEEP + prompt
        self._ot = self._ot * _KEEP + output
        self.n += 1
        if self.n < _ENOUGH:
            return
        determinant = self._pp * self._oo - self._po * self._po
        if determinant <= 1e-6 * self._pp * self._oo:
            return  # prompt and answer in one fixed ratio: no telling which of them takes the time
        of_prompt = (self._pt * self._oo - self._ot * self._po) / determinant
        of_output = (self._ot * self._pp - self._pt * self._po) / determinant
        if of_output <= 0:
            self.ratio = _HIGHEST
        else:
            self.ratio = min(max(of_prompt / of_output, _LOWEST), _HIGHEST)
