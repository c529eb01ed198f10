"""What GenAI-Perf wrote: `profile_export.json`, every frame of every answer, or `profile_export_genai_perf.json`.

The full export holds each frame's bytes beside its stamp, so that its streams are read by our own dialects: which frame
carries a token, what is reasoning, what was usage or `[DONE]` is decided as for any other stream. Of the summary, TTFT
and the latency to the last frame are ours; its ITL rests on the last frame of any kind, and is `theirs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.diagnose.readers.aiperf import number_of, plain, statistics, value_of
from tailrace.diagnose.readers.foreign_json import count, decode, stamp, whole
from tailrace.diagnose.readers.frames import read_frames
from tailrace.diagnose.readers.imported import Imported, aggregate, metric, run
from tailrace.diagnose.readers.told_request import Tally, Told, record_of
from tailrace.measure.dialect import UNREADABLE, Dialect
from tailrace.measure.dialects import dialect_for
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.store.run_file import Arrival, Run

__all__ = ["TOOL", "read_genai_perf_aggregate", "read_genai_perf_streams"]

TOOL: Final = "genai-perf"
_REMEDY: Final = "Give profile_export.json or profile_export_genai_perf.json as GenAI-Perf wrote it, whole."


class _Stamp(msgspec.Struct):
    timestamp: int | float | None = None


class _Request(msgspec.Struct):
    timestamp: int | float | None = None
    request_inputs: dict[str, Any] | None = None
    response_timestamps: list[int | float | None] = []
    response_outputs: list[Any] = []


class _Setting(msgspec.Struct):
    mode: str | None = None
    value: float | None = None


class _Experiment(msgspec.Struct):
    experiment: _Setting | None = None
    requests: list[msgspec.Raw] = []


class _Saved(msgspec.Struct):
    experiments: list[msgspec.Raw]
    service_kind: str | None = None
    endpoint: str | None = None
    version: str | None = None
    exported_by: str = ""


def read_genai_perf_streams(path: Path) -> Imported:
    """The experiments of `profile_export.json`, each a run. InputError where it is none."""
    place, tally = str(path), Tally()
    saved = decode(whole(path), _Saved, place=place, tool="GenAI-Perf", remedy=_REMEDY)
    if not saved.experiments:
        raise InputError("it holds no experiment", place=place, remedy=_REMEDY)
    items = []
    for index, raw in enumerate(saved.experiments):
        where = f"{place}: experiments[{index}]"
        one = decode(raw, _Experiment, place=where, tool="GenAI-Perf", remedy=_REMEDY)
        items.append(_run(path, saved, one, where, tally))
    return Imported(items=list(items), notes=tally.notes())


def _run(path: Path, saved: _Saved, one: _Experiment, place: str, tally: Tally) -> Run:
    endpoint = "/" + (saved.endpoint or "").strip("/")
    dialect = dialect_for(endpoint)
    # Frames of all requests at once would be three times the file; the stamps go first, alone.
    starts = [
        stamp(decode(raw, _Stamp, place=f"{place}.requests[{index}]", tool="GenAI-Perf", remedy=_REMEDY).timestamp)
        for index, raw in enumerate(one.requests)
    ]
    first = min((start for start in starts if start), default=0)
    records = []
    for index, (raw, start) in enumerate(zip(one.requests, starts, strict=True)):
        request = decode(raw, _Request, place=f"{place}.requests[{index}]", tool="GenAI-Perf", remedy=_REMEDY)
        records.append(_record(request, start, first, index, endpoint, dialect, tally))
    end = max((record.start_unix_ns + record.e2e_ns for record in records), default=first)
    setting = one.experiment or _Setting()
    value = setting.value
    arrival = Arrival(kind="unknown")
    if setting.mode == "concurrency":
        arrival = Arrival(kind="closed", concurrency=count(value))
    elif setting.mode == "request_rate" and value:
        arrival = Arrival(kind="constant", rate=value)
    return run(
        path,
        TOOL,
        records,
        granularity="event",
        absent=("from_schedule",),
        arrival=arrival,
        conditions=Conditions(tool=f"genai-perf ({saved.version})" if saved.version else "genai-perf"),
        duration_s=(end - first) / 1e9 if first else None,
        started_unix_ns=first,
    )


def _record(
    request: _Request, start: int | None, first: int, index: int, endpoint: str, dialect: Dialect, tally: Tally
) -> RequestRecord:
    told = Told(
        request_id=f"genai-perf-{index}",
        tool="genai-perf response_timestamps",
        endpoint=endpoint,
        start_unix_ns=start or 0,
        offset_ns=None if not start else max(0, start - first),
    )
    if start:
        read_frames(told, _frames(request, start, tally), dialect)
    elif request.response_timestamps:
        tally.count("requests have no stamp of their own; their times are unknown")
    if not told.events and told.reason is Reason.NONE:
        tally.count("requests brought no token; they count as failed")
        told.reason = Reason.ENGINE_ERROR
    _read_body(told, request)
    return record_of(told)


def _frames(request: _Request, start: int, tally: Tally) -> Iterator[tuple[int, Any]]:
    outputs = request.response_outputs
    for place, told in enumerate(request.response_timestamps):
        at = stamp(told)
        if at is None or at < start:
            tally.count("frames have a stamp before their request, or none; they were left out")
        else:
            yield at - start, outputs[place] if place < len(outputs) else None


def _read_body(told: Told, request: _Request) -> None:
    """Model and asked length, from the body that was sent."""
    payload = (request.request_inputs or {}).get("payload")
    if not isinstance(payload, str):
        return
    try:
        body = msgspec.json.decode(payload)
    except UNREADABLE:
        return
    if isinstance(body, dict):
        model, limit = body.get("model"), body.get("max_completion_tokens", body.get("max_tokens"))
        told.model = model if isinstance(model, str) else ""
        told.max_tokens = count(limit) if isinstance(limit, int) and not isinstance(limit, bool) else None


def read_genai_perf_aggregate(path: Path) -> Imported:
    """The summary `profile_export_genai_perf.json`. InputError where it is none."""
    place = str(path)
    raw = decode(whole(path), dict[str, Any], place=place, tool="GenAI-Perf", remedy=_REMEDY)
    n = value_of(raw, "request_count", "avg") or 0
    metrics = {
        "ttft_ms": metric(statistics(raw, "time_to_first_token"), n=n),
        "e2e_ms": metric(statistics(raw, "request_latency"), n=n),
    }
    if all(one.mean is None and one.p50 is None for one in metrics.values()):
        raise InputError("holds no percentile", place=place, remedy=_REMEDY)
    settings = raw.get("input_config")
    names = settings.get("model_names") if isinstance(settings, dict) else None
    model = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    return Imported(
        items=[
            aggregate(
                path,
                TOOL,
                metrics,
                n=n,
                requests_per_s=number_of(raw, "request_throughput", "avg"),
                tokens_per_s=number_of(raw, "output_token_throughput", "avg"),
                goodput_per_s=number_of(raw, "request_goodput", "avg"),
                theirs={name: plain(statistics(raw, name)) for name in ("inter_token_latency", "time_to_second_token")},
                conditions=Conditions(model=model or None, tool="genai-perf"),
                model=model,
                notes=["its inter-token latency rests on the last frame of any kind, and so is not put under our TPOT"],
            )
        ],
        notes=["only percentiles are in it; profile_export.json beside it has every frame"],
    )
