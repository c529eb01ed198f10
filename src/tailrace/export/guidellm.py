"""A run as GuideLLM's JSON (`metadata.version` 2) holds it: a mean for each stream, no gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tailrace.analyze.as_tool import TOOLS, their_values
from tailrace.export.load_tool import (
    Exported,
    Holds,
    duration_s,
    encode,
    exported_by,
    failed,
    first_content,
    losses,
    measured_of,
)
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.store.run_file import Arrival, Run

__all__ = ["export_guidellm"]

_HOLDS: Final = Holds(gaps=False, last_byte=True, schedule=True, cached=True)
_SECONDS: Final = ("request_latency",)
_PERCENTILES: Final = {
    "p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99,
    "p999": 99.9,
}  # fmt: skip


def export_guidellm(run: Run) -> Exported:
    """One JSON object with one benchmark. Requests are written one by one: a long run needs no second copy."""
    records = measured_of(run)
    return Exported(_chunks(run, records), losses(run, records, _HOLDS))


def _chunks(run: Run, records: list[RequestRecord]) -> Iterator[bytes]:
    groups: dict[str, list[RequestRecord]] = {"successful": [], "errored": [], "incomplete": []}
    for record in records:
        groups[_group(record)].append(record)
    started, seconds = run.header.started_unix_ns / 1e9, duration_s(run, records)
    # Its requests are told by stamps of the wall clock, which are a float of seconds: a quarter of a microsecond each.
    head = {
        "metadata": {"version": 2, "guidellm_version": None},
        "exported_by": exported_by(),
    }
    benchmark: dict[str, Any] = {
        "type_": "generative_benchmark",
        "config": {
            "strategy": _strategy(run.header.arrival),
            "backend": {"target": run.header.target, "model": run.header.model},
        },
        "start_time": started,
        "end_time": started + seconds,
        "duration": seconds,
        "metrics": _metrics(groups, seconds),
    }
    yield encode(head)[:-1] + b',"benchmarks":[' + encode(benchmark)[:-1] + b',"requests":{'
    for place, (name, group) in enumerate(groups.items()):
        yield (b"," if place else b"") + encode(name) + b":["
        for index, record in enumerate(group):
            yield (b"," if index else b"") + encode(_request(run, record))
        yield b"]"
    yield b"}}]}\n"


def _strategy(arrival: Arrival) -> dict[str, Any]:
    if arrival.kind == "closed":
        return {"type_": "concurrent", "streams": arrival.concurrency, "max_concurrency": arrival.concurrency}
    kind = arrival.kind if arrival.kind in ("poisson", "constant", "trace") else "async"
    return {"type_": kind, "rate": arrival.rate, "max_concurrency": arrival.concurrency}


def _group(record: RequestRecord) -> str:
    if record.outcome is OutcomeKind.COMPLETED:
        return "successful"
    return "incomplete" if record.outcome is OutcomeKind.CANCELLED else "errored"


def _metrics(groups: dict[str, list[RequestRecord]], seconds: float) -> dict[str, Any]:
    done = groups["successful"]
    values = their_values("guidellm", done)
    method = TOOLS["guidellm"].method
    out: dict[str, Any] = {
        "request_totals": {
            **{name: len(group) for name, group in groups.items()},
            "total": sum(map(len, groups.values())),
        }
    }
    for name, array in values.items():
        if not array.size or name in ("inter_token_latency_ms", "time_per_output_token_ms"):
            continue  # weighted by tokens there; the requests below give them exactly
        scaled = array / 1e3 if name in _SECONDS else array
        out[name] = {
            "successful": {
                "mean": float(scaled.mean()),
                "median": float(np.percentile(scaled, 50, method=method)),
                "min": float(scaled.min()),
                "max": float(scaled.max()),
                "count": int(scaled.size),
                "percentiles": {key: float(np.percentile(scaled, p, method=method)) for key, p in _PERCENTILES.items()},
            }
        }
    if seconds:
        out["requests_per_second"] = {"successful": {"mean": len(done) / seconds, "count": len(done)}}
        tokens = sum(record.output_tokens or 0 for record in done)
        out["output_tokens_per_second"] = {"successful": {"mean": tokens / seconds, "count": len(done)}}
    return out


def _request(run: Run, record: RequestRecord) -> dict[str, Any]:
    offset, late = record.run_offset_ns, record.intended_to_sent_ns
    origin = run.header.started_unix_ns or 1_000_000_000  # a stamp of 0 is a missing one
    start = (origin + (offset or 0) + (late or 0)) / 1e9 if offset is not None else record.start_unix_ns / 1e9 or None
    last, first, tokens = record.e2e_last_token_ns, record.ttft_ns, record.output_tokens
    content = first_content(record)
    mean = None
    if first is not None and last is not None and tokens is not None and tokens > 1:
        mean = (last - first) / 1e6 / (tokens - 1)

    def at(offset_ns: int | None) -> float | None:
        return None if start is None or offset_ns is None else start + offset_ns / 1e9

    return {
        "request_id": record.request_id,
        "response_id": record.request_id,
        "info": {
            "request_id": record.request_id,
            "status": _group(record).replace("successful", "completed"),
            "error": failed(record) or None,
            "timings": {
                "targeted_start": None if start is None else start - (late or 0) / 1e9,
                "request_start": start,
                "first_token_iteration": at(first),
                "first_output_token_iteration": at(content),
                "last_token_iteration": at(last),
                "request_end": at(record.e2e_ns),
            },
        },
        "request_start_time": start,
        "request_end_time": at(record.e2e_ns),
        "request_latency": record.e2e_ns / 1e9,
        "request_dispatch_delay": None if late is None else late / 1e9,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": tokens,
        "time_to_first_token_ms": None if first is None else first / 1e6,
        "time_to_first_output_token_ms": None if content is None else content / 1e6,
        "time_per_output_token_ms": None if last is None or not tokens else last / 1e6 / tokens,
        "inter_token_latency_ms": mean,
    }
