"""The requests that come to a site: when, how long, with which options and which shared beginnings."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.model.thresholds import S

PREFIX_TOKENS = 128
"""Prompt tokens that one hash of a beginning stands for."""


class Class(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request. Lengths are lognormal: median and standard deviation of the logarithm."""

    name: str
    share: float
    prompt: int
    prompt_spread: float = 0.6
    output: int
    output_spread: float = 0.6
    stream: bool = True


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives. `rate` in requests a second."""

    n: int
    rate: float
    classes: tuple[Class, ...]
    arrivals: Literal["poisson", "bursts", "even"] = "poisson"
    burst_s: float = 10.0
    """With `bursts`: a burst begins about so often ..."""
    burst_share: float = 0.5
    """... this share of all requests comes in bursts ..."""
    burst_for_s: float = 0.5
    """... each within so long."""
    grammar: float = 0.0
    """Share of requests that ask for structured output."""
    tools: float = 0.0
    """Share of answers that contain a tool call."""
    choices: float = 0.0
    """Share of requests with several answers at once (`n`) ..."""
    choices_n: int = 4
    """... so many."""
    sessions: int = 0
    """Requests belong to so many sessions at a time (0: each for itself), whose requests share a beginning ..."""
    shared_tokens: int = 0
    """... of so many tokens."""
    repeats: float = 1.0
    """Share of a session's requests that do begin as the others (else something unique stands first)."""
    hot: float = 0.0
    """Share of requests that belong to one session."""
    longest_prompt: int = 24_000
    longest_output: int = 1_600


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request as its client wants it; `at` in ns from the beginning of the window."""

    number: int
    at: int
    kind: str
    prompt: int
    output: int
    stream: bool
    grammar: bool
    tool: bool
    n: int
    session: int
    prefix: tuple[int, ...]


def calls(traffic: Traffic, rng: np.random.Generator) -> list[Call]:
    """The requests in order of their times. The same generator gives the same calls, whatever the site is."""
    # Each property has a generator of its own: changing one leaves the others as they are.
    seeds = rng.spawn(9)
    n = traffic.n
    at = _times(traffic, seeds[0])
    shares = np.array([one.share for one in traffic.classes])
    kinds = np.searchsorted(np.cumsum(shares / shares.sum()), seeds[1].random(n), side="right")
    normal = seeds[2].standard_normal((2, n))
    coins = seeds[3].random((4, n))
    session = seeds[4].integers(0, max(traffic.sessions, 1), n)
    session[seeds[5].random(n) < traffic.hot] = 0
    same = seeds[6].random(n) < traffic.repeats
    out = []
    for i in range(n):
        one = traffic.classes[min(int(kinds[i]), len(traffic.classes) - 1)]
        prompt = one.prompt * math.exp(one.prompt_spread * normal[0, i])
        output = one.output * math.exp(one.output_spread * normal[1, i])
        belongs = traffic.sessions > 0
        prefix: tuple[int, ...] = ()
        length = min(max(int(prompt), 8), traffic.longest_prompt)
        if belongs and traffic.shared_tokens:
            length = min(length + traffic.shared_tokens, traffic.longest_prompt)
            whole = min(traffic.shared_tokens, length) // PREFIX_TOKENS
            key = int(session[i]) if same[i] else 1_000_000 + i
            prefix = tuple(key * 4096 + j for j in range(whole))
        out.append(
            Call(
                number=i,
                at=int(at[i]),
                kind=one.name,
                prompt=length,
                output=min(max(int(output), 2), traffic.longest_output),
                stream=one.stream,
                grammar=bool(coins[0, i] < traffic.grammar),
                tool=bool(coins[1, i] < traffic.tools),
                n=traffic.choices_n if coins[2, i] < traffic.choices else 1,
                session=int(session[i]) if belongs else -1,
                prefix=prefix,
            )
        )
    return out


def _times(traffic: Traffic, rng: np.random.Generator) -> NDArray[np.int64]:
    n, rate = traffic.n, traffic.rate
    if traffic.arrivals == "even":
        return ((np.arange(n) + 0.1 * rng.random(n)) / rate * S).astype(np.int64)
    if traffic.arrivals == "poisson":
        return (np.cumsum(rng.exponential(1 / rate, n)) * S).astype(np.int64)
    # As many requests as Poisson's in the mean, a part of them gathered into bursts.
    span = n / rate
    burst = rng.random(n) < traffic.burst_share
    begins = np.sort(rng.uniform(0, span, max(1, round(span / traffic.burst_s))))
    at = rng.uniform(0, span, n)
    at[burst] = begins[rng.integers(0, begins.size, int(burst.sum()))] + rng.uniform(
        0, traffic.burst_for_s, int(burst.sum())
    )
    return (np.sort(at) * S).astype(np.int64)
