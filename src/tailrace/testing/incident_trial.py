"""Trials of the diagnosis on labelled incidents: evidence as production has it, the answer, and the count of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.healthy import NOTHING_WRONG
from tailrace.model.thresholds import Objectives
from tailrace.simulate.incidents.incident import CONTROL, Incident
from tailrace.store.table import RecordTable

__all__ = ["NOTHING", "NO_CAUSE", "Score", "Trial", "evidence_of", "trial_of"]

NOTHING: Final = "(nothing wrong)"
NO_CAUSE: Final = "(no cause)"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One incident and what was answered."""

    kind: str
    block: str
    index: int
    wanted: str
    acceptable: list[str]
    answers: list[str]
    """Codes in their order; `NOTHING` or `NO_CAUSE` alone where there is none."""
    levels: list[str]
    strength: float
    n: int
    with_before: bool
    summary: str

    @property
    def first(self) -> bool:
        """The first answer is right; of a control: there is none."""
        return self.answers[0] in self.acceptable

    @property
    def second(self) -> bool:
        """One of the first two is."""
        return any(code in self.acceptable for code in self.answers[:2])


def evidence_of(incident: Incident) -> EvidenceSet:
    """The incident as the readers of a gateway's data hand it to the diagnosis."""
    return EvidenceSet(
        RecordTable.from_records(incident.records),
        before=None if incident.before is None else RecordTable.from_records(incident.before),
        states=list(incident.states),
        objectives=Objectives(bounds=incident.bounds),
        sources=["gateway"],
        hardware=Hardware(
            host=list(incident.hosts),
            gpus=list(incident.gpus),
            engine_pids=list(incident.engine_pids),
            sources=["gateway"] if incident.hosts or incident.gpus else [],
        ),
    )


def trial_of(incident: Incident) -> Trial:
    """Diagnose it."""
    found = diagnose(evidence_of(incident))
    codes = [finding.code for finding in found.findings]
    if not codes:
        # A short window is asked for more requests; that nothing is wrong as far as it can show raises no alarm.
        codes = [NOTHING if found.summary.startswith(NOTHING_WRONG) else NO_CAUSE]
    acceptable = set(incident.acceptable)
    if incident.kind == CONTROL:
        acceptable = {NOTHING}
    return Trial(
        kind=incident.kind,
        block=incident.block,
        index=incident.index,
        wanted=incident.code or NOTHING,
        acceptable=sorted(acceptable),
        answers=codes,
        levels=[finding.level.value for finding in found.findings],
        strength=round(incident.strength, 3),
        n=len(incident.records),
        with_before=incident.before is not None,
        summary=found.summary,
    )


class Score:
    """Trials counted: how often the first, one of the first two, was right; false alarms; who was taken for whom."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self.trials = list(trials)
        self.faults = [trial for trial in self.trials if trial.kind != CONTROL]
        self.controls = [trial for trial in self.trials if trial.kind == CONTROL]
        self.top1 = sum(trial.first for trial in self.faults)
        self.top2 = sum(trial.second for trial in self.faults)
        self.false_alarms = [trial for trial in self.controls if not trial.first]
        self.confusion: dict[str, Counter[str]] = {}
        for trial in self.trials:
            self.confusion.setdefault(trial.kind, Counter())[trial.answers[0]] += 1

    def table(self) -> str:
        """The confusion table as Markdown: a row a kind, the wanted code, right answers, and what else was said."""
        rows = [
            "| kind | wanted | n | first right | in first two | first answers that were not right |",
            "|---|---|---|---|---|---|",
        ]
        for kind in self.confusion:
            trials = [trial for trial in self.trials if trial.kind == kind]
            wrong = Counter(trial.answers[0] for trial in trials if not trial.first)
            text = ", ".join(f"{code} {count}" for code, count in wrong.most_common())
            rows.append(
                f"| {kind} | {trials[0].wanted} | {len(trials)} | {sum(trial.first for trial in trials)} | "
                f"{sum(trial.second for trial in trials)} | {text} |"
            )
        return "\n".join(rows)

    def summary(self) -> str:
        """The figures in one line."""
        n = len(self.faults)
        parts = []
        if n:
            parts.append(f"{n} incidents: first right {self.top1 / n:.1%}, in first two {self.top2 / n:.1%}")
        if self.controls:
            alarms = len(self.false_alarms)
            parts.append(f"{len(self.controls)} controls: {alarms} false alarm{'s' if alarms != 1 else ''}")
        return "; ".join(parts)
