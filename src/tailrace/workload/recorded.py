"""Tailrace's own records as a trace: yesterday's traffic, played again."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.model.record import RequestRecord
from tailrace.workload.trace_row import TraceRow

__all__ = ["rows_of_records"]


def rows_of_records(records: Iterable[RequestRecord]) -> tuple[list[TraceRow], list[str]]:
    """Each record with its time and lengths, and what to know of them.

    Times are the run's own offsets where every record has them (the intended ones: what was sent late was meant
    earlier), else the wall clock's. A request that was refused or left early has the length that it allowed
    (`max_tokens`); one of which nothing says how long its prompt or answer was is left out.
    """
    records = list(records)
    offsets = bool(records) and all(record.run_offset_ns is not None for record in records)
    rows: list[TraceRow] = []
    lost = warm = 0
    for record in records:
        at = record.run_offset_ns if offsets else record.start_unix_ns
        if offsets and (at or 0) < 0:
            warm += 1
            continue
        whole = bool(record.output_tokens) and not record.reason
        output = record.output_tokens if whole else record.max_tokens or record.output_tokens
        if not record.prompt_tokens or not output or at is None:
            lost += 1
            continue
        rows.append(TraceRow(at, record.prompt_tokens, output, (), record.lane if record.lane != "default" else ""))
    notes = []
    if lost:
        notes.append(f"{lost} records do not say how long their prompt or answer was, and are left out")
    if warm:
        notes.append(f"{warm} requests of the warm-up are left out")
    return rows, notes
