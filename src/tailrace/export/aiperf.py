"""A run as AIPerf's `profile_export.jsonl` holds it: one line a request, with its chunk gaps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from tailrace.export.load_tool import (
    Exported,
    Holds,
    encode,
    exported_by,
    failed,
    first_content,
    losses,
    measured_of,
    token_events,
)
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.store.run_file import Run

__all__ = ["export_aiperf"]

_HOLDS: Final = Holds(warmup=True, schedule=True)


def export_aiperf(run: Run) -> Exported:
    """JSON lines, one written after the other."""
    records = measured_of(run, warmup=True)
    return Exported(_lines(run, records), losses(run, records, _HOLDS))


def _lines(run: Run, records: list[RequestRecord]) -> Iterator[bytes]:
    for number, record in enumerate(records):
        yield encode(_line(run, record, number)) + b"\n"


def _line(run: Run, record: RequestRecord, number: int) -> dict[str, Any]:
    late, offset = record.intended_to_sent_ns or 0, record.run_offset_ns
    origin = run.header.started_unix_ns or 1_000_000_000  # a stamp of 0 is a missing one
    start = origin + offset + late if offset is not None else record.start_unix_ns
    last = record.e2e_last_token_ns
    warm = record.lane == "warmup" or (record.run_offset_ns or 0) < 0
    out: dict[str, Any] = {
        "metadata": {
            "session_num": number,
            "x_request_id": record.request_id,
            "credit_issued_ns": None if record.intended_to_sent_ns is None else start - late,
            "request_start_ns": start,
            "request_end_ns": start + (last or record.e2e_ns),
            "benchmark_phase": "warmup" if warm else "profiling",
            "was_cancelled": record.outcome is OutcomeKind.CANCELLED,
        },
        "metrics": _metrics(record),
        "exported_by": exported_by(),
    }
    text = failed(record)
    if text:
        out["error"] = {"code": record.http_status, "type": str(record.reason), "message": text}
    return out


def _metrics(record: RequestRecord) -> dict[str, Any]:
    events = token_events(record)
    durations = {
        "time_to_first_token": record.ttft_ns,
        "time_to_first_output_token": first_content(record),
        "request_latency": record.e2e_last_token_ns,
        "http_req_connecting": record.connect_ns,
    }
    out: dict[str, Any] = {
        name: {"value": value / 1e6, "unit": "ms"} for name, value in durations.items() if value is not None
    }
    if len(events) > 1:
        gaps = [(after - before) / 1e6 for before, after in pairwise(events)]
        out["inter_chunk_latency"] = {"value": gaps, "unit": "ms"}
    if record.tpot_ns is not None:
        out["inter_token_latency"] = {"value": record.tpot_ns / 1e6, "unit": "ms"}
    for name, tokens, source in (
        ("usage_prompt_tokens", record.prompt_tokens, record.prompt_tokens_source),
        ("usage_completion_tokens", record.output_tokens, record.output_tokens_source),
    ):
        if tokens is not None:
            by_usage = source in ("usage", "chunk_usage")
            plain = "input_sequence_length" if "prompt" in name else "output_sequence_length"
            out[name if by_usage else plain] = {"value": tokens, "unit": "tokens"}
    if record.connection_reused is not None:
        out["http_req_connection_reused"] = {"value": int(record.connection_reused), "unit": "ratio"}
    return out
