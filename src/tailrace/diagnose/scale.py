"""Tune, shed, or scale out: the discipline before "scale" may be printed.

Three questions must be answered: is the time queue or execution; is it prefill or decode; do the batch limits fit the
lengths? And the preconditions must hold: raising the cap gains nothing (or TPOT is at its objective already), the
replicas are evenly loaded, nothing is preempted, prefix hits are as offered, the share of requests with a grammar is
what it was, the clock did not fall. What is not known does not hold: it is named as what to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from tailrace.diagnose.arms.checks import Answer, Check
from tailrace.diagnose.arms.limits import limits_fit
from tailrace.diagnose.arms.scale_answers import answers, preconditions
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Finding

__all__ = ["SLOW_TO_START", "TAKES_MINUTES", "Ruling", "disciplined", "rule_on"]

TAKES_MINUTES: Final = "; a new replica takes minutes to load"
"""In the advice of a cause that offers a replica among other things."""

SLOW_TO_START: Final = (
    "A new replica needs minutes to load its weights and warm up: it ends no incident; shed, roll back or shorten "
    "outputs "
    "first."
)
_PER_NODE: Final = (
    "After it, check the limits of each node: its share of the concurrency against max_num_seqs, its KV cache, its "
    "connection pool, its CPU quota, and the skew between nodes."
)


class Ruling(NamedTuple):
    """What the evidence allows."""

    questions: tuple[Check, ...]
    preconditions: tuple[Check, ...]

    @property
    def failed(self) -> list[Check]:
        """What speaks against more replicas."""
        return [item for item in (*self.questions, *self.preconditions) if item.answer is Answer.FAILS]

    @property
    def unknown(self) -> list[Check]:
        """What nobody measured."""
        return [item for item in (*self.questions, *self.preconditions) if item.answer is Answer.UNKNOWN]

    @property
    def may_scale(self) -> bool:
        """All answered, and all of it holds."""
        return not self.failed and not self.unknown

    @property
    def action(self) -> Action:
        """Of a queue that is full: tune where something fails, scale where all holds, else shed."""
        if self.failed:
            return Action.TUNE
        return Action.SCALE if self.may_scale else Action.SHED

    @property
    def missing_for_scale(self) -> list[str]:
        """What to measure before replicas are added."""
        return [item.words for item in self.unknown]

    @property
    def words(self) -> list[str]:
        """What was answered, one sentence each."""
        return [
            f"{item.name}: {item.words}"
            for item in (*self.questions, *self.preconditions)
            if item.answer is not Answer.UNKNOWN
        ]

    @property
    def advice(self) -> str:
        """What to do about capacity, in words."""
        if self.failed:
            return f"Tune before adding replicas: {'; '.join(item.words for item in self.failed)}. {SLOW_TO_START}"
        if self.may_scale:
            return (
                "More replicas help then (scale out): queue or execution, prefill or decode, and the batch limits are "
                f"answered, and nothing is left to tune. {SLOW_TO_START} {_PER_NODE}"
            )
        return (
            f"Do not add replicas (scale out) before this is known: {'; '.join(self.missing_for_scale)}. "
            f"{SLOW_TO_START}"
        )


def rule_on(observed: Observed) -> Ruling:
    """What tables, forms, logs and scrapes allow."""
    return Ruling((*answers(observed), limits_fit(observed)), preconditions(observed))


def disciplined(findings: Sequence[Finding], ruling: Callable[[], Ruling]) -> list[Finding]:
    """The same findings, none of which says `scale` where the ruling does not allow it: it becomes what the ruling
    says, and what is missing is named. `ruling` is asked only where one says so.
    """
    if not any(finding.action is Action.SCALE for finding in findings):
        return list(findings)
    ruled = ruling()
    return [_ruled(finding, ruled) if finding.action is Action.SCALE else finding for finding in findings]


def _ruled(finding: Finding, ruled: Ruling) -> Finding:
    return msgspec.structs.replace(
        finding,
        action=ruled.action,
        # The ruling says itself how long a replica takes.
        advice=f"{finding.advice.replace(TAKES_MINUTES, '')} {ruled.advice}".strip(),
        disproof_checked=[*finding.disproof_checked, *ruled.words],
    )
