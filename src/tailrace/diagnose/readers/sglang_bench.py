"""What SGLang's `bench_serving` appends to its file: one JSON line a run, with its requests under `--output-details`.

What its numbers mean:

* Its E2E ends with the last line read, usage and `[DONE]` included: that is our `e2e`. Its TPOT rests on it, and so is
  not ours; with details ours is computed from the last token, without them it is `theirs`.
* Its ITL is the gap between frames with text (our chunk gap) unless `accept_length` is known: then it is the gap
  divided by the tokens, repeated, and not ours.
* A new connection for each request is within every TTFT.
* There are no start times: which requests ran beside each other is unknown. Where the server sends no usage, the output
  length is the one that was asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.analyze.aggregate import Aggregate
from tailrace.diagnose.readers.foreign_json import Document, count, decode, documents, finite, gaps_of, ns
from tailrace.diagnose.readers.imported import Imported, aggregate, arrival_of, engine_of, metric, run
from tailrace.diagnose.readers.told_request import Tally, Told, events_of, reason_of, record_of
from tailrace.diagnose.readers.vllm_bench import statistics
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.store.run_file import Arrival, Run

__all__ = ["TOOL", "read_sglang_bench"]

TOOL: Final = "sglang"
_NAME: Final = "SGLang's bench_serving"
_REMEDY: Final = "Give the file that `sglang.bench_serving --output-file` wrote (best with --output-details), whole."


class Saved(msgspec.Struct):
    """The line's own names, of both spellings; durations in seconds."""

    backend: str | None = None
    dataset_name: str | None = None
    request_rate: float | str | None = None
    max_concurrency: float | None = None
    duration: float | None = None
    completed: float | None = None
    failed: float | None = None
    request_throughput: float | None = None
    output_throughput: float | None = None
    accept_length: float | None = None
    total_output_tokens: float | None = None
    exported_by: str = ""
    input_lens: list[float | None] = []
    output_lens: list[float | None] = []
    ttfts: list[float | None] = []
    itls: list[msgspec.Raw] = []
    latencies: list[float | None] = []
    errors: list[str | None] = []

    @property
    def per_token(self) -> bool:
        return bool(self.accept_length and self.accept_length > 0)


def read_sglang_bench(path: Path) -> Imported:
    """Its runs, one a line, and what was set right. InputError where it is none."""
    tally = Tally()
    return Imported(items=[_item(path, one, tally) for one in documents(path)], notes=tally.notes())


def _item(path: Path, document: Document, tally: Tally) -> Run | Aggregate:
    place = document.place
    saved = decode(document.data, Saved, place=place, tool=_NAME, remedy=_REMEDY)
    n = len(saved.ttfts)
    if not n:
        return _aggregate(path, document, saved, tally)
    lists = ("input_lens", "output_lens", "itls", "latencies", "errors")
    uneven = [
        name
        for name in lists
        if len(getattr(saved, name)) not in ((0, n) if name in {"latencies", "errors", "input_lens"} else (n,))
    ]
    if uneven:
        raise InputError(f"{', '.join(uneven)}: not as many entries as ttfts ({n})", place=place, remedy=_REMEDY)
    records = [_record(saved, i, tally, place) for i in range(n)]
    absent = {"ttft_content_ms", "start_times", "from_schedule"}
    if not saved.latencies:
        absent.add("e2e_ms")
    if saved.per_token:
        absent |= {"chunk_gap_ms"}
    if not saved.exported_by:
        tally.say("opening the connection is within every TTFT; an output length without usage is the one asked for")
    return run(
        path,
        TOOL,
        records,
        granularity="mean" if saved.per_token else "chunk",
        absent=absent,
        arrival=_arrival(saved),
        conditions=_conditions(saved),
        duration_s=saved.duration,
    )


def _conditions(saved: Saved) -> Conditions:
    return Conditions(engine=engine_of(saved.backend), prompts=saved.dataset_name, tool="sglang.bench_serving")


def _arrival(saved: Saved) -> Arrival:
    rate = saved.request_rate
    try:
        number = finite(float(rate)) if rate is not None else None
    except ValueError:
        number = None
    return arrival_of(number, count(saved.max_concurrency), at_once=count(saved.completed))


def _record(saved: Saved, index: int, tally: Tally, place: str) -> RequestRecord:
    error = (saved.errors[index] or "") if saved.errors else ""
    ttft = ns(saved.ttfts[index], S)
    if ttft is None and not error:
        tally.count("requests count as done without a first token: their TTFT is missing, not 0")
    gaps = [ns(value, S, zero=True) for value in gaps_of(saved.itls[index], index, place=place, tool=_NAME)]
    events = events_of(ttft, gaps, tally)
    last = events[-1] if events else None
    told = Told(
        request_id=f"sglang-bench-{index}",
        tool="sglang itls",
        ttft_ns=ttft,
        # A gap that was divided by its tokens is no gap between events; the sum of them is the way to the last token.
        events=[] if saved.per_token else events,
        last_ns=last,
        end_ns=ns(saved.latencies[index], S) if saved.latencies else None,
        prompt_tokens=count(saved.input_lens[index]) if saved.input_lens else None,
        prompt_source="tokenizer",
        output_tokens=count(saved.output_lens[index]),
        output_source="usage" if saved.exported_by else "",
        reason=reason_of(error) if error else Reason.NONE,
        error=error,
    )
    return record_of(told)


def _aggregate(path: Path, document: Document, saved: Saved, tally: Tally) -> Aggregate:
    raw: dict[str, Any] = decode(document.data, dict[str, Any], place=document.place, tool=_NAME)
    n = count(saved.completed) or 0
    metrics = {
        "ttft_ms": metric(statistics(raw, "ttft"), n=n),
        "e2e_ms": metric(statistics(raw, "e2e_latency"), n=n),
    }
    theirs = {"tpot": _plain(statistics(raw, "tpot"))}
    if saved.per_token:
        theirs["itl"] = _plain(statistics(raw, "itl"))
    else:
        metrics["chunk_gap_ms"] = metric(statistics(raw, "itl"), n=None)
    if not n and not any(theirs.values()):
        raise InputError("holds neither requests nor percentiles", place=document.place, remedy=_REMEDY)
    tally.say("only percentiles are in it, no requests; --output-details keeps them")
    return aggregate(
        path,
        TOOL,
        metrics,
        n=n + (count(saved.failed) or 0),
        requests_per_s=saved.request_throughput,
        tokens_per_s=saved.output_throughput,
        errors={"unknown": count(saved.failed) or 0} if saved.failed else {},
        theirs=theirs,
        absent={"ttft_content_ms"},
        arrival=_arrival(saved),
        conditions=_conditions(saved),
        notes=["its TPOT counts the time to [DONE], and so is not put under ours"],
    )


def _plain(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
