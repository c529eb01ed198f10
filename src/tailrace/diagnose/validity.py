"""First the numbers, then the system: the checks on records, and whether they forbid everything else.

A check is the `judge` of a cause in `causes/validity`: the code that a table or a scrape would lead to is the code that
records lead to.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.diagnose.causes.validity import CHECKS
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.record_evidence.impossible_records import impossible_rows
from tailrace.model.finding import Finding

__all__ = ["Checked", "check"]


class Checked(NamedTuple):
    """What the checks said."""

    findings: list[Finding]
    forbidding: list[Finding]
    """Those of them after which nothing may be concluded about the system."""
    sound: EvidenceSet
    """The evidence without the records that cannot be."""


def check(evidence: EvidenceSet, broken: BrokenRules) -> Checked:
    """Every check. An impossible record is left out and counted."""
    impossible = impossible_rows(evidence.table)
    bad = np.zeros(len(evidence.table), dtype=bool)
    for mask in impossible.values():
        bad |= mask
    if bad.any():
        counts = {rule: int(mask.sum()) for rule, mask in impossible.items() if mask.any()}
        evidence = evidence.with_table(evidence.table.where(~bad), left_out=counts, left_out_rows=int(bad.sum()))
    findings, forbidding = [], []
    for cause in CHECKS:
        finding = broken.ask(cause.code, partial(cause.judge, evidence))
        if finding is not None:
            findings.append(finding)
            if broken.ask(cause.code, partial(cause.forbids, evidence)):
                forbidding.append(finding)
    return Checked(findings, forbidding, evidence)
