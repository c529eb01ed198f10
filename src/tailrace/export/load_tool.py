"""A run in another load generator's form: what all of those forms share, above all what they cannot hold.

A form that cannot hold something loses it in silence unless somebody says so: every writer gives its losses as
sentences beside its bytes. `exported_by` in the file tells our own readers that nothing has to be set right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

import tailrace
from tailrace.analyze.as_tool import their_values
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import TOKEN_KINDS, EventKind
from tailrace.store.run_file import Run

__all__ = ["Exported", "Holds", "encode", "exported_by", "losses", "measured_of", "statistics", "token_events"]

encode: Final = msgspec.json.Encoder().encode


class Exported(NamedTuple):
    """What is to be written, and what is not in it."""

    chunks: Iterator[bytes]
    lost: list[str]


class Holds(NamedTuple):
    """What a form can hold."""

    gaps: bool = True
    kinds: bool = False
    """Whether an event was answer, reasoning, or a tool call."""
    last_byte: bool = False
    last_token: bool = True
    schedule: bool = False
    """How late each request left."""
    starts: bool = True
    warmup: bool = False
    cached: bool = False


def exported_by() -> str:
    """Who wrote the file."""
    return f"tailrace {tailrace.__version__}"


def measured_of(run: Run, *, warmup: bool = False) -> list[RequestRecord]:
    """The requests to write, in the order of their sends; with those of the warm-up only where the form marks them."""
    records = [record for record in run.records if warmup or not _is_warmup(record)]
    return sorted(records, key=lambda record: (record.run_offset_ns or 0, record.start_unix_ns))


def _is_warmup(record: RequestRecord) -> bool:
    return record.lane == "warmup" or (record.run_offset_ns or 0) < 0


def token_events(record: RequestRecord) -> list[int]:
    """Offsets of the events that carry tokens (ns), the first at the record's own TTFT."""
    first = record.ttft_ns
    if first is None:
        return []
    at = record.timeline.token_stamps() if record.timeline is not None else []
    return [first, *at[1:]] if at else [first]


def losses(run: Run, records: list[RequestRecord], holds: Holds) -> list[str]:
    """What the run has and the form has not, one sentence each, only where it is really there."""
    lines = [record.timeline for record in records if record.timeline is not None]
    rules: list[tuple[bool, str, Callable[[RequestRecord], bool]]] = [
        (holds.warmup, "requests of the warm-up", _is_warmup),
        (holds.gaps, "requests' timelines: it has a mean for each", lambda one: one.timeline is not None),
        (holds.schedule, "requests' late sends (latency from the schedule)", lambda one: bool(one.intended_to_sent_ns)),
        (holds.starts, "requests' start times", lambda one: one.run_offset_ns is not None),
        (
            holds.last_byte,
            "requests' last bytes: its E2E ends with the last token",
            lambda one: one.e2e_last_token_ns is not None and one.e2e_ns != one.e2e_last_token_ns,
        ),
        (holds.cached, "requests' cached prompt tokens", lambda one: bool(one.cached_tokens)),
        (False, "requests' stages that the engine or a gateway told", _has_stages),
        (False, "requests' classes", lambda one: one.lane not in ("default", "warmup")),
        (False, "requests' outcomes other than success or failure", _has_other_outcome),
        (False, "requests' headers and first bytes", lambda one: one.headers_ns is not None),
    ]
    out = []
    for held, what, has in rules:
        n = 0 if held else sum(has(record) for record in (run.records if has is _is_warmup else records))
        if n:
            out.append(f"{n} {what}")
    if not holds.kinds and any(kind in _KINDS_LOST for line in lines for kind in line.kind):
        out.append("which events were reasoning, tool calls, usage or [DONE]")
    if any(tokens > 1 for line in lines for tokens in line.tokens):
        out.append("how many tokens each event brought")
    thinned = sum(bool(line.thinned) for line in lines)
    if holds.gaps and thinned:
        out.append(f"{thinned} timelines were thinned: some of their gaps are sums")
    if run.trailer is not None and run.trailer.client.loop_lag_p99_ms is not None:
        out.append("the client's own health")
    return out


_KINDS_LOST: Final = frozenset(int(kind) for kind in EventKind if kind is not EventKind.CONTENT) - {
    int(EventKind.COMMENT)
}


def _has_stages(record: RequestRecord) -> bool:
    return any(
        record.stage_sources.get(stage, "").startswith("reported") for stage in ("queue", "preprocess", "prefill")
    )


def _has_other_outcome(record: RequestRecord) -> bool:
    return record.outcome not in (OutcomeKind.COMPLETED, OutcomeKind.FAILED)


def statistics(tool: str, records: list[RequestRecord], spelled: dict[str, str]) -> dict[str, float]:
    """`mean_ttft_ms` and so on under the tool's own definitions; `spelled`: its printed name -> that of the key."""
    out: dict[str, float] = {}
    values = their_values(tool, records)
    for name, key in spelled.items():
        array = values[name]
        if not array.size:
            continue
        out[f"mean_{key}_ms"] = float(array.mean())
        out[f"median_{key}_ms"] = float(np.median(array))
        out[f"std_{key}_ms"] = float(array.std())
        for p in (50, 90, 95, 99):
            out[f"p{p}_{key}_ms"] = float(np.percentile(array, p))
    return out


def first_content(record: RequestRecord) -> int | None:
    """The first answer text (ns): told, or seen in the timeline."""
    if record.ttft_content_ns is not None or record.timeline is None:
        return record.ttft_content_ns
    rows = zip(record.timeline.at_ns, record.timeline.kind, strict=True)
    return next((at for at, kind in rows if kind == EventKind.CONTENT and kind in TOKEN_KINDS), None)


def failed(record: RequestRecord) -> str:
    """The words of a failure, never empty; empty for success."""
    if record.outcome is OutcomeKind.COMPLETED:
        return ""
    return record.error or str(record.reason) or str(record.outcome)


def duration_s(run: Run, records: list[RequestRecord]) -> float:
    """The length of the measured part."""
    if run.trailer is not None and run.trailer.duration_s:
        return run.trailer.duration_s
    if not records:
        return 0.0
    begin = min(record.start_unix_ns for record in records)
    return max(record.start_unix_ns + record.e2e_ns - begin for record in records) / 1e9
