"""Whether an engine is alive, from its metrics: `/health` answers 200 while the engine behind it stands still."""

from __future__ import annotations

from typing import Final

from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import S

FROZEN_AFTER_NS: Final = 2 * S
"""Shorter stand-stills are long steps: a whole unchunked prefill may take seconds on a small machine."""


def is_frozen(before: EngineState, after: EngineState, *, least_ns: int = FROZEN_AFTER_NS) -> bool | None:
    """Whether the engine ran requests all the time between two scrapes and computed nothing.

    `None` where the scrapes cannot say it: too close together, or without the signals. Prompt tokens count as
    progress where they are known; during one long prefill they stand still too, so let `least_ns` exceed that.
    """
    if after.at_ns - before.at_ns < least_ns or before.running is None or after.running is None:
        return None
    if before.generation_tokens_total is None or after.generation_tokens_total is None:
        return None
    if before.running < 1 or after.running < 1:
        return False
    moved = after.generation_tokens_total != before.generation_tokens_total
    if before.prompt_tokens_total is not None and after.prompt_tokens_total is not None:
        moved = moved or after.prompt_tokens_total != before.prompt_tokens_total
    return not moved
