"""Two runs of which one knows less: both are reduced to what either can tell, so that only like is compared with like.

A run of `tailrace bench` knows every event and the last byte; the result of another load generator may end with the
last token, or have a mean for each stream. Compared as they are, the difference of definitions would be the verdict.
"""

from __future__ import annotations

from typing import Any

import msgspec

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


def on_common_ground(
    a: Run | RecordTable, b: Run | RecordTable
) -> tuple[Run | RecordTable, Run | RecordTable, list[str]]:
    """Both, reduced, and what was done, in sentences. Two of Tailrace's own runs are given back as they are."""
    lacking = [set(one.header.absent) if isinstance(one, Run) else set() for one in (a, b)]
    if not any(lacking):
        return a, b, []
    notes: list[str] = []
    names = " and ".join(
        f"{arm} ({one.header.source})"
        for arm, one, absent in (("A", a, lacking[0]), ("B", b, lacking[1]))
        if absent and isinstance(one, Run)
    )
    either = lacking[0] | lacking[1]
    to_last_token = "e2e_ms" in either and "e2e_last_token_ms" not in either
    without_gaps = "chunk_gap_ms" in either
    if to_last_token:
        notes.append(f"E2E ends with the last token in both runs: the last byte is not told in {names}.")
    if without_gaps:
        notes.append(
            f"Gaps and stalls cannot be compared, they are not told in {names}; the longest wait is the TTFT here."
        )
    if "client_health" in either:
        notes.append(f"Nobody watched the client of {names}: if it was the limit, that is in its numbers.")
    if _counters(a) != _counters(b) and _counters(a) and _counters(b):
        notes.append(
            f"Prompt tokens are counted differently ({', '.join(sorted(_counters(a)))} in A, "
            f"{', '.join(sorted(_counters(b)))} in B): a chat template counts in one of them only."
        )
    one, two = (_reduced(run, to_last_token=to_last_token, without_gaps=without_gaps) for run in (a, b))
    return one, two, notes


def _counters(run: Run | RecordTable) -> set[str]:
    if isinstance(run, Run):
        return {record.prompt_tokens_source for record in run.records if record.prompt_tokens_source}
    return {str(name) for name in set(run.column("prompt_tokens_source").tolist()) if name}


def _reduced(run: Run | RecordTable, *, to_last_token: bool, without_gaps: bool) -> Run | RecordTable:
    if not (to_last_token or without_gaps):
        return run

    def less(record: RequestRecord) -> RequestRecord:
        changed: dict[str, Any] = dict(_NO_GAPS) if without_gaps else {}
        last = record.e2e_last_token_ns
        if to_last_token and last is not None:
            changed |= {"e2e_ns": last, "postprocess_ns": None, "response_ns": None}
        return msgspec.structs.replace(record, **changed)

    if isinstance(run, Run):
        return msgspec.structs.replace(run, records=[less(record) for record in run.records])
    return RecordTable.from_records(map(less, run.records()))
