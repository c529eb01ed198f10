"""What GuideLLM wrote as JSON (`metadata.version` 2): one run a benchmark of the file.

What its numbers mean:

* Its "inter token latency" is one mean a request, (last - first) / (n - 1): that is our TPOT. Stalls cannot be seen in
  it, and no stream can be rebuilt: `granularity` is `mean`, gaps are absent. Its summary weighs it by n - 1, which no
  metric of ours does.
* Its "time per output token" is the time to the last token over n, TTFT included: theirs.
* `request_latency` is in seconds and ends when the stream was left, at `[DONE]`: our `e2e`.
* Its stamps are of the wall clock, in seconds; a stamp that is missing was written as 0, and made durations of decades.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.analyze.aggregate import Aggregate
from tailrace.diagnose.readers.foreign_json import count, decode, finite, ns, whole
from tailrace.diagnose.readers.imported import Imported, aggregate, metric, run
from tailrace.diagnose.readers.told_request import Tally, Told, reason_of, record_of
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, S
from tailrace.store.run_file import Arrival, Run

__all__ = ["TOOL", "read_guidellm"]

TOOL: Final = "guidellm"
VERSION: Final = 2
_REMEDY: Final = "Give the JSON file that `guidellm run` wrote (--output kind=json,path=…), whole."
_NO_STREAM: Final = ("chunk_gap_ms", "itl_ms")
_OPEN: Final = ("constant", "poisson", "async", "trace")


class _Timings(msgspec.Struct):
    targeted_start: float | None = None
    request_start: float | None = None
    first_token_iteration: float | None = None
    first_output_token_iteration: float | None = None
    last_token_iteration: float | None = None
    request_end: float | None = None


class _Info(msgspec.Struct):
    timings: _Timings | None = None
    error: str | None = None
    status: str | None = None
    conversation_id: str | None = None
    turn_index: float | None = None


class _Request(msgspec.Struct):
    request_id: str | None = None
    response_id: str | None = None
    info: _Info | None = None
    request_start_time: float | None = None
    request_latency: float | None = None
    request_dispatch_delay: float | None = None
    time_to_first_token_ms: float | None = None
    time_to_first_output_token_ms: float | None = None
    inter_token_latency_ms: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    output_tokens: float | None = None
    error: str | None = None


class _Requests(msgspec.Struct):
    successful: list[_Request] | None = None
    errored: list[_Request] | None = None
    incomplete: list[_Request] | None = None


class _Distribution(msgspec.Struct):
    mean: float | None = None
    median: float | None = None
    min: float | None = None
    max: float | None = None
    count: float | None = None
    percentiles: dict[str, float | None] | None = None

    def statistics(self) -> dict[str, float | None]:
        told = self.percentiles or {}
        out = {name: told.get(name) for name in ("p50", "p90", "p95", "p99", "p999")}
        out["p50"] = out["p50"] if out["p50"] is not None else self.median
        return out | {"mean": self.mean, "min": self.min, "max": self.max}


class _Split(msgspec.Struct):
    successful: _Distribution | None = None


class _Metrics(msgspec.Struct):
    request_totals: dict[str, float | None] | None = None
    requests_per_second: _Split | None = None
    output_tokens_per_second: _Split | None = None
    request_latency: _Split | None = None
    time_to_first_token_ms: _Split | None = None
    time_to_first_output_token_ms: _Split | None = None
    inter_token_latency_ms: _Split | None = None
    time_per_output_token_ms: _Split | None = None


class _Config(msgspec.Struct):
    strategy: dict[str, Any] | None = None
    backend: dict[str, Any] | None = None
    warmup: dict[str, Any] | None = None


class _Benchmark(msgspec.Struct):
    config: _Config | None = None
    metrics: _Metrics | None = None
    requests: _Requests | None = None
    start_time: float | None = None
    duration: float | None = None


class _Metadata(msgspec.Struct):
    version: float | None = None
    guidellm_version: str | None = None


class _Saved(msgspec.Struct):
    benchmarks: list[msgspec.Raw]
    metadata: _Metadata | None = None
    exported_by: str = ""


def read_guidellm(path: Path) -> Imported:
    """Its benchmarks, each a run. InputError where it is none of version 2."""
    place, tally = str(path), Tally()
    saved = decode(whole(path), _Saved, place=place, tool="GuideLLM", remedy=_REMEDY)
    version = saved.metadata.version if saved.metadata else None
    if version is not None and version != VERSION:
        raise InputError(
            f"its metadata.version is {version:g}; version {VERSION} is read",
            place=place,
            remedy="Write it again with GuideLLM 0.6 or newer, or measure with `tailrace bench`.",
        )
    if version is None:
        tally.say("it names no metadata.version; it was read as version 2")
    if not saved.benchmarks:
        raise InputError("it holds no benchmark", place=place, remedy=_REMEDY)
    items = []
    for index, raw in enumerate(saved.benchmarks):
        one = decode(raw, _Benchmark, place=f"{place}: benchmarks[{index}]", tool="GuideLLM", remedy=_REMEDY)
        items.append(_item(path, one, saved.metadata or _Metadata(), tally))
    return Imported(items=items, notes=tally.notes())


def _item(path: Path, one: _Benchmark, metadata: _Metadata, tally: Tally) -> Run | Aggregate:
    told = one.requests or _Requests()
    groups = [("", told.successful), ("errored", told.errored), ("incomplete", told.incomplete)]
    if not any(requests for _, requests in groups):
        return _aggregate(path, one, metadata, tally)
    flat = [(status, request) for status, requests in groups for request in requests or []]
    starts = [_start(request) for _, request in flat]
    arrival = _arrival(one)
    open_loop = arrival.kind in _OPEN
    late = [(finite(request.request_dispatch_delay) or 0.0) if open_loop else 0.0 for _, request in flat]
    first = min((start - wait for start, wait in zip(starts, late, strict=True) if start is not None), default=0.0)
    records = [
        _record(request, status, start, first, index, tally, open_loop=open_loop)
        for index, ((status, request), start) in enumerate(zip(flat, starts, strict=True))
    ]
    order = sorted(range(len(records)), key=lambda row: records[row].start_unix_ns)
    done = len(told.successful or [])
    whole = count(((one.metrics or _Metrics()).request_totals or {}).get("successful"))
    if whole is not None and whole > done:
        tally.say(f"it keeps {done} of {whole} finished requests (sample_size): percentiles are of those")
    absent = set(_NO_STREAM) if open_loop else {*_NO_STREAM, "from_schedule"}
    return run(
        path,
        TOOL,
        [records[row] for row in order],
        granularity="mean",
        absent=absent,
        arrival=arrival,
        conditions=_conditions(one, metadata),
        duration_s=one.duration,
        model=_text(one, "model") or "",
        target=_text(one, "target") or "",
        started_unix_ns=ns(one.start_time, S) or round(first * S),
    )


def _text(one: _Benchmark, key: str) -> str | None:
    value = ((one.config or _Config()).backend or {}).get(key)
    return value if isinstance(value, str) else None


def _conditions(one: _Benchmark, metadata: _Metadata) -> Conditions:
    version = metadata.guidellm_version
    warmup = ((one.config or _Config()).warmup or {}).get("value")
    return Conditions(
        model=_text(one, "model"),
        tool=f"guidellm {version}" if version else "guidellm",
        warmup=None if warmup is None else str(warmup)[:40],
    )


def _arrival(one: _Benchmark) -> Arrival:
    strategy = (one.config or _Config()).strategy or {}
    kind = strategy.get("type_")
    kind = kind if isinstance(kind, str) else "unknown"
    rate = strategy.get("rate")
    streams = strategy.get("streams", strategy.get("max_concurrency"))
    number = finite(float(rate)) if isinstance(rate, int | float) else None
    limit = count(streams) if isinstance(streams, int | float) else None
    if kind in _OPEN:
        return Arrival(kind="constant" if kind == "async" else kind, rate=number, concurrency=limit)
    closed = kind in ("concurrent", "synchronous", "throughput")
    return Arrival(kind="closed" if closed else "unknown", concurrency=1 if kind == "synchronous" else limit)


_LATEST_S = 9e9
"""Nanoseconds of a later time do not fit 64 bits."""


def _start(request: _Request) -> float | None:
    """Seconds of the wall clock; `None` for the 0 that stands for a missing stamp."""
    timings = request.info.timings if request.info else None
    for value in (request.request_start_time, timings.request_start if timings else None):
        number = finite(value)
        if number is not None and 0 < number < _LATEST_S:
            return number
    return None


def _between(start: float | None, end: float | None) -> int | None:
    start, end = finite(start), finite(end)
    return None if not start or not end else ns(end - start, S)


def _record(
    request: _Request, status: str, start: float | None, first: float, index: int, tally: Tally, *, open_loop: bool
) -> RequestRecord:
    info = request.info or _Info()
    timings = info.timings or _Timings()
    ttft = ns(request.time_to_first_token_ms, MS)
    if request.time_to_first_token_ms is not None and ttft is None:
        tally.count("times to the first token are 0, negative or of an epoch: missing stamps, left out")
    error = info.error or request.error or ""
    late = ns(request.request_dispatch_delay, S, zero=True) if open_loop else None
    offset = None if start is None else max(0, round((start - first) * S) - (late or 0))
    # The mean gives the last token back more exactly than its stamp, a float of the wall clock, can.
    tokens, mean = count(request.output_tokens), finite(request.inter_token_latency_ms)
    decode_ns = ns(mean * (tokens - 1), MS, zero=True) if mean is not None and tokens and tokens > 1 else None
    last = ttft + decode_ns if ttft is not None and decode_ns is not None else None
    if last is None:
        # The only token is the last one.
        last = ttft if tokens == 1 else _between(start, timings.last_token_iteration)
    reason = Reason.NONE
    if status == "errored":
        reason = reason_of(error)
    elif status:
        reason = Reason.OPERATOR
    told = Told(
        request_id=request.response_id or request.request_id or f"guidellm-{index}",
        tool="guidellm timings",
        session_id=(info.conversation_id or "") if (info.turn_index or 0) > 0 else "",
        start_unix_ns=0 if start is None else round(start * S),
        offset_ns=offset,
        late_ns=late,
        ttft_ns=ttft,
        content_ns=ns(request.time_to_first_output_token_ms, MS),
        last_ns=last,
        end_ns=ns(request.request_latency, S),
        prompt_tokens=count(request.prompt_tokens),
        prompt_source="usage",
        cached_tokens=count(request.cached_tokens),
        output_tokens=tokens,
        output_source="usage",
        reason=reason,
        error=error,
    )
    return record_of(told)


def _aggregate(path: Path, one: _Benchmark, metadata: _Metadata, tally: Tally) -> Aggregate:
    told = one.metrics or _Metrics()
    metrics, theirs = {}, {}
    for name, ours, scale in (
        ("time_to_first_token_ms", "ttft_ms", 1.0),
        ("time_to_first_output_token_ms", "ttft_content_ms", 1.0),
        ("request_latency", "e2e_ms", 1e3),
        ("inter_token_latency_ms", "", 1.0),
        ("time_per_output_token_ms", "", 1.0),
    ):
        split: _Split | None = getattr(told, name)
        if split is None or split.successful is None:
            continue
        values = split.successful.statistics()
        bad = sum(value is not None and not 0 <= value * scale < 1e11 for value in values.values())
        tally.count(f"statistics of {name} are negative or of an epoch: missing stamps, left out", bad)
        if ours:
            metrics[ours] = metric(values, n=count(split.successful.count), scale=scale)
        else:
            theirs[name] = {key: value for key, value in values.items() if value is not None}
    if not metrics and not theirs:
        raise InputError("holds neither requests nor percentiles", place=str(path), remedy=_REMEDY)
    totals = told.request_totals or {}
    done, errored, cut = (count(totals.get(name)) or 0 for name in ("successful", "errored", "incomplete"))
    tally.say("only percentiles are in it, no requests")
    return aggregate(
        path,
        TOOL,
        metrics,
        n=(done + errored + cut) or max((one.n for one in metrics.values()), default=0),
        requests_per_s=_mean(told.requests_per_second),
        tokens_per_s=_mean(told.output_tokens_per_second),
        errors={name: n for name, n in (("engine_error", errored), ("operator", cut)) if n},
        theirs=theirs,
        arrival=_arrival(one),
        conditions=_conditions(one, metadata),
        model=_text(one, "model") or "",
        notes=[
            "its inter-token latency is a mean a request, weighted by its tokens; its time per output token has TTFT"
        ],
    )


def _mean(split: _Split | None) -> float | None:
    return split.successful.mean if split and split.successful else None
