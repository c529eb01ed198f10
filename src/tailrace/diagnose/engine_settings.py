"""Names under which engines, forms and logs say the three limits that decide who runs."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.observed import Observed, Setting

__all__ = ["KV_CAPACITY", "RUNNING_LIMIT", "step_budget"]

RUNNING_LIMIT: Final = ("max_num_seqs", "max_running_requests")
"""Requests that may run at once."""
KV_CAPACITY: Final = ("kv_capacity_tokens", "kv_tokens")
"""Tokens that the whole KV cache holds."""
_STEP_BUDGET: Final = (
    "max_num_batched_tokens", "chunked_prefill_size", "prefill_piece_tokens", "prefill_chunk_tokens", "n_batch",
    "max_prefill_tokens", "long_prefill_token_threshold", "step_budget_tokens",
)  # fmt: skip


def step_budget(observed: Observed) -> Setting | None:
    """Prompt tokens that one step computes at most: the first of its names that is a number above 0."""
    return next((item for name in _STEP_BUDGET if (item := observed.setting(name)) is not None and item.number), None)
