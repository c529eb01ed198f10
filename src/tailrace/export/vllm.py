"""A run as `vllm bench serve --save-result --save-detailed` would have written it."""

from __future__ import annotations

import datetime as dt
import itertools
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

__all__ = ["export_vllm"]

_HOLDS: Final = Holds(schedule=True)
_SPELLED: Final = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"}


def export_vllm(run: Run) -> Exported:
    """One JSON object. Texts of answers are not in a run, and so are empty."""
    records = measured_of(run)
    return Exported(iter([encode(_saved(run, records)), b"\n"]), losses(run, records, _HOLDS))


def _saved(run: Run, records: list[RequestRecord]) -> dict[str, Any]:
    done = [record for record in records if record.outcome is OutcomeKind.COMPLETED]
    seconds = duration_s(run, records)
    tokens = [sum(getattr(record, name) or 0 for record in done) for name in ("prompt_tokens", "output_tokens")]
    arrival = run.header.arrival
    open_loop = any(record.intended_to_sent_ns is not None for record in records)
    rate: float | str = "inf"
    if open_loop or arrival.rate:
        rate = arrival.rate or (len(records) / seconds if seconds else 1.0)
    ended = run.header.started_unix_ns / 1e9 + seconds
    late = [(record.intended_to_sent_ns or 0) / 1e9 for record in records]
    per_second = 1 / seconds if seconds else 0.0
    return {
        "date": dt.datetime.fromtimestamp(ended, dt.UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": None,
        "model_id": run.header.model,
        "tokenizer_id": None,
        "exported_by": exported_by(),
        "num_prompts": len(records),
        "request_rate": rate,
        "burstiness": "inf" if arrival.kind == "constant" else arrival.burstiness or 1.0,
        "max_concurrency": arrival.concurrency,
        "duration": seconds,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": tokens[0],
        "total_output_tokens": tokens[1],
        "request_throughput": len(done) * per_second,
        "output_throughput": tokens[1] * per_second,
        "total_token_throughput": sum(tokens) * per_second,
        "input_lens": [record.prompt_tokens or 0 for record in records],
        "output_lens": [record.output_tokens or 0 for record in records],
        "ttfts": [(record.ttft_ns or 0) / 1e9 for record in records],
        "itls": [_gaps(record) for record in records],
        "latencies": [(record.e2e_last_token_ns or 0) / 1e9 for record in records],
        "start_times": [(record.run_offset_ns or 0) / 1e9 + wait for record, wait in zip(records, late, strict=True)],
        "queue_times": late,
        "generated_texts": [""] * len(records),
        "errors": [failed(record) for record in records],
        **statistics("vllm", done, _SPELLED),
    }


def _gaps(record: RequestRecord) -> list[float]:
    at = token_events(record)
    return [(after - before) / 1e9 for before, after in itertools.pairwise(at)]
