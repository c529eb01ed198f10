"""FE_DETOKENIZE_GROWTH: each further token of an answer takes longer, whatever the batch does."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.position_load import position_load
from tailrace.diagnose.position_slope import position_slope
from tailrace.diagnose.window import tail_of
from tailrace.model.finding import Evidence, Finding

__all__ = ["growth_in_timelines"]

GROWN: Final = 1.3
CERTAIN: Final = 4.0
CARRIES: Final = 0.15
"""Of a long answer's decode time."""
EXPLAINED: Final = 0.85
"""Correlation of the fit with what was seen."""
LEAST_US: Final = 0.15
"""By token of text: attention over it costs 0.05 to 0.1 us on a large accelerator, and some of it may not have been
told from the prompts'."""
OF_PACE: Final = 0.08


def growth_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Regression of the gap on position, batch and prompt length."""
    window = evidence.now
    whole_text = _of_all_text(cause, evidence)
    if whole_text is not None or not window.gaps.rows:
        return whole_text
    found = position_slope(window)
    if found is None or found.t < CERTAIN or found.late_ms < GROWN * max(found.early_ms, 1e-9):
        return None
    tokens = np.nan_to_num(window.done.column("output_tokens"), nan=0.0)
    decode = (window.end - window.first) / 1e6
    slowest = tail_of(np.nan_to_num(decode, nan=0.0))
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
        advice=_ADVICE,
        price="A cap cuts answers that somebody would have read.",
        verify=evidence.verify_command + "  # one long answer alone: the gap at its beginning and at its end",
        missing=missing,
        disproof_checked=[
            f"at an equal batch the slope is {found.slope_ms * 1000:.3f} ms by 1000 tokens",
            f"the prompt's slope of {found.prompt_ms * 1000:.3f} ms by 1000 tokens is taken off",
        ],
    )


def _of_all_text(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """A token takes longer by all the text that the streams of its step have written so far."""
    window = evidence.now
    load = position_load(window)
    if (
        load is None
        or load.t < CERTAIN - 0.5
        or load.r < EXPLAINED
        or load.us_per_token < LEAST_US
        or (not load.taken and load.us_per_token < 2.0 * load.prompt_us)
        or load.share < OF_PACE
    ):
        return None
    decode = np.nan_to_num((window.end - window.first) / 1e6, nan=0.0)
    slowest = tail_of(decode)
    explains = float(np.minimum(load.explains, decode)[slowest].mean())
    if explains < 50.0:
        return None
    late = load.base_ms + load.us_per_token / 1e3 * (load.high_tokens - load.low_tokens)
    return cause.finding(
        statement=f"The more text the streams have written, the slower every token: {load.base_ms:.1f} ms a token with "
        f"{load.low_tokens:,.0f} tokens of text in the step, {late:.1f} ms with {load.high_tokens:,.0f}, at equal "
        "batch and prompts.",
        evidence=[
            Evidence(
                f"{load.base_ms:.1f} ms a token at {load.low_tokens:,.0f} tokens of text in the step, {late:.1f} ms at "
                f"{load.high_tokens:,.0f} (p10 and p90 of the requests)",
                "record:tpot_ns, record:output_tokens",
                "late_ms",
                round(late, 2),
                "ms",
            ),
            Evidence(
                f"{load.us_per_token:.2f} us by token of text beyond the {load.prompt_us:.2f} us "
                f"{'at most' if load.taken else 'that'} a token of prompt costs "
                f"(t = {load.t:.1f}, correlation {load.r:.2f}, n = {load.n})",
                "record:tpot_ns, record:output_tokens, record:prompt_tokens",
                "us_per_token",
                round(load.us_per_token, 3),
                "us",
            ),
            Evidence(
                f"{explains:.0f} of the {float(decode[slowest].mean()):.0f} ms that the longest answers decode",
                "record:tpot_ns",
                "explains_ms",
                round(explains, 1),
                "ms",
            ),
        ],
        explains_ms=explains,
        relation=f"{load.us_per_token:.2f} us x {load.high_tokens - load.low_tokens:,.0f} tokens of text = "
        f"{late - load.base_ms:.1f} ms a token",
        n=load.n,
        advice=_ADVICE,
        price="A cap cuts answers that somebody would have read.",
        verify=evidence.verify_command + "  # one long answer alone: the gap at its beginning and at its end",
        disproof_checked=[
            (
                f"a token of prompt costs {load.prompt_us:.2f} us{' at most' if load.taken else ''}: attention alone "
                "would make both equal"
            ),
            "the number of streams is held equal by the regression",
        ],
    )


_ADVICE: Final = (
    "Use an incremental detokeniser (decode only the new tokens, not the whole answer each time), look for other work "
    "by token that walks the whole text (stop strings, logprobs, usage in every chunk), and cap the outputs until then."
)
