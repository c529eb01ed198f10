"""What `vllm bench serve --save-result` wrote: with `--save-detailed` its requests, without it their percentiles.

Some of its numbers mean something else than their names:

* A frame that only says whose turn it is (`content: ""`) counts as a token on chat endpoints. Where streams have more
  counted frames than tokens, `ttfts` ends too early, and the first of a request's `itls` is the way from that frame to
  the first token: it belongs to the TTFT.
* Frames that came in one read are gaps of a few microseconds, which no engine made: they are dropped.
* `latencies` end with the last counted frame: that is `e2e_last_token`, and `e2e` is absent.
* `len(itls) + 1` counts frames, not tokens; "peak output tokens per second" counts frames, too.
* `request_rate` may be the text `inf`: all at once, or as many as `max_concurrency` allows.
"""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.analyze.aggregate import Aggregate
from tailrace.diagnose.readers.foreign_json import Document, count, decode, documents, finite, gaps_of, ns
from tailrace.diagnose.readers.imported import Imported, aggregate, arrival_of, engine_of, metric, run
from tailrace.diagnose.readers.told_request import Tally, Told, events_of, reason_of, record_of
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, S
from tailrace.store.run_file import Arrival, Run

__all__ = ["TOOL", "read_vllm_bench"]

TOOL: Final = "vllm"
ONE_READ_NS: Final = MS // 10
"""Gaps shorter than this are frames of one read: the fastest engines take several times that for a step."""
_REMEDY: Final = "Give the file that `vllm bench serve --save-result` wrote (best with --save-detailed), whole."
_METRICS: Final = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "chunk_gap_ms", "e2el": "e2e_last_token_ms"}
_ABSENT: Final = ("e2e_ms", "ttft_content_ms")


class Saved(msgspec.Struct):
    """The file's own names; durations in seconds, `start_times` of a clock without an epoch."""

    date: str = ""
    endpoint_type: str | None = None
    backend: str | None = None
    model_id: str | None = None
    tokenizer_id: str | None = None
    num_prompts: float | None = None
    request_rate: float | str | None = None
    burstiness: float | str | None = None
    max_concurrency: float | None = None
    duration: float | None = None
    completed: float | None = None
    failed: float | None = None
    request_throughput: float | None = None
    request_goodput: float | None = None
    output_throughput: float | None = None
    exported_by: str = ""
    input_lens: list[float | None] = []
    output_lens: list[float | None] = []
    ttfts: list[float | None] = []
    itls: list[msgspec.Raw] = []
    latencies: list[float | None] = []
    start_times: list[float | None] = []
    queue_times: list[float | None] = []
    errors: list[str | None] = []

    @property
    def chat(self) -> bool:
        return "chat" in f"{self.endpoint_type} {self.backend}"


def read_vllm_bench(path: Path) -> Imported:
    """Its runs (several where `--append-result` was on), and what was set right. InputError where it is none."""
    tally = Tally()
    return Imported(items=[_item(path, one, tally) for one in documents(path)], notes=tally.notes())


def _item(path: Path, document: Document, tally: Tally) -> Run | Aggregate:
    place = document.place
    saved = decode(document.data, Saved, place=place, tool="vllm bench", remedy=_REMEDY)
    n = len(saved.ttfts)
    if not n:
        return _aggregate(path, document, saved, tally)
    uneven = [
        name
        for name in ("input_lens", "output_lens", "itls", "latencies", "start_times", "queue_times", "errors")
        if len(getattr(saved, name)) not in ((n,) if name in {"input_lens", "output_lens", "itls"} else (0, n))
    ]
    if uneven:
        raise InputError(f"{', '.join(uneven)}: not as many entries as ttfts ({n})", place=place, remedy=_REMEDY)
    counted_roles = _counted_roles(saved, place)
    starts = [finite(value) for value in saved.start_times] or [None] * n
    waits = [finite(value) or 0.0 for value in saved.queue_times] if _open_loop(saved) else []
    intended = zip(starts, waits or [0.0] * n, strict=True)
    first = min((start - wait for start, wait in intended if start is not None), default=0.0)
    origin = _began_unix_ns(saved)
    records = [
        _record(saved, i, starts[i], first, origin, tally, place=place, counted_roles=counted_roles) for i in range(n)
    ]
    if counted_roles:
        tally.say("ttfts are those of the role frame; the time to the first token was added")
    elif saved.chat and not saved.exported_by:
        tally.say("vllm bench counts an empty content frame as the first token; no stream here shows one")
    absent = {*_ABSENT}
    if not saved.start_times:
        absent.add("start_times")
    if not _open_loop(saved):
        absent.add("from_schedule")
    return run(
        path,
        TOOL,
        records,
        granularity="chunk",
        absent=absent,
        arrival=_arrival(saved),
        conditions=_conditions(saved),
        duration_s=saved.duration,
        model=saved.model_id or "",
        started_unix_ns=origin,
    )


def _conditions(saved: Saved) -> Conditions:
    return Conditions(engine=engine_of(saved.backend), model=saved.model_id, tool="vllm bench serve")


def _arrival(saved: Saved) -> Arrival:
    rate, burst = _number(saved.request_rate), _number(saved.burstiness)
    return arrival_of(rate, count(saved.max_concurrency), burstiness=burst, at_once=count(saved.num_prompts))


def _open_loop(saved: Saved) -> bool:
    return _number(saved.request_rate) is not None and bool(saved.queue_times)


def _number(value: float | str | None) -> float | None:
    try:
        return finite(float(value)) if value is not None else None
    except ValueError:
        return None


