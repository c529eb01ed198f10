"""Two runs of which one knows less: both are reduced to what either can tell, so that only like is compared with like.

A run of `tailrace bench` knows every event and the last byte; the result of another load generator may end with the
last token, or have a mean for each stream. Compared as they are, the difference of definitions would be the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.analyze.arms import Source
from tailrace.model.record import RequestRecord
from tailrace.store.run_file import Run
from tailrace.store.table import RecordTable

__all__ = ["on_common_ground"]

_NO_GAPS: dict[str, Any] = {
    "timeline": None,
    "chunk_gap_count": 0,
    "chunk_gap_p50_ns": None,
    "chunk_gap_p95_ns": None,
    "chunk_gap_max_ns": None,
    "chunk_gap_over": 0,
    "stall_count": 0,
    "stall_longest_ns": None,
}


def on_common_ground(a: Sequence[Source], b: Sequence[Source]) -> tuple[list[Source], list[Source], list[str]]:
    """The runs of both arms, reduced, and what was done, in sentences. Runs of Tailrace alone stay as they are."""
    absent = {name: _absent(arm) for name, arm in (("A", a), ("B", b))}
    either = set().union(*absent.values())
    if not either:
        return list(a), list(b), []
    notes: list[str] = []
    told = [(name, arm) for name, arm in (("A", a), ("B", b)) if absent[name]]
    names = " and ".join(f"{name} ({', '.join(sorted(_sources(arm)))})" for name, arm in told)
    to_last_token = "e2e_ms" in either and "e2e_last_token_ms" not in either
    without_gaps = "chunk_gap_ms" in either
    if to_last_token:
        notes.append(f"E2E ends with the last token in both runs: the last byte is not told in {names}.")
    if without_gaps:
        notes.append(f"Gaps and stalls cannot be compared, they are not told in {names}.")
    if "client_health" in either:
        notes.append(f"Nobody watched the client of {names}: if it was the limit, that is in its numbers.")
    counted = [set().union(*map(_counters, arm)) for arm in (a, b)]
    if counted[0] != counted[1] and all(counted):
        notes.append(
            f"Prompt tokens are counted differently ({', '.join(sorted(counted[0]))} in A, "
            f"{', '.join(sorted(counted[1]))} in B): a chat template counts in one of them only."
        )
    reduced = [[_reduced(run, to_last_token=to_last_token, without_gaps=without_gaps) for run in arm] for arm in (a, b)]
    return reduced[0], reduced[1], notes


def _absent(arm: Sequence[Source]) -> set[str]:
    return {name for run in arm if isinstance(run, Run) for name in run.header.absent}


def _sources(arm: Sequence[Source]) -> set[str]:
    return {run.header.source for run in arm if isinstance(run, Run) and run.header.absent}


def _counters(run: Source) -> set[str]:
    if isinstance(run, Run):
        return {record.prompt_tokens_source for record in run.records if record.prompt_tokens_source}
    return {str(name) for name in set(run.column("prompt_tokens_source").tolist()) if name}


def _reduced(run: Source, *, to_last_token: bool, without_gaps: bool) -> Source:
    if not (to_last_token or without_gaps):
        return run

    def less(record: RequestRecord) -> RequestRecord:
        changed: dict[str, Any] = dict(_NO_GAPS) if without_gaps else {}
        last = record.e2e_last_token_ns
        if to_last_token and last is not None:
            changed |= {"e2e_ns": last, "postprocess_ns": None, "response_ns": None}
        return msgspec.structs.replace(record, **changed)

    if isinstance(run, Run):
        # What E2E means here is the same in both: it is no longer absent.
        absent = [name for name in run.header.absent if not (to_last_token and name == "e2e_ms")]
        header = msgspec.structs.replace(run.header, absent=absent)
        return msgspec.structs.replace(run, header=header, records=[less(record) for record in run.records])
    return RecordTable.from_records(map(less, run.records()))
