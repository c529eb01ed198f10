"""One diagnosis in a process of its own: `python -m tailrace.app.diagnosis_child`, the question on stdin, JSON back.

A diagnosis of 100,000 requests computes for seconds. Beside the requests, in a thread, it would take the interpreter
from the relay for milliseconds at a time; here it takes whatever the machine has left (niceness 10).
"""

from __future__ import annotations

import os
import sys

import msgspec

from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware
from tailrace.measure.application import VANTAGE as APPLICATION
from tailrace.model.engine_state import EngineState
from tailrace.model.finding import Diagnosis
from tailrace.model.thresholds import Objectives
from tailrace.store.query import RecordStore
from tailrace.store.table import RecordTable

__all__ = ["Question", "answer"]

_NICE = 10


class Question(msgspec.Struct, kw_only=True):
    """What is to be diagnosed. Times are Unix ns."""

    records: str
    """The data directory, as an absolute path."""
    since: int | None = None
    before: int | None = None
    """Compare with the requests between this and `since`."""
    requests: int
    """At most so many of each window, the newest."""
    objectives: Objectives
    dropped: float = 0.0
    """Share of the records that were lost."""
    hardware: Hardware = msgspec.field(default_factory=Hardware)
    states: list[EngineState] = []
    events: list[tuple[float, str]] = []
    """What is known to have happened: (wall clock in s, words)."""


def answer(question: Question) -> Diagnosis:
    """The diagnosis. StoreError where the directory cannot be read."""
    store = RecordStore(question.records)

    def table(since: int | None, until: int | None) -> RecordTable:
        found = store.table(since, until, question.requests, with_timelines=True)
        return found.where((found.column("route") != "shadow").astype(bool))

    now = table(question.since, None)
    applications = store.table(question.since, None, question.requests, with_timelines=True, vantage=APPLICATION)
    before = None
    if question.before is not None and question.since is not None:
        before = table(question.before, question.since - 1)
    return diagnose(
        EvidenceSet(
            RecordTable.concat([now, applications]) if len(applications) else now,
            before=before if before is not None and len(before) else None,
            objectives=question.objectives,
            dropped=question.dropped,
            hardware=question.hardware,
            states=question.states,
            events=question.events,
        )
    )


def main() -> None:
    """Read one question, write one answer."""
    os.nice(_NICE)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
