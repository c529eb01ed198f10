"""COMPUTE_JIT: a kernel is compiled in the middle of serving, at the first use of a shape."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.first_uses import FirstUses, first_uses
from tailrace.diagnose.stop_pattern import StopKind, stop_pattern
from tailrace.diagnose.stop_words import device_idle, disproofs, head, stop_facts
from tailrace.model.finding import Evidence, Finding

__all__ = ["jit_in_records"]


def jit_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Stops only at first uses. Records cannot name the kernel: never more than a suspicion."""
    window = evidence.now
    uses = first_uses(window)
    if uses is not None and uses.holds:
        return _in_prefills(cause, evidence, uses)
    if not window.gaps.rows or not window.stalls.row.size:
        return None
    pattern = stop_pattern(window)
    if pattern.kind is not StopKind.FIRST_USE:
        return None
    explains = window.explain(cause.code, pattern.explains)
    if not cause.carries(evidence, explains):
        return None
    triggers = pattern.triggers
    lengths = window.every.column("prompt_tokens")[triggers.rows[triggers.rows >= 0]]
    idle = device_idle(evidence, pattern)
    checked = [*disproofs(evidence, pattern), "later requests of the same lengths stopped nobody"]
    if idle is not None:
        checked.append(f"the accelerator {'idled' if idle else 'was busy'} in the stops")
    return cause.finding(
        statement=f"The engine seems to compile at the first use of a shape: {head(pattern)}, and "
        f"{triggers.new_shape:.0%} of these stops come with the first request of a length in this window.",
        evidence=[
            *stop_facts(evidence, pattern, explains),
            Evidence(
                f"{triggers.new_shape:.0%} of the stops begin with the first prompt of its length (by powers of "
                f"two: {', '.join(f'{value:,.0f}' for value in np.sort(lengths)[:6])} tokens), later ones of the "
                "same length stopped nobody",
                "timeline, record:prompt_tokens",
                "new_shape",
                round(triggers.new_shape, 4),
            ),
        ],
        explains_ms=explains,
        relation=f"stops at first uses / stops = {triggers.new_shape:.0%} (n = {pattern.n})",
        n=pattern.n,
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command + _VERIFY,
        missing=[_MISSING],
        disproof_checked=checked,
    )


def _in_prefills(cause: Cause, evidence: EvidenceSet, uses: FirstUses) -> Finding | None:
    """Steps that take many times the usual inside the engine's own prefill times, at first uses only."""
    window = evidence.now
    explains = window.explain(cause.code, uses.explains)
    if not cause.carries(evidence, explains):
        return None
    slow, ms = int(uses.first.size), float(np.median(uses.ms))
    if uses.n >= 0.5 * slow:
        when = f"{uses.n} of them are the first of their size (by powers of two) in this window"
        odds = uses.chance
    else:
        when = f"the last one comes when {uses.at.max():.0%} of the window's prefills are done"
        odds = uses.early
    sizes = ", ".join(f"{value:,.0f}" for value in np.sort(uses.tokens)[:6])
    facts = [
        Evidence(
            f"{slow} of {uses.steps} steps with a prefill take {ms:,.0f} ms (median) more than is usual for their size "
            f"({sizes} tokens)",
            "record:prefill_ns, record:prompt_tokens",
            "slow_steps",
            float(slow),
        ),
        Evidence(
            f"{when}; at any steps of the window chance would give that once in {1 / max(odds, 1e-9):,.0f}",
            "record:prefill_ns, record:start",
            "first_uses",
            float(uses.n),
        ),
        Evidence(
            f"{uses.later} later steps of the same sizes take {uses.later_ms:,.0f} ms (median)",
            "record:prefill_ns",
            "later_ms",
            round(uses.later_ms, 1),
            "ms",
        ),
    ]
    checked = [f"{uses.later} later steps of the same sizes were not slow again"]
    if not np.isnan(uses.covered):
        checked.append(f"{uses.covered:.0%} of the time in which streams stood still lies inside these steps")
    return cause.finding(
        statement=f"The engine seems to compile at the first use of a shape: {slow} steps with a prefill take "
        f"{ms:,.0f} ms (median) more than is usual for their size, and {when}.",
        evidence=facts,
        explains_ms=explains,
        relation=f"a step of the same size: {ms + uses.later_ms:,.0f} ms at first, {uses.later_ms:,.0f} ms later "
        f"(n = {slow} and {uses.later})",
        n=slow,
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command + _VERIFY,
        missing=[_MISSING],
        disproof_checked=checked,
    )


_ADVICE: Final = (
    "Add these shapes to the engine's warm-up (or send one request of each length after a start, before users come), "
    "keep the compile cache across restarts, and count the seconds of compiling at the start."
)
_PRICE: Final = "A longer start."
_VERIFY: Final = "  # and the engine's log of the slow window, in which its compilers tell what they do"
_MISSING: Final = "the engine's log of the slow window, or a stack dump while it lasts, that names the compiler"
