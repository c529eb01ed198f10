"""FE_DETOKENIZE_GROWTH: each further token of an answer takes longer, whatever the batch does."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.position_slope import position_slope
from tailrace.model.finding import Evidence, Finding

__all__ = ["growth_in_timelines"]

GROWN: Final = 1.3
CERTAIN: Final = 4.0
CARRIES: Final = 0.15
"""Of a long answer's decode time."""


def growth_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Regression of the gap on position, batch and prompt length."""
    window = evidence.now
    if cause.cannot_run(evidence):
        return None
    found = position_slope(window)
    if found is None or found.t < CERTAIN or found.late_ms < GROWN * max(found.early_ms, 1e-9):
        return None
    tokens = np.nan_to_num(window.done.column("output_tokens"), nan=0.0)
    decode = (window.end - window.first) / 1e6
    slowest = np.argsort(np.nan_to_num(decode, nan=0.0), kind="stable")[-max(10, round(0.025 * window.n)) :]
    explains = float(np.minimum(found.slope_ms * tokens**2 / 2.0, np.nan_to_num(decode, nan=0.0))[slowest].mean())
    whole = float(np.nanmean(decode[slowest]))
    if explains < 50.0 or explains < CARRIES * whole:
        return None
    missing = [] if found.prompts_vary else ["prompts of several lengths: attention over a longer context grows too"]
    return cause.finding(
        statement=f"The longer an answer, the slower its tokens: the gap goes from {found.early_ms:.1f} ms to "
        f"{found.late_ms:.1f} ms between tokens {found.early_at:.0f} and {found.late_at:.0f} at an equal batch.",
        evidence=[
            Evidence(
                f"gap {found.early_ms:.1f} ms at token {found.early_at:.0f}, {found.late_ms:.1f} ms at token "
                f"{found.late_at:.0f}, batch and prompt length held equal (n = {found.n} stretches of "
                f"{found.streams} streams)",
                "timeline",
                "late_ms",
                round(found.late_ms, 2),
                "ms",
            ),
            Evidence(
                f"slope {found.slope_ms * 1000:.3f} ms by 1000 tokens of answer (t = {found.t:.1f}), "
                f"{found.prompt_ms * 1000:.3f} ms by 1000 tokens of prompt",
                "timeline, record:prompt_tokens",
                "slope_ms_per_1000",
                round(found.slope_ms * 1000, 4),
                "ms",
            ),
            Evidence(
                f"{explains:.0f} of the {whole:.0f} ms that the longest answers decode",
                "timeline",
                "explains_ms",
                round(explains, 1),
                "ms",
            ),
        ],
        explains_ms=explains,
        relation=f"slope x tokens^2 / 2: {found.slope_ms * 1000:.3f} ms/1000 tokens over "
        f"{float(np.mean(tokens[slowest])):.0f} tokens = {explains:.0f} ms",
        n=found.n,
        advice="Use an incremental detokeniser (decode only the new tokens, not the whole answer each time), "
        "look for "
        "other work by token that walks the whole text (stop strings, logprobs, usage in every chunk), and cap "
        "the outputs until then.",
        price="A cap cuts answers that somebody would have read.",
        verify=evidence.verify_command + "  # one long answer alone: the gap at its beginning and at its end",
        missing=missing,
        disproof_checked=[
            f"at an equal batch the slope is {found.slope_ms * 1000:.3f} ms by 1000 tokens",
            f"the prompt's slope of {found.prompt_ms * 1000:.3f} ms by 1000 tokens is taken off",
        ],
    )
