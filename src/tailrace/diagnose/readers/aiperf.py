"""What AIPerf wrote: `profile_export.jsonl`, a line a request, or `profile_export_aiperf.json`, the summary.

What its numbers mean:

* `request_latency` ends with the last frame that carries text, not with `[DONE]`: that is `e2e_last_token`; `e2e` is
  absent.
* `inter_chunk_latency` is our chunk gap. `inter_token_latency` is (last - first) / (n - 1) of one request, our TPOT, if
  the first frame carried one token, which it takes for granted.
* Token counts are those of its own tokenizer unless `--use-server-token-count` was given.
* Stamps in `metadata` are of the wall clock (ns); opening a connection is within its times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.diagnose.readers.foreign_json import count, decode, lines, ns, stamp, whole
from tailrace.diagnose.readers.imported import Imported, aggregate, metric, run
from tailrace.diagnose.readers.told_request import Tally, Told, events_of, reason_of, record_of
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tailrace.store.run_file import Arrival

__all__ = ["TOOL", "read_aiperf_aggregate", "read_aiperf_requests"]

TOOL: Final = "aiperf"
_REMEDY: Final = "Give profile_export.jsonl or profile_export_aiperf.json as AIPerf wrote it, whole."
_UNITS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}


class _Value(msgspec.Struct):
    value: float | list[float | None] | str | None = None
    unit: str | None = None

    def duration_ns(self) -> int | None:
        return ns(self.value, self._factor()) if isinstance(self.value, int | float) else None

    def durations_ns(self) -> list[int | None]:
        values = self.value if isinstance(self.value, list) else []
        return [ns(one, self._factor(), zero=True) for one in values]

    def count(self) -> int | None:
        return count(self.value) if isinstance(self.value, int | float) else None

    def _factor(self) -> float:
        return _UNITS.get(self.unit or "ms", float(MS))


_NOTHING: Final = _Value()


class _Metadata(msgspec.Struct):
    session_num: float | None = None
    x_request_id: str | None = None
    conversation_id: str | None = None
    turn_index: float | None = None
    credit_issued_ns: int | float | None = None
    request_start_ns: int | float | None = None
    request_end_ns: int | float | None = None
    benchmark_phase: str | None = None
    was_cancelled: bool | None = None


class _Error(msgspec.Struct):
    code: float | None = None
    type: str | None = None
    message: str | None = None


class _Line(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value] = {}
    error: _Error | str | None = None
    exported_by: str = ""


def read_aiperf_requests(path: Path, *, allow_partial: bool = False) -> Imported:
    """The requests of `profile_export.jsonl`. InputError names the line that is none, or is cut.

    With `allow_partial` what stands before such a line is read, and a note says so.
    """
    tally = Tally()
    records: list[RequestRecord] = []
    for number, line in lines(path):
        try:
            row = decode(line, _Line, place=f"{path}:{number}", tool="AIPerf", remedy=_REMEDY)
        except InputError as error:
            if not allow_partial or not records:
                raise
            tally.say(f"only the {len(records)} requests before line {number} were read: {error.message}")
            break
        # A line becomes its record at once: what it was decoded to is larger than the line.
        records.append(_record(row, len(records), tally))
    first = min((_intended(one) for one in records if one.start_unix_ns and one.lane != "warmup"), default=0)
    records = [
        msgspec.structs.replace(one, run_offset_ns=max(0, _intended(one) - first) if one.start_unix_ns else None)
        for one in records
    ]
    scheduled = any(one.intended_to_sent_ns is not None for one in records)
    end = max((record.start_unix_ns + record.e2e_ns for record in records), default=first)
    tally.say("opening a connection is within every TTFT; tokens are counted by AIPerf's tokenizer")
    return Imported(
        items=[
            run(
                path,
                TOOL,
                records,
                granularity="chunk",
                absent=("e2e_ms",) if scheduled else ("e2e_ms", "from_schedule"),
                conditions=Conditions(tool="aiperf"),
                duration_s=(end - first) / 1e9 if first else None,
                started_unix_ns=first,
            )
        ],
        notes=tally.notes(),
    )


def _intended(record: RequestRecord) -> int:
    return record.start_unix_ns - (record.intended_to_sent_ns or 0)


def _late_ns(row: _Line, start: int) -> int | None:
    """Intended time -> send. AIPerf issues credits in closed loops as well, where nothing was intended, and a line does
    not say which it was: only what we have written ourselves tells a schedule.
    """
    credit = stamp(row.metadata.credit_issued_ns)
    return max(0, start - credit) if row.exported_by and credit else None


def _record(row: _Line, index: int, tally: Tally) -> RequestRecord:
    metadata, metrics = row.metadata, row.metrics
    start = stamp(metadata.request_start_ns) or stamp(metadata.credit_issued_ns) or 0
    ttft = metrics.get("time_to_first_token", _NOTHING).duration_ns()
    events = events_of(ttft, metrics.get("inter_chunk_latency", _NOTHING).durations_ns(), tally)
    latency = metrics.get("request_latency", _NOTHING).duration_ns()
    reason, error, status = _failure(row)
    if ttft is None and reason is Reason.NONE:
        tally.count("requests count as done without a first token: their TTFT is missing, not 0")
    usage = metrics.get("usage_completion_tokens", _NOTHING).count()
    tokens = usage if usage is not None else metrics.get("output_sequence_length", _NOTHING).count()
    prompt = metrics.get("usage_prompt_tokens", _NOTHING).count()
    reused = metrics.get("http_req_connection_reused", _NOTHING).count()
    return record_of(
        Told(
            request_id=metadata.x_request_id or f"aiperf-{index}",
            tool="aiperf inter_chunk_latency",
            lane="warmup" if metadata.benchmark_phase == "warmup" else "default",
            session_id=(metadata.conversation_id or "") if (metadata.turn_index or 0) > 0 else "",
            start_unix_ns=start,
            late_ns=_late_ns(row, start),
            ttft_ns=ttft,
            content_ns=metrics.get("time_to_first_output_token", _NOTHING).duration_ns(),
            events=events,
            last_ns=latency if ttft is not None else None,
            end_ns=latency,
            tpot_ns=metrics.get("inter_token_latency", _NOTHING).duration_ns(),
            prompt_tokens=prompt if prompt is not None else metrics.get("input_sequence_length", _NOTHING).count(),
            prompt_source="usage" if prompt is not None else "tokenizer",
            output_tokens=tokens,
            output_source="usage" if usage is not None else "tokenizer",
            connect_ns=metrics.get("http_req_connecting", _NOTHING).duration_ns(),
            reused=None if reused is None else bool(reused),
            reason=reason,
            error=error,
            status=status,
        )
    )


def _failure(row: _Line) -> tuple[Reason, str, int | None]:
    error = row.error
    if error is None:
        return (Reason.CLIENT_DISCONNECT if row.metadata.was_cancelled else Reason.NONE), "", None
    if isinstance(error, str):
        return reason_of(error), error, None
    status = count(error.code)
    text = error.message or error.type or ""
    if row.metadata.was_cancelled or status == 499:  # 499: the client left; that is how AIPerf books it
        return Reason.CLIENT_DISCONNECT, text, None
    return reason_of(f"{error.type} {text}", status), text, status if status and status > 99 else None


_SAME: Final = {
    "time_to_first_token": "ttft_ms",
    "time_to_first_output_token": "ttft_content_ms",
    "inter_chunk_latency": "chunk_gap_ms",
    "inter_token_latency": "tpot_ms",
    "request_latency": "e2e_last_token_ms",
}
_THEIRS: Final = ("effective_latency", "credit_to_start_latency", "time_to_second_token")


def read_aiperf_aggregate(path: Path) -> Imported:
    """The summary `profile_export_aiperf.json`. InputError where it is none."""
    place = str(path)
    raw = decode(whole(path), dict[str, Any], place=place, tool="AIPerf", remedy=_REMEDY)
    metrics = {ours: metric(statistics(raw, name), n=value_of(raw, name, "count")) for name, ours in _SAME.items()}
    theirs = {name: plain(statistics(raw, name)) for name in _THEIRS}
    done = value_of(raw, "request_count", "avg") or 0
    failed = value_of(raw, "error_request_count", "avg") or 0
    if not done and not failed and not any(one.mean is not None for one in metrics.values()):
        raise InputError("holds no percentile", place=place, remedy=_REMEDY)
    version = raw.get("aiperf_version")
    settings = raw.get("input_config")
    return Imported(
        items=[
            aggregate(
                path,
                TOOL,
                metrics,
                n=done + failed,
                requests_per_s=number_of(raw, "request_throughput", "avg"),
                tokens_per_s=number_of(raw, "output_token_throughput", "avg"),
                goodput_per_s=number_of(raw, "goodput", "avg"),
                errors=_errors(raw, failed),
                theirs=theirs,
                arrival=_arrival(settings),
                conditions=Conditions(
                    command=_member(raw.get("run_info"), "cli_command"),
                    tool=f"aiperf {version}" if isinstance(version, str) else "aiperf",
                ),
                notes=["tokens are counted by AIPerf's tokenizer; its TPOT takes the first frame for one token"],
            )
        ],
        notes=["only percentiles are in it; profile_export.jsonl beside it has the requests"],
    )


def _errors(raw: dict[str, Any], failed: int) -> dict[str, int]:
    out: dict[str, int] = {}
    listed = raw.get("error_summary")
    for one in listed if isinstance(listed, list) else []:
        if not isinstance(one, dict):
            continue
        details, n = one.get("error_details"), one.get("count")
        code = details.get("code") if isinstance(details, dict) else None
        text = str(details.get("message", ""))[:200] if isinstance(details, dict) else ""
        if isinstance(n, int):
            reason = reason_of(text, code if isinstance(code, int) else None)
            out[str(reason)] = out.get(str(reason), 0) + n
    return out or ({"unknown": failed} if failed else {})


def _arrival(settings: Any) -> Arrival:
    phases = settings.get("phases") if isinstance(settings, dict) else None
    for phase in phases if isinstance(phases, list) else []:
        if isinstance(phase, dict) and phase.get("kind") != "warmup":
            rate, limit = phase.get("rate", phase.get("request_rate")), phase.get("concurrency")
            if isinstance(rate, int | float):
                return Arrival(kind="constant" if phase.get("type") == "constant" else "unknown", rate=float(rate))
            if isinstance(limit, int):
                return Arrival(kind="closed", concurrency=limit)
    return Arrival(kind="unknown")


def _member(value: Any, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def number_of(raw: dict[str, Any], name: str, statistic: str) -> float | None:
    """A statistic of a metric of the layout that AIPerf and GenAI-Perf share; `None` where it is absent."""
    tag = raw.get(name)
    value = tag.get(statistic) if isinstance(tag, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def value_of(raw: dict[str, Any], name: str, statistic: str) -> int | None:
    """The same as a count."""
    return count(number_of(raw, name, statistic))


def statistics(raw: dict[str, Any], name: str) -> dict[str, float | None]:
    """A metric's statistics in milliseconds, by our names."""
    tag = raw.get(name)
    unit = tag.get("unit") if isinstance(tag, dict) else None
    factor = _UNITS.get(unit if isinstance(unit, str) else "ms")
    if factor is None:
        return {}
    out: dict[str, float | None] = {}
    for ours, theirs in (("mean", "avg"), *((one, one) for one in ("min", "p50", "p90", "p95", "p99", "max"))):
        value = number_of(raw, name, theirs)
        out[ours] = None if value is None else value * factor / MS
    return out


def plain(values: dict[str, float | None]) -> dict[str, float]:
    """Those that are there."""
    return {name: value for name, value in values.items() if value is not None}
