"""A run as GenAI-Perf's `profile_export.json` holds it: every frame with its stamp.

A run keeps no texts, so each frame holds a placeholder of its kind: answer, reasoning, tool call, usage, `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tailrace.export.load_tool import Exported, Holds, encode, exported_by, failed, losses, measured_of
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import EventKind
from tailrace.store.run_file import Run

__all__ = ["export_genai_perf"]

_HOLDS: Final = Holds(kinds=True, last_byte=True)


def export_genai_perf(run: Run) -> Exported:
    """One JSON object with one experiment; requests are written one by one."""
    records = measured_of(run)
    lost = losses(run, records, _HOLDS)
    return Exported(_chunks(run, records), [*lost, "the texts of answers: frames hold placeholders"])


def _chunks(run: Run, records: list[RequestRecord]) -> Iterator[bytes]:
    arrival = run.header.arrival
    closed = arrival.kind == "closed" or not arrival.rate
    head = {"service_kind": "openai", "endpoint": "v1/chat/completions", "exported_by": exported_by()}
    setting = {
        "mode": "concurrency" if closed else "request_rate",
        "value": arrival.concurrency if closed else arrival.rate,
    }
    yield encode(head)[:-1] + b',"experiments":[{"experiment":' + encode(setting) + b',"requests":['
    for place, record in enumerate(records):
        yield (b"," if place else b"") + encode(_request(run, record))
    yield b'],"window_boundaries":[]}],"version":' + encode(exported_by()) + b"}\n"


def _request(run: Run, record: RequestRecord) -> dict[str, Any]:
    late, offset = record.intended_to_sent_ns or 0, record.run_offset_ns
    origin = run.header.started_unix_ns or 1_000_000_000  # a stamp of 0 is a missing one
    start = origin + offset + late if offset is not None else record.start_unix_ns
    frames = list(_frames(record))
    body = {"model": record.model or run.header.model, "stream": record.stream, "max_tokens": record.max_tokens}
    return {
        "timestamp": start,
        "request_inputs": {"payload": encode(body).decode()},
        "response_timestamps": [start + at for at, _ in frames],
        "response_outputs": [{"response": text} for _, text in frames],
    }


def _frames(record: RequestRecord) -> Iterator[tuple[int, str]]:
    """(offset, text) of each frame, the counts with the first usage frame or at the end, then the last byte."""
    timeline = record.timeline
    rows: list[tuple[int, int]] = []
    if timeline is not None:
        rows = list(zip(timeline.at_ns, timeline.kind, strict=True))
    elif record.ttft_ns is not None:
        rows = [(at, int(EventKind.CONTENT)) for at in (record.ttft_ns, record.e2e_last_token_ns) if at is not None]
    told = False
    for at, kind in rows:
        if kind == EventKind.USAGE:
            if not told:
                yield at, _usage(record)
            told = True
        elif kind in _TEXTS:
            yield at, _TEXTS[EventKind(kind)]
    end = max(record.e2e_ns, rows[-1][0] if rows else 0)
    if not told and record.output_tokens is not None and record.output_tokens_source != "chunks":
        yield end, _usage(record)
    text = failed(record)
    if text:
        fault = {"error": {"message": text, "code": record.http_status}}
        yield end, f"data: {encode(fault).decode()}\n\n"
    elif not rows or end > rows[-1][0]:
        yield end, ""  # its own files end with such an empty response


def _frame(delta: dict[str, Any], finish: str | None = None) -> str:
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {encode(chunk).decode()}\n\n"


_TOOL_CALL: Final = [{"index": 0, "function": {"arguments": "x"}}]
_TEXTS: Final[dict[EventKind, str]] = {
    EventKind.CONTENT: _frame({"content": "x"}),
    EventKind.REASONING: _frame({"reasoning_content": "x"}),
    EventKind.TOOL: _frame({"tool_calls": _TOOL_CALL}),
    EventKind.REFUSAL: _frame({"refusal": "x"}),
    EventKind.ROLE: _frame({"role": "assistant", "content": ""}),
    EventKind.EMPTY: _frame({"content": ""}),
    EventKind.FINISH: _frame({}, "stop"),
    EventKind.DONE: "data: [DONE]\n\n",
}


def _usage(record: RequestRecord) -> str:
    counts: dict[str, Any] = {"prompt_tokens": record.prompt_tokens, "completion_tokens": record.output_tokens}
    if record.cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": record.cached_tokens}
    return f"data: {encode({'choices': [], 'usage': counts}).decode()}\n\n"
