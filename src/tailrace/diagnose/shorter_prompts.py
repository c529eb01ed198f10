"""Context engineering as advice: what a shorter prompt would change, predicted where the evidence lets it be.

The prediction is linear: a prompt of half the tokens takes half of its prefill. Attention grows faster than that, so
for very long prompts it understates what is saved.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

import numpy as np

from tailrace.diagnose.window import Window

__all__ = ["shorter_prompts", "shorter_prompts_of"]

HOW: Final = "Shorten what is sent (retrieve fewer chunks, filter before the model, trim the history)"


def shorter_prompts(
    *, tokens: float | None = None, rate: float | None = None, ttft_ms: float | None = None, rest_ms: float = 0.0
) -> str:
    """The advice as a sentence. `tokens` of the long prompts, `rate` of prefill (tokens/s), their TTFT as it is (ms),
    and what of it is no prefill (ms).
    """
    tokens, rate, ttft_ms = (_positive(value) for value in (tokens, rate, ttft_ms))
    if tokens is not None and ttft_ms is not None:
        rest = min(max(rest_ms, 0.0), ttft_ms) if isfinite(rest_ms) else 0.0
        half = rest + (ttft_ms - rest) / 2
        return (
            f"{HOW}: with {tokens / 2:.0f} instead of {tokens:.0f} tokens the predicted TTFT is {_time(half)} instead "
            f"of {_time(ttft_ms)}."
        )
    if tokens is not None and rate is not None:
        return (
            f"{HOW}: with {tokens / 2:.0f} instead of {tokens:.0f} tokens the predicted TTFT is at least "
            f"{tokens / 2:.0f}/{rate:.4g} = {_time(500 * tokens / rate)} instead of {_time(1000 * tokens / rate)}."
        )
    if rate is not None:
        return f"{HOW}: at {rate:.4g} tokens/s each 1000 tokens less take {_time(1e6 / rate)} off the TTFT."
    return f"{HOW}: prefill's part of the TTFT falls in proportion to the tokens."


def shorter_prompts_of(window: Window) -> str:
    """The same for the long prompts of a window: medians of what was measured."""
    done = window.done
    tokens, ttft, prefill = done.column("prompt_tokens"), done.ms("ttft"), done.ms("prefill")
    rows = window.long & np.isfinite(tokens) & np.isfinite(ttft)
    if not rows.any():  # nothing stands out: the upper quarter
        known = np.isfinite(tokens) & np.isfinite(ttft)
        rows = known & (tokens >= np.quantile(tokens[known], 0.75)) if known.any() else known
    if not rows.any():
        return shorter_prompts()
    ttft_ms = float(np.median(ttft[rows]))
    own = prefill[rows]
    own = own[np.isfinite(own)]
    rest = ttft_ms - float(np.median(own)) if own.size else 0.0
    return shorter_prompts(tokens=float(np.median(tokens[rows])), ttft_ms=ttft_ms, rest_ms=rest)


def _positive(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and value > 0 else None


def _time(ms: float) -> str:
    return f"{ms / 1e3:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"
