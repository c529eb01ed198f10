"""What inference-perf wrote: `per_request_lifecycle_metrics.json`, or the lifecycle summaries of a stage or a run.

What its numbers mean (all in seconds):

* `chunk_times` beside `response_chunks` are read by our own dialect: which frame carried a token is seen in its bytes.
* Without them there is only `output_token_times`: each frame was counted again by a tokenizer, and all of its tokens
  got the frame's time. The distinct times are the frames.
* Its TTFT, TPOT and ITL know answer text only; with a model that reasons they leave the reasoning out. Its ITL pools
  token gaps with zeros within a frame, and its "normalized time per output token" has TTFT: both are `theirs`.
* The request's own deadline is not in the file per request: `from_schedule` is absent, and its summary's
  `schedule_delay` is named as theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.diagnose.readers.foreign_json import count, decode, finite, ns, whole
from tailrace.diagnose.readers.frames import read_frames
from tailrace.diagnose.readers.imported import Imported, aggregate, metric, run
from tailrace.diagnose.readers.told_request import Tally, Told, reason_of, record_of
from tailrace.measure.dialects import CHAT
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.store.run_file import Arrival

__all__ = ["TOOL", "read_inference_perf_aggregate", "read_inference_perf_requests"]

TOOL: Final = "inference-perf"
_REMEDY: Final = "Give a lifecycle report as inference-perf wrote it (per_request: true keeps the requests), whole."


_LATE_MS: Final = 100.0
"""Requests that leave so much after their time did not keep the schedule."""


class _Response(msgspec.Struct):
    output_tokens: float | None = None
    server_usage: dict[str, Any] | None = None
    response_chunks: list[str | None] | None = None
    chunk_times: list[float | None] | None = None
    output_token_times: list[float | None] | None = None


class _Info(msgspec.Struct):
    input_tokens: float | None = None
    output_tokens: float | None = None
    output_token_times: list[float | None] | None = None
    response_metrics: _Response | None = None


class _Error(msgspec.Struct):
    error_type: str | None = None
    error_msg: str | None = None


class _Times(msgspec.Struct):
    start_time: float | None = None
    end_time: float | None = None
    scheduled_time: float | None = None


class _Request(msgspec.Struct):
    start_time: float | None = None
    end_time: float | None = None
    scheduled_time: float | None = None
    session_id: str | None = None
    info: _Info | None = None
    error: _Error | str | None = None


def read_inference_perf_requests(path: Path) -> Imported:
    """The requests of `per_request_lifecycle_metrics.json`. InputError where it is none."""
    place, tally = str(path), Tally()
    rows = decode(whole(path), list[msgspec.Raw], place=place, tool="inference-perf", remedy=_REMEDY)
    times = [
        decode(raw, _Times, place=f"{place}: [{index}]", tool="inference-perf", remedy=_REMEDY)
        for index, raw in enumerate(rows)
    ]
    starts = [finite(one.start_time) for one in times]
    planned = [one.scheduled_time for one in times if finite(one.scheduled_time) is not None]
    first = min([start for start in (*starts, *planned) if start is not None], default=0.0)
    frames = False
    records = []
    for index, (raw, start) in enumerate(zip(rows, starts, strict=True)):
        # Prompts, answers and frames are the file; one request's at a time are held.
        one = decode(raw, _Request, place=f"{place}: [{index}]", tool="inference-perf", remedy=_REMEDY)
        record, by_frames = _record(one, start, first, index, tally)
        frames = frames or by_frames
        records.append(record)
    if not frames:
        tally.say("frames are told by their distinct times; reasoning has left no trace in them")
    ends = [one.end_time for one in times if finite(one.end_time) is not None]
    return Imported(
        items=[
            run(
                path,
                TOOL,
                records,
                granularity="event" if frames else "chunk",
                absent=() if planned else ("from_schedule",),
                conditions=Conditions(tool="inference-perf"),
                duration_s=max((end for end in ends if end is not None), default=first) - first,
            )
        ],
        notes=tally.notes(),
    )


def _record(one: _Request, start: float | None, first: float, index: int, tally: Tally) -> tuple[RequestRecord, bool]:
    """The record, and whether its frames' bytes were there."""
    info = one.info or _Info()
    response = info.response_metrics or _Response()
    error = one.error
    text = error if isinstance(error, str) else f"{error.error_type or ''}: {error.error_msg or ''}" if error else ""
    planned = finite(one.scheduled_time)
    late = None if planned is None or start is None else ns(start - planned, S, zero=True)
    told = Told(
        request_id=f"inference-perf-{index}",
        tool="inference-perf chunk_times",
        session_id=one.session_id or "",
        offset_ns=None if start is None else max(0, round((start - first) * S) - (late or 0)),
        start_unix_ns=0 if start is None else max(0, round((start - first) * S)),
        late_ns=late,
        end_ns=None if start is None or one.end_time is None else ns(one.end_time - start, S),
        prompt_tokens=count(info.input_tokens),
        prompt_source="tokenizer",
        reason=reason_of(text) if text else Reason.NONE,
        error=text,
    )
    usage = response.server_usage or {}
    served = usage.get("completion_tokens", usage.get("output_tokens"))
    if isinstance(served, int | float) and not isinstance(served, bool):
        told.output_tokens, told.output_source = count(served), "usage"
    else:
        tokens = response.output_tokens if response.output_tokens is not None else info.output_tokens
        told.output_tokens, told.output_source = count(tokens), "tokenizer"
    by_frames = bool(response.response_chunks and response.chunk_times)
    if start is not None:
        if by_frames:
            read_frames(told, _frames(response, start, tally), CHAT)
        else:
            _read_times(told, response.output_token_times or info.output_token_times or [], start)
    told.stream = bool(told.events) or bool(text)
    return record_of(told), by_frames


