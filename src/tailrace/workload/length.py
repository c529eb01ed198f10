"""Lengths: distributions of prompt and output tokens.

Each maps a standard normal deviate to a number of tokens, so that two lengths can be drawn jointly with a stated
correlation (a Gaussian copula) while each keeps its own distribution.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.model.errors import InputError

Deviates = NDArray[np.float64]
Tokens = NDArray[np.int64]

MAX_TOKENS = 1_000_000


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """Always the same."""

    tokens: int

    def at(self, z: Deviates) -> Tokens:
        """Tokens for standard normal deviates `z` (same shape)."""
        return np.full(z.shape, self.tokens, dtype=np.int64)

    def mean(self) -> float:
        """Expected tokens."""
        return float(self.tokens)

    def __str__(self) -> str:
        return str(self.tokens)


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Every whole number from `low` to `high` equally likely."""

    low: int
    high: int

    def at(self, z: Deviates) -> Tokens:
        """Tokens for standard normal deviates `z` (same shape)."""
        u = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z.ravel().tolist()]).reshape(z.shape)
        span = self.high - self.low + 1
        return self.low + np.minimum((u * span).astype(np.int64), span - 1)

    def mean(self) -> float:
        """Expected tokens."""
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


class LogNormal(msgspec.Struct, frozen=True, tag="lognormal"):
    """Log-normal around `median` with shape `sigma`, clipped to `[low, high]` (clipping keeps the median)."""

    median: int
    sigma: float
    low: int = 1
    high: int = MAX_TOKENS

    def at(self, z: Deviates) -> Tokens:
        """Tokens for standard normal deviates `z` (same shape)."""
        drawn = np.rint(self.median * np.exp(self.sigma * z))
        out: Tokens = np.clip(drawn, self.low, self.high).astype(np.int64)
        return out

    def mean(self) -> float:
        """Expected tokens, without the clipping."""
        return self.median * math.exp(self.sigma**2 / 2)

    def __str__(self) -> str:
        clip = "" if (self.low, self.high) == (1, MAX_TOKENS) else f" in {self.low}-{self.high}"
        return f"{self.median}~{self.sigma:g}{clip}"


Length = Fixed | Uniform | LogNormal

_UNIFORM = re.compile(r"(\d+)-(\d+)")
_LOGNORMAL = re.compile(r"(\d+)~(\d*\.?\d+)")


def parse_length(text: str, *, place: str = "") -> Length:
    """Read `300` (fixed), `200-400` (uniform) or `300~0.5` (log-normal: median and sigma)."""
    text = text.strip()
    out: Length | None = None
    smallest = 0
    if text.isdecimal():
        out = Fixed(int(text))
        smallest = out.tokens
    elif found := _UNIFORM.fullmatch(text):
        out = Uniform(int(found[1]), int(found[2]))
        smallest = out.low if out.low <= out.high else 0
    elif found := _LOGNORMAL.fullmatch(text):
        out = LogNormal(int(found[1]), float(found[2]))
        smallest = out.median
    if out is None or smallest < 1 or _largest(out) > MAX_TOKENS:
        raise InputError(
            f"{text!r} is no number of tokens",
            place=place,
            remedy=f"Write 300, 200-400 (uniform) or 300~0.5 (log-normal, median and sigma), 1 to {MAX_TOKENS}",
        )
    return out


def _largest(length: Length) -> int:
    if isinstance(length, Fixed):
        return length.tokens
    return length.high


def describe(length: Length) -> dict[str, Any]:
    """A plain dict for a run's header, from which the length can be built again."""
    built: dict[str, Any] = msgspec.to_builtins(length)
    return built
