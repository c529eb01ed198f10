"""COMPUTE_JIT: a kernel is compiled in the middle of serving, at the first use of a shape."""

from __future__ import annotations

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.stop_pattern import StopKind, stop_pattern
from tailrace.diagnose.stop_words import device_idle, disproofs, head, stop_facts
from tailrace.model.finding import Evidence, Finding

__all__ = ["jit_in_records"]


def jit_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Stops only at first uses. Records cannot name the kernel: never more than a suspicion."""
    window = evidence.now
    if cause.cannot_run(evidence) or not window.stalls.row.size:
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
        advice="Add these shapes to the engine's warm-up (or send one request of each length after a start, before "
        "users come), keep the compile cache across restarts, and count the seconds of compiling at the start.",
        price="A longer start.",
        verify=evidence.verify_command
        + "  # and the engine's log of the slow window, in which its compilers tell what they do",
        missing=["the engine's log of the slow window, or a stack dump while it lasts, that names the compiler"],
        disproof_checked=checked,
    )
