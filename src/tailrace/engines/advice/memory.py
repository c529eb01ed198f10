"""Arithmetic of a card's memory: weights, what a step needs, and the tokens of KV cache that are left.

Anchor: Llama-3.1-8B in bfloat16 on an RTX 4090 under vLLM 0.19, 25.25 GB x 0.9 - 16.06 GB weights - 1.24 GB = 5.43 GB
of KV cache, 2,588 blocks of 16 tokens. The 1.24 GB (activations at 2,048 tokens a step, graphs, the CUDA context) is
what `reserve` estimates; on other cards it was not measured, so results are good to about 1 GB.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.engines.advice.card import Card
from tailrace.engines.advice.model_shape import ModelShape, bytes_of

CONTEXT: Final = 0.7e9
"""Bytes of the CUDA context and captured graphs, fitted to the anchor above."""
MFU: Final = 0.7
"""Share of a card's peak arithmetic that prefill reaches; published kernel times lie between 0.69 and 0.87."""
MBU: Final = 0.75
"""Share of its peak bandwidth that decoding reaches."""


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one card's memory is divided (bytes)."""

    total: float
    granted: float
    """`total` x the engine's share."""
    weights: float
    reserve: float
    kv: float
    """What is left for the KV cache; negative: it does not fit."""
    kv_tokens: float | None
    """The same in tokens, over all cards of one copy; `None` where the model's shape is not known."""


def cache_dtype(kv_dtype: str, dtype: str) -> str:
    """Precision of the KV cache: `auto` is what is computed in, 16 bit whatever the weights are kept in."""
    if kv_dtype != "auto":
        return kv_dtype
    return dtype if dtype.removeprefix("torch.") in {"float32", "fp32", "float"} else "bfloat16"


def weight_bytes(shape: ModelShape, dtype: str) -> float:
    """Bytes of all weights."""
    return shape.parameters * (bytes_of(dtype) or 2.0)


def reserve(shape: ModelShape, *, batched_tokens: float, seqs: float, cards: int) -> float:
    """Bytes that one card needs beside weights and KV cache.

    Context, the widest activations of a step (gate, up and their product, six residuals), and logits in 32 bit twice.
    """
    width = (3.0 * shape.inner / cards + 6.0 * shape.hidden) * 2.0
    return CONTEXT + batched_tokens * width + seqs * shape.vocabulary * 8.0 / cards


def plan_memory(
    shape: ModelShape,
    card: Card,
    *,
    dtype: str,
    kv_dtype: str,
    share: float,
    batched_tokens: float,
    seqs: float,
    cards: int = 1,
) -> MemoryPlan:
    """Divide one card's memory for a model spread over `cards` of them."""
    cards = max(cards, 1)
    granted = card.memory * share
    weights = weight_bytes(shape, dtype) / cards
    needed = reserve(shape, batched_tokens=batched_tokens, seqs=seqs, cards=cards)
    left = granted - weights - needed
    token = shape.kv_bytes(cache_dtype(kv_dtype, dtype))
    # Every card holds its share of the KV heads, at least one: beyond that they are copied, and nothing is gained.
    split = min(cards, shape.kv_heads) if shape.kv_heads else cards
    return MemoryPlan(
        total=card.memory,
        granted=granted,
        weights=weights,
        reserve=needed,
        kv=left,
        kv_tokens=None if token is None else max(left, 0.0) / (token / split),
    )


def step_seconds(shape: ModelShape, card: Card, tokens: float, *, dtype: str, cards: int = 1) -> float:
    """About how long one step with `tokens` prompt tokens takes: the larger of arithmetic and reading the weights."""
    cards = max(cards, 1)
    arithmetic = 2.0 * (shape.active or shape.parameters) * tokens / (card.arithmetic * MFU * cards)
    reading = weight_bytes(shape, dtype) / (card.bandwidth * MBU * cards)
    return max(arithmetic, reading)
