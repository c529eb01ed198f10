"""What LLMPerf wrote: `…_individual_responses.json`, a list of requests, or `…_summary.json`, flat keys.

What its numbers mean (all in seconds):

* `inter_token_latency_s` of a request is the time to its last frame with text over its tokens, TTFT included: theirs.
  Times the tokens it gives the last token back, and from that our TPOT.
* A request that failed has zeros; so has one whose frames all were empty. Zeros are missing stamps.
* TTFT knows answer text only. Tokens are counted by one fixed tokenizer, whatever the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.diagnose.readers.foreign_json import count, decode, finite, ns, whole
from tailrace.diagnose.readers.imported import Imported, aggregate, metric, run
from tailrace.diagnose.readers.told_request import Tally, Told, reason_of, record_of
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.store.run_file import Arrival

__all__ = ["TOOL", "read_llmperf_aggregate", "read_llmperf_requests"]

TOOL: Final = "llmperf"
_REMEDY: Final = "Give …_individual_responses.json or …_summary.json as LLMPerf wrote it, whole."


class _Request(msgspec.Struct):
    error_code: float | str | None = None
    error_msg: str | None = None
    inter_token_latency_s: float | list[float | None] | None = None
    ttft_s: float | None = None
    end_to_end_latency_s: float | None = None
    number_input_tokens: float | None = None
    number_output_tokens: float | None = None
    start_time: float | None = None


def read_llmperf_requests(path: Path) -> Imported:
    """The requests of `…_individual_responses.json`. InputError where it is none."""
    place, tally = str(path), Tally()
    rows = decode(whole(path), list[_Request], place=place, tool="LLMPerf", remedy=_REMEDY)
    starts = [finite(one.start_time) for one in rows]
    first = min((start for start in starts if start is not None), default=0.0)
    records = [
        _record(one, None if start is None else round((start - first) * S), index, tally)
        for index, (one, start) in enumerate(zip(rows, starts, strict=True))
    ]
    absent = {"chunk_gap_ms", "itl_ms", "ttft_content_ms", "from_schedule", "tokens_by_usage"}
    if any(start is None for start in starts):
        absent.add("start_times")
    tally.say("TTFT is that of the answer's text; tokens are those of LLMPerf's own tokenizer")
    return Imported(
        items=[run(path, TOOL, records, granularity="mean", absent=absent, conditions=Conditions(tool="llmperf"))],
        notes=tally.notes(),
    )


def _record(one: _Request, offset: int | None, index: int, tally: Tally) -> RequestRecord:
    failed = one.error_code is not None
    ttft, end = ns(one.ttft_s, S), ns(one.end_to_end_latency_s, S)
    if ttft is None and not failed:
        tally.count("requests count as done without a first token: their TTFT is missing, not 0")
    tokens = count(one.number_output_tokens)
    mean = one.inter_token_latency_s
    last = ns(mean * tokens, S) if isinstance(mean, int | float) and tokens and ttft is not None else None
    if last is not None and (last < (ttft or 0) or (end is not None and last > end * 1.001)):
        tally.count("requests have a mean token latency that does not fit their length; it was left out")
        last = None
    text = one.error_msg or ""
    code = one.error_code if isinstance(one.error_code, int | float) else None
    status = count(code) if code is not None and 100 <= code < 600 else None
    return record_of(
        Told(
            request_id=f"llmperf-{index}",
            tool="llmperf inter_token_latency_s",
            endpoint="/v1/chat/completions",
            offset_ns=offset,
            start_unix_ns=offset or 0,
            ttft_ns=ttft,
            last_ns=last,
            end_ns=end,
            prompt_tokens=count(one.number_input_tokens),
            prompt_source="tokenizer",
            output_tokens=tokens,
            output_source="tokenizer",
            reason=reason_of(text, status) if failed else Reason.NONE,
            error=text or (f"error code {one.error_code}" if failed else ""),
            status=status,
        )
    )


def read_llmperf_aggregate(path: Path) -> Imported:
    """The flat `…_summary.json`. InputError where it is none."""
    place = str(path)
    raw = decode(whole(path), dict[str, Any], place=place, tool="LLMPerf", remedy=_REMEDY)
    done = count(_number(raw, "results_num_completed_requests")) or 0
    failed = count(_number(raw, "results_number_errors")) or 0
    metrics = {
        "ttft_ms": metric(_statistics(raw, "ttft_s"), n=done, scale=1e3),
        "e2e_ms": metric(_statistics(raw, "end_to_end_latency_s"), n=done, scale=1e3),
    }
    if not done and not failed:
        raise InputError("holds no request", place=place, remedy=_REMEDY)
    itl = {key: value * 1e3 for key, value in _statistics(raw, "inter_token_latency_s").items() if value is not None}
    per_minute = _number(raw, "results_num_completed_requests_per_min")
    model = raw.get("model")
    return Imported(
        items=[
            aggregate(
                path,
                TOOL,
                metrics,
                n=done + failed,
                requests_per_s=None if per_minute is None else per_minute / 60,
                tokens_per_s=_number(raw, "results_mean_output_throughput_token_per_s"),
                errors={"unknown": failed} if failed else {},
                theirs={"inter_token_latency": itl},
                arrival=Arrival(kind="closed", concurrency=count(_number(raw, "num_concurrent_requests"))),
                conditions=Conditions(model=model if isinstance(model, str) else None, tool="llmperf"),
                model=model if isinstance(model, str) else "",
                notes=["its inter-token latency has the TTFT in it, and so is not put under ours"],
            )
        ],
        notes=["only percentiles are in it; …_individual_responses.json beside it has the requests"],
    )


def _number(raw: dict[str, Any], key: str) -> float | None:
    value = raw.get(key)
    return finite(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _statistics(raw: dict[str, Any], name: str) -> dict[str, float | None]:
    out = {key: _number(raw, f"results_{name}_{key}") for key in ("mean", "min", "max")}
    return out | {p: _number(raw, f"results_{name}_quantiles_{p}") for p in ("p50", "p90", "p95", "p99")}
