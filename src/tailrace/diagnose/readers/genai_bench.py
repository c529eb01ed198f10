"""What genai-bench wrote for one scenario and concurrency: `aggregated_metrics` and `individual_request_metrics`.

What its numbers mean (seconds, or milliseconds where the file says so): E2E ends after the usage frame, which is our
`e2e`; its TPOT rests on that end, and is theirs. There are no gaps, no start times and no last token.
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

__all__ = ["TOOL", "read_genai_bench"]

TOOL: Final = "genai-bench"
_REMEDY: Final = "Give the JSON file that genai-bench wrote for one scenario and concurrency, whole."


class _Request(msgspec.Struct):
    ttft: float | None = None
    e2e_latency: float | None = None
    num_input_tokens: float | None = None
    num_output_tokens: float | None = None
    error_code: float | None = None
    error_message: str | None = None


class _Statistic(msgspec.Struct):
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class _Aggregated(msgspec.Struct):
    scenario: str | None = None
    num_concurrency: float | None = None
    mean_output_throughput_tokens_per_s: float | None = None
    requests_per_minute: float | None = None
    requests_per_second: float | None = None
    run_duration: float | None = None
    num_requests: float | None = None
    num_completed_requests: float | None = None
    error_codes_frequency: dict[str, float | None] | None = None
    stats: dict[str, _Statistic | None] = {}


class _Saved(msgspec.Struct):
    aggregated_metrics: _Aggregated
    individual_request_metrics: list[_Request] | None = None
    time_unit: str | None = msgspec.field(default=None, name="_time_unit")


def read_genai_bench(path: Path) -> Imported:
    """The run. InputError where it is none. Where the file keeps fewer requests than it counted, its summary is given:
    percentiles of a part would pass for those of the whole.
    """
    place, tally = str(path), Tally()
    saved = decode(whole(path), _Saved, place=place, tool="genai-bench", remedy=_REMEDY)
    told = saved.aggregated_metrics
    unit = MS if saved.time_unit == "ms" else S
    rows = saved.individual_request_metrics or []
    counted = count(told.num_requests) or 0
    item: Run | Aggregate
    if rows and len(rows) >= counted:
        item = run(
            path,
            TOOL,
            [_record(one, index, unit, tally) for index, one in enumerate(rows)],
            granularity="mean",
            absent=(
                "chunk_gap_ms",
                "itl_ms",
                "tpot_ms",
                "e2e_last_token_ms",
                "ttft_content_ms",
                "start_times",
                "from_schedule",
            ),
            arrival=_arrival(told),
            conditions=_conditions(told),
            duration_s=told.run_duration,
        )
    else:
        if rows:
            tally.say(f"it keeps {len(rows)} of {counted} requests; its percentiles of all of them were read instead")
        item = _aggregate(path, told, unit)
    return Imported(items=[item], notes=tally.notes())


def _arrival(told: _Aggregated) -> Arrival:
    return Arrival(kind="closed", concurrency=count(told.num_concurrency))


def _conditions(told: _Aggregated) -> Conditions:
    return Conditions(prompts=told.scenario, tool="genai-bench")


def _record(one: _Request, index: int, unit: int, tally: Tally) -> RequestRecord:
    ttft = ns(one.ttft, unit)
    failed = one.error_code is not None or bool(one.error_message)
    if ttft is None and not failed:
        tally.count("requests count as done without a first token: their TTFT is missing, not 0")
    status = count(one.error_code) if one.error_code is not None and 100 <= one.error_code < 600 else None
    text = one.error_message or ""
    return record_of(
        Told(
            request_id=f"genai-bench-{index}",
            tool="genai-bench",
            ttft_ns=ttft,
            end_ns=ns(one.e2e_latency, unit),
            prompt_tokens=count(one.num_input_tokens),
            prompt_source="usage",
            output_tokens=count(one.num_output_tokens),
            output_source="usage",
            reason=reason_of(text, status) if failed else Reason.NONE,
            error=text or (f"error code {one.error_code:g}" if one.error_code is not None else ""),
            status=status,
        )
    )


def _aggregate(path: Path, told: _Aggregated, unit: int) -> Aggregate:
    scale = unit / MS
    n = count(told.num_completed_requests) or 0

    def of(name: str) -> dict[str, float | None]:
        one = told.stats.get(name)
        return {} if one is None else msgspec.structs.asdict(one)

    metrics = {
        "ttft_ms": metric(of("ttft"), n=n, scale=scale),
        "e2e_ms": metric(of("e2e_latency"), n=n, scale=scale),
    }
    if all(one.mean is None and one.p50 is None for one in metrics.values()):
        raise InputError("holds neither requests nor percentiles", place=str(path), remedy=_REMEDY)
    errors: dict[str, int] = {}
    for code, times in (told.error_codes_frequency or {}).items():
        reason = str(reason_of(code, int(code) if code.isdecimal() and len(code) < 4 else None))
        errors[reason] = errors.get(reason, 0) + (count(times) or 0)
    per_minute = finite(told.requests_per_minute)
    theirs: dict[str, dict[str, float]] = {
        "tpot": {key: value * scale for key, value in of("tpot").items() if value is not None}
    }
    settings: dict[str, Any] = {"arrival": _arrival(told), "conditions": _conditions(told)}
    return aggregate(
        path,
        TOOL,
        metrics,
        n=count(told.num_requests) or n,
        requests_per_s=told.requests_per_second if per_minute is None else per_minute / 60,
        tokens_per_s=told.mean_output_throughput_tokens_per_s,
        errors={key: value for key, value in errors.items() if value},
        theirs=theirs,
        notes=["its TPOT counts the time to the usage frame, and so is not put under ours"],
        **settings,
    )
