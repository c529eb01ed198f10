"""A run as SGLang's `bench_serving --output-details` would have appended it: one JSON line."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from tailrace.export.load_tool import (
    Exported,
    Holds,
    duration_s,
    encode,
    exported_by,
    failed,
    losses,
    measured_of,
    statistics,
    token_events,
)
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.store.run_file import Run

__all__ = ["export_sglang"]

_HOLDS: Final = Holds(last_byte=True, starts=False)
_SPELLED: Final = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E Latency": "e2e_latency"}


def export_sglang(run: Run) -> Exported:
    """One line; several files joined are several runs of one file."""
    records = measured_of(run)
    return Exported(iter([encode(_saved(run, records)), b"\n"]), losses(run, records, _HOLDS))


def _saved(run: Run, records: list[RequestRecord]) -> dict[str, Any]:
    done = [record for record in records if record.outcome is OutcomeKind.COMPLETED]
    seconds = duration_s(run, records)
    tokens = [sum(getattr(record, name) or 0 for record in done) for name in ("prompt_tokens", "output_tokens")]
    per_second = 1 / seconds if seconds else 0.0
    return {
        "tag": None,
        "backend": run.header.conditions.engine or "openai",
        "dataset_name": None,
        "request_rate": run.header.arrival.rate or "inf",
        "max_concurrency": run.header.arrival.concurrency,
        "sharegpt_output_len": None,
        "exported_by": exported_by(),
        "duration": seconds,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": tokens[0],
        "total_output_tokens": tokens[1],
        "request_throughput": len(done) * per_second,
        "input_throughput": tokens[0] * per_second,
        "output_throughput": tokens[1] * per_second,
        "total_throughput": sum(tokens) * per_second,
        **statistics("sglang", done, _SPELLED),
        "accept_length": None,
        "input_lens": [record.prompt_tokens or 0 for record in records],
        "output_lens": [record.output_tokens or 0 for record in records],
        "ttfts": [(record.ttft_ns or 0) / 1e9 for record in records],
        "itls": [[(after - before) / 1e9 for before, after in pairwise(token_events(record))] for record in records],
        "latencies": [record.e2e_ns / 1e9 for record in records],
        "generated_texts": [""] * len(records),
        "errors": [failed(record) for record in records],
    }