def _frames(response: _Response, start: float, tally: Tally) -> Iterator[tuple[int, str | None]]:
    for chunk, stamp in zip(response.response_chunks or [], response.chunk_times or [], strict=False):
        at = None if stamp is None else ns(stamp - start, S)
        if at is None:
            tally.count("frames have no stamp, or one before their request; they were left out")
        else:
            yield at, chunk


def _read_times(told: Told, times: list[float | None], start: float) -> None:
    """Frames by the distinct times of tokens; how many tokens a frame brought is how often its time stands there."""
    stamps = sorted(at for at in (ns(one - start, S) for one in times if finite(one) and one is not None) if at)
    for at in stamps:
        if told.events and told.events[-1] == at:
            told.tokens[-1] += 1
        else:
            told.events.append(at)
            told.tokens.append(1)
    told.ttft_ns = told.events[0] if told.events else None


_PERCENTILES: Final = (("p50", "median"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"), ("p999", "p99.9"))


def read_inference_perf_aggregate(path: Path) -> Imported:
    """A lifecycle summary. InputError where it is none."""
    place = str(path)
    raw = decode(whole(path), dict[str, Any], place=place, tool="inference-perf", remedy=_REMEDY)
    successes, failures, load = (_dict(raw.get(name)) for name in ("successes", "failures", "load_summary"))
    latency, rates = _dict(successes.get("latency")), _dict(successes.get("throughput"))
    done, failed = (count(_number(part.get("count"))) or 0 for part in (successes, failures))
    metrics = {
        "ttft_ms": metric(_statistics(latency, "time_to_first_token"), n=done, scale=1e3),
        "tpot_ms": metric(_statistics(latency, "time_per_output_token"), n=None, scale=1e3),
        "e2e_ms": metric(_statistics(latency, "request_latency"), n=done, scale=1e3),
    }
    if not done and not failed:
        raise InputError("holds no request", place=place, remedy=_REMEDY)
    if done and not latency:
        raise InputError("holds no latency of a request: it is the engine's own metrics", place=place, remedy=_REMEDY)
    theirs = {
        name: {key: value * 1e3 for key, value in _statistics(part, name).items() if value is not None}
        for part, name in (
            (latency, "inter_token_latency"),
            (latency, "normalized_time_per_output_token"),
            (load, "schedule_delay"),
        )
    }
    late = theirs["schedule_delay"].get("p99", 0.0)
    notes = ["its times know answer text only: with a model that reasons, TTFT is that of the text"]
    if late > _LATE_MS:
        notes.append(f"1 % of its requests left more than {late:,.0f} ms after their time, which no latency counts")
    rate = _number(load.get("requested_rate"))
    labels = failures.get("by_label")
    return Imported(
        items=[
            aggregate(
                path,
                TOOL,
                metrics,
                n=done + failed,
                requests_per_s=_number(rates.get("requests_per_sec")),
                tokens_per_s=_number(rates.get("output_tokens_per_sec")),
                errors=_errors(labels, failed),
                theirs=theirs,
                # What it calls constant draws exponential gaps; the file does not say which was asked for.
                arrival=Arrival(kind="unknown", rate=rate),
                conditions=Conditions(tool="inference-perf"),
                notes=notes,
            )
        ],
        notes=["only percentiles are in it; the per_request report has the requests"],
    )


def _errors(labels: Any, failed: int) -> dict[str, int]:
    out: dict[str, int] = {}
    for label, part in _dict(labels).items():
        n = count(_number(_dict(part).get("count") if isinstance(part, dict) else part)) or 0
        reason = str(reason_of(str(label)))
        out[reason] = out.get(reason, 0) + n
    return out or ({"unknown": failed} if failed else {})


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return finite(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _statistics(part: dict[str, Any], name: str) -> dict[str, float | None]:
    told = _dict(part.get(name))
    out = {name: _number(told.get(name)) for name in ("mean", "min", "max")}
    return out | {ours: _number(told.get(spelled)) for ours, spelled in _PERCENTILES}
