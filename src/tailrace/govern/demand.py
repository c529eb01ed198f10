"""What a request will take: its tokens, its part of the KV cache, its work."""

from __future__ import annotations

from tailrace.govern.lane import RequestFacts
from tailrace.govern.length_model import LengthPrediction
from tailrace.govern.occupancy import Demand


def demand_of(facts: RequestFacts, length: LengthPrediction, prompt_work: float) -> Demand:
    """`length`: output tokens of one sequence, as predicted. `prompt_work`: what a prompt token is worth in work, an
    output token being worth 1.

    Sequences of one request run side by side: each has its tokens and its part of the KV cache, and together they hold
    the request's place for no longer than one would.
    """
    sequences = facts.sequences
    prompt, expected = facts.prompt_tokens, length.tokens
    weighted = prompt * prompt_work
    return Demand(
        prompt,
        prompt + expected * sequences,
        prompt + max(expected, length.high) * sequences,
        max(1.0, weighted + expected),
        weighted + length.low,
        length.n,
    )
