"""What `vllm bench serve --save-result --save-detailed` wrote, as records of its client.

Two of its numbers mean something else than their names. On chat endpoints the frame that only says whose turn it is
counts as the first token, so `ttfts` ends too early, and the first of a request's `itls` is the way from that frame to
the first token: it belongs to the TTFT. And frames that came in one read are gaps of a few microseconds, which no
engine made: they are dropped.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS, S, SlowThresholds
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable

__all__ = ["is_vllm_bench", "read_vllm_bench"]

ONE_READ_NS: Final = MS // 10
"""Gaps shorter than this are frames of one read: the fastest engines take several times that for a step."""
_NAMED: Final = re.compile(rb'"endpoint_type"\s*:|"request_goodput"\s*:|"total_token_throughput"\s*:')
_ITLS: Final = source(SourceKind.REPORTED, "vllm bench itls")
_REMAINDER: Final = source(SourceKind.INFERRED, "remainder")


class _Saved(msgspec.Struct):
    """The file's own names; durations in seconds, `start_times` of a clock without an epoch."""

    date: str = ""
    endpoint_type: str = ""
    backend: str = ""
    model_id: str = ""
    duration: float = 0.0
    input_lens: list[int] = []
    output_lens: list[int] = []
    ttfts: list[float] = []
    itls: list[list[float]] = []
    latencies: list[float] = []
    start_times: list[float] = []
    errors: list[str] = []


def is_vllm_bench(head: bytes) -> bool:
    """Whether a file that begins so is one of them."""
    return head.startswith(b"{") and _NAMED.search(head) is not None


def read_vllm_bench(path: Path) -> tuple[RecordTable, list[str]]:
    """Its requests, and what was set right. InputError where it is no such file, or has only the summary."""
    place = str(path)
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is no result of vllm bench: {error}", place=place) from None
    n = len(saved.ttfts)
    if not n:
        raise InputError(
            "holds no requests, only their summary",
            place=place,
            remedy="Let vllm bench serve run with --save-detailed.",
        )
    short = [
        name
        for name in ("input_lens", "output_lens", "itls", "start_times", "errors")
        if len(getattr(saved, name)) not in ((0, n) if name in {"errors", "start_times"} else (n,))
    ]
    if short:
        raise InputError(f"{', '.join(short)}: not as many entries as ttfts ({n})", place=place)
    chat = "chat" in f"{saved.endpoint_type} {saved.backend}"
    origin = _began_unix_ns(saved)
    first = min(saved.start_times, default=0.0)
    records, gaps, dropped = [], 0, 0
    for index in range(n):
        gaps += len(saved.itls[index])
        record, of_one_read = _record(saved, index, chat=chat, origin=origin, first=first)
        dropped += of_one_read
        records.append(record)
    notes = []
    if dropped:
        notes.append(
            f"{dropped} of {gaps} inter-token times are below 0.1 ms and were dropped: frames of one read"
            + (", most often the role frame with the first token" if chat else "")
        )
    if chat:
        notes.append("ttfts are those of the role frame; the time to the first token was added")
    return RecordTable.from_records(records), notes


def _began_unix_ns(saved: _Saved) -> int:
    """The start of the run by the file's date, which names no zone and is its end; only the order counts."""
    try:
        ended = dt.datetime.strptime(saved.date, "%Y%m%d-%H%M%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return 0
    return max(int(ended.timestamp() * S) - _ns(saved.duration), 0)


def _ns(seconds: float) -> int:
    return round(seconds * S) if 0 <= seconds < 1e9 else 0


def _record(saved: _Saved, index: int, *, chat: bool, origin: int, first: float) -> tuple[RequestRecord, int]:
    """One request, and how many of its inter-token times were frames of one read."""
    error = saved.errors[index] if saved.errors else ""
    itls = [_ns(value) for value in saved.itls[index]]
    of_one_read = sum(gap < ONE_READ_NS for gap in itls)
    ttft = _ns(saved.ttfts[index])
    if chat and itls:
        ttft += itls.pop(0)
    gaps = [gap for gap in itls if gap >= ONE_READ_NS]
    last = ttft + sum(itls)
    e2e = max(_ns(saved.latencies[index]) if len(saved.latencies) == len(saved.ttfts) else 0, last)
    tokens = saved.output_lens[index]
    seen = ttft > 0
    known: dict[str, Any] = {"unattributed_ns": e2e, "stage_sources": {"unattributed": _REMAINDER}}
    if seen:
        known = {
            "ttft_ns": ttft,
            "unattributed_ns": ttft,
            "decode_ns": last - ttft,
            "postprocess_ns": e2e - last,
            "stage_sources": {"unattributed": _REMAINDER, "decode": _ITLS, "postprocess": _REMAINDER},
            "e2e_last_token_ns": last,
            "timeline": _timeline(ttft, itls),
        }
    if gaps:
        known |= {
            "chunk_gap_count": len(gaps),
            "chunk_gap_p50_ns": round(float(np.quantile(gaps, 0.5))),
            "chunk_gap_p95_ns": round(float(np.quantile(gaps, 0.95))),
            "chunk_gap_max_ns": max(gaps),
            "chunk_gap_over": sum(gap > SlowThresholds().gap_ns for gap in gaps),
            "chunk_gap_method": "exact",
        }
    if seen and tokens > 1 and last > ttft:
        known |= {"tpot_ns": round((last - ttft) / (tokens - 1)), "tokens_per_s": (tokens - 1) / ((last - ttft) / S)}
    offset = _ns(saved.start_times[index] - first) if saved.start_times else 0
    record = RequestRecord(
        vantage="client",
        request_id=f"vllm-bench-{index}",
        endpoint="/v1/chat/completions" if chat else "/v1/completions",
        model=saved.model_id,
        prompt_tokens=saved.input_lens[index],
        prompt_tokens_source="tokenizer",
        output_tokens=tokens,
        output_tokens_source="usage",
        start_unix_ns=origin + offset,
        run_offset_ns=offset,
        e2e_ns=e2e,
        outcome=OutcomeKind.FAILED if error else OutcomeKind.COMPLETED,
        reason=Reason.ENGINE_ERROR if error else Reason.NONE,
        died_in=("decode" if seen else "prefill") if error else "",
        error=error[:300],
        **known,
    )
    return record, of_one_read


def _timeline(ttft: int, itls: list[int]) -> Timeline:
    at = [ttft]
    for gap in itls:
        at.append(at[-1] + gap)
    return Timeline(at_ns=at, kind=[int(EventKind.CONTENT)] * len(at), tokens=[-1] * len(at))
