"""What a request will take: its tokens, its part of the KV cache, its work."""

from __future__ import annotations

from typing import Final

from tailrace.govern.lane import RequestFacts
from tailrace.govern.occupancy import Demand

UNKNOWN_OUTPUT: Final = 256
"""Output tokens of a request about whose like nothing is known, unless it asks for fewer."""
PROMPT_WORK: Final = 0.1
"""Work of a prompt token, in output tokens. Prefill computes all of a prompt at once and is bound by arithmetic;
decoding one token reads all weights."""


def demand_of(
    facts: RequestFacts, expected: int | None = None, low: int | None = None, high: int | None = None
) -> Demand:
    """`expected`, `low`, `high`: output tokens of one sequence as they are predicted; at most what was asked for."""
    ask = facts.max_tokens
    if expected is None:
        expected = UNKNOWN_OUTPUT if ask is None else min(ask, UNKNOWN_OUTPUT)
        low, high = 1, max(expected, min(ask, 4 * UNKNOWN_OUTPUT)) if ask is not None else expected
    if ask is not None:
        expected = min(expected, ask)
        high = expected if high is None else min(high, ask)
    sequences = max(1, facts.sequences)
    prompt = facts.prompt_tokens
    output = expected * sequences
    return Demand(
        prompt,
        prompt + output,
        prompt + max(expected, high or expected) * sequences,
        prompt * PROMPT_WORK + output,
        prompt * PROMPT_WORK + min(expected, low or expected),
    )
