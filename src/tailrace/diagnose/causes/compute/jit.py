"""COMPUTE_JIT: kernels are compiled while requests wait."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.compute.jit_in_stacks import jit_in_stacks
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Finding

__all__ = ["Jit"]


class Jit(Cause):
    """A compiler is on the stack, or in the log, inside the slow window."""

    code: ClassVar[str] = "COMPUTE_JIT"
    stage: ClassVar[str] = "prefill"
    needs: ClassVar[tuple[str, ...]] = (
        "a stack dump (or a log line) from inside the stall",
        "use of the accelerator and running requests",
    )
    disproof: ClassVar[str] = "It comes again on a shape that was used already."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return jit_in_stacks(self, observed)
