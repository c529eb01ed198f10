"""What the result of another load tool becomes: runs with requests, or aggregates without; one of them by `#N`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.analyze.aggregate import Aggregate
from tailrace.diagnose.readers.foreign_json import finite
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.measurement import BenchSummary, ClientHealth, MetricSummary
from tailrace.model.record import RequestRecord
from tailrace.store.run_file import Arrival, Run, RunHeader, RunTrailer

__all__ = ["NO_COUNT", "Imported", "aggregate", "arrival_of", "chosen", "engine_of", "metric", "run", "split_number"]

NO_COUNT: Final = "the file does not say how many values there were"
_HEALTH: Final = "client_health"
_OF_GAPS: Final = ("chunk_gap_ms", "itl_ms", "longest_wait_ms")
"""What cannot be known of a stream of which only the mean is."""
_ENGINES: Final = frozenset({"vllm", "sglang", "tgi", "trt", "lmdeploy", "triton", "tensorrt-llm", "llama.cpp"})


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one file, in its order, and what was set right while reading it."""

    items: list[Run | Aggregate]
    notes: list[str] = []


def run(
    path: Path,
    tool: str,
    records: list[RequestRecord],
    *,
    granularity: str,
    absent: Iterable[str] = (),
    arrival: Arrival | None = None,
    conditions: Conditions | None = None,
    duration_s: float | None = None,
    model: str = "",
    target: str = "",
    started_unix_ns: int = 0,
    notes: Sequence[str] = (),
    interrupted: bool = False,
) -> Run:
    """A run of another tool. How its client fared nobody has watched: `client_health` is always absent."""
    header = RunHeader(
        target=target,
        model=model,
        started_unix_ns=started_unix_ns,
        arrival=arrival or Arrival(kind="unknown"),
        conditions=conditions or Conditions(tool=tool),
        source=tool,
        granularity=granularity,
        absent=sorted({*absent, _HEALTH, *(_OF_GAPS if granularity == "mean" else ())}),
        notes=list(notes),
    )
    trailer = RunTrailer(n=len(records), duration_s=finite(duration_s) or 0.0, interrupted=interrupted)
    return Run(path=str(path), header=header, records=records, trailer=trailer)


def aggregate(
    path: Path,
    tool: str,
    metrics: Mapping[str, MetricSummary],
    *,
    n: int,
    requests_per_s: float | None = None,
    tokens_per_s: float | None = None,
    goodput_per_s: float | None = None,
    errors: Mapping[str, int] | None = None,
    theirs: Mapping[str, Mapping[str, float]] | None = None,
    absent: Iterable[str] = (),
    arrival: Arrival | None = None,
    conditions: Conditions | None = None,
    model: str = "",
    target: str = "",
    notes: Sequence[str] = (),
) -> Aggregate:
    """A summary of another tool; rates that it does not tell are 0 and named among what is absent."""
    rates = {"requests_per_s": requests_per_s, "tokens_per_s": tokens_per_s, "goodput_per_s": goodput_per_s}
    told = {name: finite(value) for name, value in rates.items()}
    missing = {name for name, value in told.items() if value is None}
    wanted = ("ttft_ms", "chunk_gap_ms", "itl_ms", "tpot_ms", "e2e_ms", "e2e_last_token_ms")
    known = {name: one for name, one in metrics.items() if _has_any(one)}
    missing |= {name for name in wanted if name not in known}
    header = RunHeader(
        target=target,
        model=model,
        arrival=arrival or Arrival(kind="unknown"),
        conditions=conditions or Conditions(tool=tool),
        source=tool,
        granularity="aggregate",
        absent=sorted({*absent, *missing, "requests", _HEALTH}),
        notes=list(notes),
    )
    summary = BenchSummary(
        run=str(path),
        n=n,
        requests_per_s=told["requests_per_s"] or 0.0,
        tokens_per_s=told["tokens_per_s"] or 0.0,
        goodput_per_s=told["goodput_per_s"] or 0.0,
        errors=dict(errors or {}),
        client=ClientHealth(),
        metrics=known
        | {name: MetricSummary(n=0, reason=f"the file of {tool} does not hold it") for name in missing & set(wanted)},
    )
    kept = {
        name: {key: value for key, value in values.items() if finite(value) is not None}
        for name, values in (theirs or {}).items()
    }
    return Aggregate(path=str(path), header=header, summary=summary, theirs={k: v for k, v in kept.items() if v})


def engine_of(backend: str | None) -> str | None:
    """The engine that a tool's `backend` names, where it does: `openai-chat` names an API, no engine."""
    name = (backend or "").removesuffix("-chat").removesuffix("-oai").removesuffix("-native")
    return name if name in _ENGINES else None


STATISTICS: Final = ("mean", "min", "p50", "p90", "p95", "p99", "p999", "max")


def metric(values: Mapping[str, float | None], *, n: int | None, scale: float = 1.0) -> MetricSummary:
    """A metric by its statistics (`mean`, `min`, `p50` ... `p999`, `max`); `scale` makes milliseconds of them.

    Negative values, and stamps of an epoch where a duration should be, are absent.
    """
    kept: dict[str, Any] = {}
    for name in STATISTICS:
        value = finite(values.get(name))
        if value is not None and 0 <= value * scale < 1e11:
            kept[name] = value * scale
    return MetricSummary(n=n or 0, reason=None if n else NO_COUNT, **kept)


def _has_any(one: MetricSummary) -> bool:
    return any(getattr(one, name) is not None for name in STATISTICS)


def arrival_of(
    rate: float | None, concurrency: int | None, *, burstiness: float | None = 1.0, at_once: int | None = None
) -> Arrival:
    """How requests were sent. Without a finite rate, and without a limit, all `at_once`."""
    if rate is not None and 0 < rate < float("inf"):
        kind = "poisson" if burstiness == 1.0 else "constant" if burstiness is None else "gamma"
        return Arrival(kind=kind, rate=rate, concurrency=concurrency)
    return Arrival(kind="closed", concurrency=concurrency or at_once)


def split_number(name: str) -> tuple[str, int | None]:
    """`results.jsonl#2` -> the file and 2; a file that is really called so is that file."""
    head, mark, tail = name.rpartition("#")
    if mark and tail.isdecimal() and head and not Path(name).exists():
        return head, int(tail)
    return name, None


def chosen(imported: Imported, name: str, number: int | None) -> Run | Aggregate:
    """The one run that `name` means. InputError where it holds several and none was named."""
    items = imported.items
    if not items:
        raise InputError("it holds no run", place=name)
    if number is None:
        if len(items) > 1:
            shown = "; ".join(f"#{place} {_told(item)}" for place, item in enumerate(items[:12], start=1))
            raise InputError(
                f"it holds {len(items)} runs: {shown}{' …' if len(items) > 12 else ''}",
                place=name,
                remedy=f"Name one of them: {name}#1",
            )
        return items[0]
    if not 1 <= number <= len(items):
        raise InputError(f"it holds {len(items)} runs, there is no #{number}", place=name)
    return items[number - 1]


def _told(item: Run | Aggregate) -> str:
    arrival = item.header.arrival
    how = f"{arrival.rate:g} requests/s" if arrival.rate else f"{arrival.concurrency or 'unknown'} at once"
    n = len(item.records) if isinstance(item, Run) else item.summary.n
    return f"({how}, n = {n})"
