"""MIX_STRUCTURED_OUTPUT: requests with a grammar are slow, or make the others slow."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from tailrace.diagnose.arm_evidence.grammar_on_arms import grammar_on_arms
from tailrace.diagnose.arms.of_requests import arms_by
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.served import grammar_in_served
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.record_evidence.grammars import grammar_in_records
from tailrace.diagnose.series_evidence.grammar_in_series import grammar_in_series
from tailrace.model.finding import Action, Finding

__all__ = ["StructuredOutput"]

FEWEST = 8


class StructuredOutput(Cause):
    """The first token is late only with a grammar while the gaps are equal; or all stand still when one arrives."""

    code: ClassVar[str] = "MIX_STRUCTURED_OUTPUT"
    stage: ClassVar[str] = "prefill"
    needs: ClassVar[tuple[str, ...]] = ("which requests have a grammar", "requests with and without one")
    disproof: ClassVar[str] = "Plain requests of equal length are as slow at the same time."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Both kinds must be there."""
        grammar = evidence.now.done.column("grammar").astype(bool)
        some = FEWEST <= grammar.sum() <= grammar.size - FEWEST
        return "" if some else f"at least {FEWEST} requests with a grammar, and as many without one"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks; from a log of finished requests."""
        return surest(
            [
                grammar_on_arms(self, observed),
                *(grammar_on_arms(self, _by_grammar(observed, rows)) for rows in observed.table("requests")),
                grammar_in_served(self, observed),
                grammar_in_series(self, observed),
            ]
        )

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return grammar_in_records(self, evidence)


def _by_grammar(observed: Observed, rows: Rows) -> Observed:
    """The same with two arms of a table of requests: those with a grammar, and those without."""
    told = rows.numbers("grammar")
    if not rows.has("grammar") or np.isnan(told).all():
        return msgspec.structs.replace(observed, arms=[])
    masks = {"requests with a grammar (schema)": told > 0, "plain requests without": told == 0}
    return msgspec.structs.replace(observed, arms=arms_by(rows, masks))