def _aggregate(path: Path, document: Document, saved: Saved, tally: Tally) -> Aggregate:
    raw: dict[str, Any] = decode(document.data, dict[str, Any], place=document.place, tool="vllm bench", remedy=_REMEDY)
    n = count(saved.completed) or 0
    metrics = {
        ours: metric(statistics(raw, name), n=n if name in ("ttft", "e2el") else None)
        for name, ours in _METRICS.items()
    }
    made = aggregate(
        path,
        TOOL,
        metrics,
        n=n + (count(saved.failed) or 0),
        requests_per_s=saved.request_throughput,
        tokens_per_s=saved.output_throughput,
        goodput_per_s=saved.request_goodput,
        errors={"unknown": count(saved.failed) or 0} if saved.failed else {},
        absent=_ABSENT,
        arrival=_arrival(saved),
        conditions=_conditions(saved),
        model=saved.model_id or "",
        notes=["a percentile of TTFT may be that of an empty content frame, which vllm bench counts as a token"]
        if saved.chat
        else [],
    )
    if all(one.reason and not one.n for name, one in made.summary.metrics.items() if name != "chunk_gap_ms") and not n:
        raise InputError(
            "holds neither requests nor percentiles",
            place=document.place,
            remedy="Let vllm bench serve run with --save-result --save-detailed.",
        )
    tally.say("only percentiles are in it, no requests; --save-detailed keeps them")
    return made


def statistics(raw: dict[str, Any], name: str) -> dict[str, float | None]:
    """`p99_ttft_ms`, `median_ttft_ms`, ... of a flat result -> `p99`, `p50`, ...."""
    out: dict[str, float | None] = {}
    for ours, theirs in (
        ("mean", ("mean",)),
        ("min", ("min",)),
        ("p50", ("p50", "median")),
        ("p90", ("p90",)),
        ("p95", ("p95",)),
        ("p99", ("p99",)),
        ("p999", ("p99.9",)),
        ("max", ("max",)),
    ):
        for spelled in theirs:
            value = raw.get(f"{spelled}_{name}_ms")
            if isinstance(value, int | float) and not isinstance(value, bool):
                out.setdefault(ours, float(value))
    return out


def _counted_roles(saved: Saved, place: str) -> bool:
    """Whether frames without a token were counted: streams have more frames than tokens, most of them.

    Each frame with text brings a token at least, so one more frame than tokens cannot be otherwise.
    """
    if not saved.chat or saved.exported_by:
        return False
    streams = [
        (len(gaps) + 1, tokens or 0)
        for gaps, tokens, ttft in zip(
            (gaps_of(raw, i, place=place, tool="vllm bench") for i, raw in enumerate(saved.itls)),
            saved.output_lens,
            saved.ttfts,
            strict=True,
        )
        if gaps and ttft
    ]
    return bool(streams) and 2 * sum(frames > tokens for frames, tokens in streams) > len(streams)


def _began_unix_ns(saved: Saved) -> int:
    """The start of the run by the file's date, which names no zone and is its end; only the order counts."""
    try:
        ended = dt.datetime.strptime(saved.date, "%Y%m%d-%H%M%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return 0
    return max(int(ended.timestamp() * S) - (ns(saved.duration, S) or 0), 0)


def _record(
    saved: Saved,
    index: int,
    start: float | None,
    first: float,
    origin: int,
    tally: Tally,
    *,
    place: str,
    counted_roles: bool,
) -> RequestRecord:
    error = (saved.errors[index] or "") if saved.errors else ""
    ttft = ns(saved.ttfts[index], S)
    gaps = [ns(value, S, zero=True) for value in gaps_of(saved.itls[index], index, place=place, tool="vllm bench")]
    several = bool(gaps)
    tokens = count(saved.output_lens[index])
    if ttft is None and not error:
        tally.count("requests count as done without a first token: their TTFT is missing, not 0")
    if counted_roles and ttft is not None and gaps and gaps[0] is not None:
        if gaps[0] < ONE_READ_NS:
            _of_one_read(tally, chat=True)
        ttft += gaps.pop(0) or 0
    events = events_of(ttft, gaps, tally)
    # One frame, or a stream whose gaps were not kept: its end is all that is known of the last token.
    last = events[-1] if events and several else None
    if not saved.exported_by:
        events = _reads(events, tally)
    late = ns(saved.queue_times[index], S, zero=True) if saved.queue_times else None
    open_loop = _open_loop(saved)
    offset = None if start is None else round((start - first) * S)
    if open_loop and late is not None and offset is not None:
        offset = max(0, offset - late)
    latency = ns(saved.latencies[index], S) if saved.latencies else None
    told = Told(
        request_id=f"vllm-bench-{index}",
        tool="vllm bench itls",
        endpoint="/v1/chat/completions" if saved.chat else "/v1/completions",
        model=saved.model_id or "",
        start_unix_ns=origin + (offset or 0),
        offset_ns=offset,
        late_ns=late if open_loop else None,
        ttft_ns=ttft,
        events=events,
        # Failures have no latency; what was answered ends with the last counted frame.
        last_ns=last if last is not None else (latency if ttft is not None else None),
        end_ns=latency,
        prompt_tokens=count(saved.input_lens[index]),
        prompt_source="tokenizer",
        output_tokens=tokens,
        output_source="usage",
        reason=reason_of(error) if error else Reason.NONE,
        error=error,
    )
    return record_of(told)


def _of_one_read(tally: Tally, *, chat: bool) -> None:
    tally.count(
        "inter-token times are below 0.1 ms and were dropped: frames of one read"
        + (", most often the role frame with the first token" if chat else "")
    )


def _reads(events: list[int], tally: Tally) -> list[int]:
    """Events without those that came in the same read as the one before them."""
    out = events[:1]
    for before, at in itertools.pairwise(events):
        if at - before < ONE_READ_NS:
            _of_one_read(tally, chat=True)
        else:
            out.append(at)
    return out
