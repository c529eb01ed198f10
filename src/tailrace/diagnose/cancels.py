"""Requests that their clients left, and what was computed for them."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.classes import prompt_tokens
from tailrace.analyze.labels import among
from tailrace.diagnose.window import Window, once_a_window
from tailrace.model.outcome import Reason
from tailrace.stats.quantiles import or_zero

__all__ = ["Cancels", "cancels"]

Floats = NDArray[np.float64]

BY_CLIENT: Final = frozenset(
    {Reason.CLIENT_DISCONNECT.value, Reason.CLIENT_WRITE_FAILED.value, Reason.DEADLINE.value, Reason.BARGE_IN.value}
)


class Cancels(NamedTuple):
    """One entry a cancelled request, in the order of `Window.every`."""

    rows: NDArray[np.int64]
    age_ms: Floats
    ttft_ms: Floats
    output_tokens: Floats
    work_share: float
    """Of all tokens (prompts that were begun, and outputs), those of cancelled requests."""


@once_a_window
def cancels(window: Window) -> Cancels:
    """Who left."""
    every = window.every
    gone = among(every.column("outcome"), {"cancelled"}) & among(every.column("reason"), BY_CLIENT)
    rows = np.flatnonzero(gone)
    output = or_zero(every.column("output_tokens"))
    prompt = or_zero(prompt_tokens(every))
    # Who left in a queue had nothing computed.
    begun = ~among(every.column("died_in"), ("ingress", "queue", "preprocess"))
    work = np.where(begun, prompt, 0.0) + output
    total = float(work.sum())
    return Cancels(
        rows,
        every.ms("e2e")[rows],
        every.ms("ttft")[rows],
        output[rows],
        float(work[rows].sum()) / total if total > 0 else 0.0,
    )
