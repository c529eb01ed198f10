"""COMPUTE_KERNEL_REGRESSION: another version computes the same work slower."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.changed import changed_between
from tailrace.diagnose.equal_work import slower_parts
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.record_evidence.slower_than_before import slower_than_before
from tailrace.model.finding import Evidence, Finding, Level

__all__ = ["regression_in_windows"]

SLOWER: Final = 0.08

ADVICE: Final = (
    "Roll the engine back to what it was, pin that version, and bisect (version, attention backend, precision, graph "
    "capture) with one change at a time under the same load."
)
PRICE: Final = "What the new version brought besides."


def regression_in_windows(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Slower at equal work while something of the engine changed."""
    before, window = evidence.before, evidence.now
    if before is None:
        return None
    changed = changed_between(evidence)
    if not changed:
        return None
    slower = slower_parts(before, window, least=SLOWER)
    if not slower:
        return _otherwise(cause, evidence, changed)
    worst = max(slower, key=lambda item: item.explains)
    missing = [] if worst.batch_known else ["running requests at the first token (the engine's /metrics)"]
    word = "a token" if worst.what == "decode" else "a prompt token's prefill"
    alone = len(changed) == 1
    if not alone:
        missing.append("each change by itself: " + ", ".join(changed))
    return cause.finding(
        statement=f"The engine is slower since it was changed ({'; '.join(changed)}): {word} takes "
        f"{worst.a:.3g} -> {worst.b:.3g} ms ({worst.change:+.0%}) at an equal batch and equal lengths.",
        evidence=[
            Evidence(
                f"{word}: {worst.a:.3g} -> {worst.b:.3g} ms, {worst.change:+.0%} (95 % interval {worst.low:+.0%} "
                f"to "
                f"{worst.high:+.0%}, n = {worst.n_a} and {worst.n_b})",
                "record:chunk_gap_p50_ns" if worst.what == "decode" else "record:prefill_ns, record:prompt_tokens",
                "pace_ms",
                round(worst.b, 4),
                "ms",
            ),
            *(Evidence(f"changed between the windows: {text}", "record, header", "changed") for text in changed),
            *(Evidence(text, "record:running_at_first_token", "batch") for text in worst.checked),
        ],
        explains_ms=worst.explains,
        relation=f"({worst.b:.3g} - {worst.a:.3g}) ms x {worst.tokens:.0f} tokens = {worst.explains:.0f} ms",
        n=worst.n_b,
        advice=ADVICE,
        price=PRICE,
        verify="tailrace compare before.run after.run",
        missing=missing,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
        disproof_checked=worst.checked,
    )


def _otherwise(cause: Cause, evidence: EvidenceSet, changed: list[str]) -> Finding | None:
    """Where a slower engine has so much more under way that no equal batch is left to compare."""
    found = slower_than_before(evidence, cause.code)
    if found is None or found.at_times:
        return None
    missing = ["each change by itself: " + ", ".join(changed)] if len(changed) > 1 else []
    return cause.finding(
        statement=f"The engine is slower since it was changed ({'; '.join(changed)}). {found.statement}",
        evidence=[
            *found.evidence,
            *(Evidence(f"changed between the windows: {text}", "record, header", "changed") for text in changed),
        ],
        explains_ms=found.explains,
        relation=found.relation,
        n=found.n,
        advice=ADVICE,
        price=PRICE,
        verify="tailrace compare before.run after.run",
        missing=missing,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
        disproof_checked=found.checked,
    )
