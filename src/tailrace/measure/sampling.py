"""Tail sampling: which requests keep their timeline, decided when they have ended.

Slow, failed, cancelled, timed-out and rejected requests always do; of the rest a share, chosen by a hash of the id, so
that every process decides alike. The weight of a kept one is 1 / its probability: sums of weights estimate counts
without bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from tailrace.model.outcome import OutcomeKind

DEFAULT_RATE: Final = 0.01
_SPACE: Final = float(1 << 64)


def share_of(request_id: str) -> float:
    """A number in [0, 1) that depends on the id alone and is spread evenly."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest()) / _SPACE


def keep(request_id: str, outcome: OutcomeKind, slow: Sequence[str], rate: float = DEFAULT_RATE) -> tuple[str, float]:
    """(keep reason, weight) of a finished request; `("", 0.0)` if its timeline is not kept.

    Reasons: the outcome where it is not `completed`, `stall` (either stall rule), `slow` (TTFT or TPOT), `sampled`.
    """
    if outcome is not OutcomeKind.COMPLETED:
        return outcome.value, 1.0
    if "stall" in slow or "gap" in slow:
        return "stall", 1.0
    if slow:
        return "slow", 1.0
    if rate > 0 and share_of(request_id) < rate:
        return "sampled", 1.0 / min(rate, 1.0)
    return "", 0.0
