"""The same run in another tool's words: its headline numbers under its own definitions, beside ours.

Each definition was read in the tool's source, in the version that `TOOLS` names. Nothing of ours is redefined: this is
how to hold a Tailrace run beside a number that somebody else's tool has printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import summarise_run
from tailrace.analyze.seen_stream import Frame, Seen, seen
from tailrace.model.errors import InputError
from tailrace.model.measurement import MetricSummary
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import EventKind
from tailrace.store.run_file import Run

__all__ = ["TOOLS", "TheirMetric", "ToolView", "as_tool", "check_tool", "their_values"]

Floats = NDArray[np.float64]
Values = float | list[float] | None
PERCENTILES: Final = (50, 90, 95, 99)


class Definition(NamedTuple):
    """A metric of another tool."""

    name: str
    """As the tool prints it."""
    of: Callable[[Seen], Values]
    """One value a request, or many that are pooled; `None` where the tool has none."""
    ours: str
    """The metric of ours that it is nearest to."""
    differs: str
    """How it differs from ours, in one line; empty where it is the same."""
    weight: Callable[[Seen], float] | None = None
    unit: str = "ms"


class Tool(NamedTuple):
    """A tool, in the version whose source was read."""

    title: str
    definitions: tuple[Definition, ...]
    counts_errors: bool = False
    """An error inside of a stream is a success to it."""
    connects: bool = False
    """Opening the connection is within its times."""
    method: Literal["linear", "inverted_cdf"] = "linear"
    """How it takes a percentile."""
    peak_in_frames: bool = False
    """It prints a peak of output tokens a second that counts frames."""
    notes: tuple[str, ...] = ()


class TheirMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric under their definition, and the one of ours beside it."""

    name: str
    unit: str = "ms"
    n: int
    """Values, or with weights the sum of them, as the tool counts."""
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    ours_name: str = ""
    ours: MetricSummary | None = None
    differs: str = ""


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A run in another tool's words."""

    schema: int = 1
    tool: str
    version: str
    requests: int
    successes: int
    """What the tool would have counted as such."""
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    peak_frames_per_s: float | None = None
    """What it prints as its peak of output tokens a second."""
    metrics: list[TheirMetric]
    notes: list[str] = []


def their_values(tool: str, records: Iterable[RequestRecord]) -> dict[str, Floats]:
    """Every value under the definitions of `tool`, by its own names; pooled ones flat, absent ones left out."""
    chosen = _tool(tool)
    streams = _successes(chosen, [seen(record) for record in records])
    return {one.name: _gather(one, streams, chosen)[0] for one in chosen.definitions}


def as_tool(tool: str, run: Run) -> ToolView:
    """The view. InputError for a tool that is not known."""
    chosen = _tool(tool)
    records = [record for record in run.records if record.lane != "warmup" and (record.run_offset_ns or 0) >= 0]
    every = [seen(record) for record in records]
    streams = _successes(chosen, every)
    summary = summarise_run(run)
    notes = list(chosen.notes)
    without = sum(not one.frames for one in streams)
    if without:
        notes.append(f"{without} of {len(streams)} requests have no timeline here, and are in none of these numbers")
    thinned = sum(record.timeline is not None and bool(record.timeline.thinned) for record in records)
    if thinned:
        notes.append(f"{thinned} timelines were thinned: some of their gaps here are sums")
    if run.header.granularity != "event":
        notes.append(f"{run.header.source} kept frames with tokens only: what other frames do to a number is not in it")
    metrics = []
    for one in chosen.definitions:
        values, weights = _gather(one, streams, chosen)
        metrics.append(_metric(one, values, weights, chosen, summary.metrics.get(one.ours)))
    seconds = run.trailer.duration_s if run.trailer and len(records) == len(run.records) else 0.0
    if not seconds and every:
        seconds = (max(one.start_ms + one.end_ms for one in every) - min(one.start_ms for one in every)) / 1e3
    tokens = sum(_tokens(tool, one) or 0 for one in streams)
    return ToolView(
        tool=tool,
        version=chosen.title,
        requests=len(every),
        successes=len(streams),
        requests_per_s=len(streams) / seconds if seconds else None,
        output_tokens_per_s=tokens / seconds if seconds else None,
        peak_frames_per_s=_peak(streams) if chosen.peak_in_frames else None,
        metrics=metrics,
        notes=notes,
    )


def check_tool(name: str) -> None:
    """InputError for a tool that is not known, before anything is run for its sake."""
    _tool(name)


def _tool(name: str) -> Tool:
    if name not in TOOLS:
        raise InputError(f"there is no view of {name!r}", place="--as", remedy=f"Use one of: {', '.join(TOOLS)}.")
    return TOOLS[name]


def _successes(tool: Tool, streams: list[Seen]) -> list[Seen]:
    return [one for one in streams if one.done or (tool.counts_errors and one.error_frame)]


def _gather(one: Definition, streams: list[Seen], tool: Tool) -> tuple[Floats, Floats | None]:
    values: list[float] = []
    weights: list[float] = []
    for stream in streams:
        if not stream.frames:
            continue
        value = one.of(_connected(stream) if tool.connects else stream)
        if value is None:
            continue
        several = value if isinstance(value, list) else [value]
        values += several
        if one.weight is not None:
            weights += [one.weight(stream)] * len(several)
    return np.asarray(values, dtype=np.float64), np.asarray(weights) if one.weight is not None else None


def _connected(stream: Seen) -> Seen:
    """With the clock started before the connection was opened."""
    wait = stream.connect_ms
    if not wait:
        return stream
    frames = [frame._replace(ms=frame.ms + wait) for frame in stream.frames]
    return stream._replace(frames=frames, end_ms=stream.end_ms + wait)


def _metric(
    one: Definition, values: Floats, weights: Floats | None, tool: Tool, ours: MetricSummary | None
) -> TheirMetric:
    if not values.size:
        return TheirMetric(name=one.name, unit=one.unit, n=0, ours_name=one.ours, ours=ours, differs=one.differs)
    if weights is None:
        places = np.percentile(values, PERCENTILES, method=tool.method)
        mean, n = float(values.mean()), int(values.size)
    else:
        places = _weighted(values, weights)
        mean, n = float(np.average(values, weights=weights)), int(weights.sum())
    p50, p90, p95, p99 = (float(place) for place in places)
    return TheirMetric(
        name=one.name,
        unit=one.unit,
        n=n,
        mean=mean,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
        ours_name=one.ours,
        ours=ours,
        differs=one.differs,
    )


def _weighted(values: Floats, weights: Floats) -> Floats:
    """The smallest value at which the weights reach the share, as GuideLLM's distribution takes it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    at = np.searchsorted(reached, np.asarray(PERCENTILES) / 100 - 1e-12)
    chosen: Floats = values[order][np.minimum(at, values.size - 1)]
    return chosen


def _peak(streams: list[Seen]) -> float | None:
    """The most frames with tokens in one second of the run."""
    at = [int((one.start_ms + frame.ms) / 1e3) for one in streams for frame in one.token_frames]
    return float(np.bincount(at).max()) if at else None


# -- definitions


def _first(frames: list[Frame]) -> float | None:
    return frames[0].ms if frames else None


def _last(frames: list[Frame]) -> float | None:
    return frames[-1].ms if frames else None


def _gaps(frames: list[Frame]) -> list[float]:
    return [after.ms - before.ms for before, after in pairwise(frames)]


def _per_token(start: float | None, end: float | None, tokens: int | None, *, less: int = 1) -> float | None:
    if start is None or end is None or tokens is None or tokens <= less:
        return None
    return (end - start) / (tokens - less)


def _counted(stream: Seen) -> list[Frame]:
    """vLLM: text, reasoning, tool calls, and the frame whose text is empty without naming a role."""
    return stream.of(EventKind.CONTENT, EventKind.REASONING, EventKind.TOOL, EventKind.REFUSAL, EventKind.EMPTY)


def _answer(stream: Seen) -> list[Frame]:
    return stream.of(EventKind.CONTENT)


def _tokens(tool: str, stream: Seen) -> int | None:
    if tool == "sglang" and not stream.from_usage and stream.asked is not None:
        return stream.asked
    return stream.tokens


def _sglang_tokens(stream: Seen) -> int | None:
    return _tokens("sglang", stream)


def _done_at(stream: Seen) -> float:
    """GuideLLM leaves the stream at `[DONE]`; without one it reads to the end."""
    return _first(stream.of(EventKind.DONE)) or stream.end_ms


def _token_gaps(stream: Seen) -> list[float] | None:
    """inference-perf: all tokens of a frame have the frame's time, so that the gaps inside of it are zeros."""
    frames = _answer(stream)
    if any(frame.tokens < 1 for frame in frames):
        return None
    at = [frame.ms for frame in frames for _ in range(frame.tokens)]
    return [after - before for before, after in pairwise(at)]


_CONNECT: Final = "its clock starts before the connection is opened"
_TO_DONE: Final = "ends with the last frame of any kind, usage and [DONE] included"
_PER_DONE: Final = "(E2E - TTFT) / (n - 1) with an E2E that ends with [DONE]: a late usage frame makes it larger"
_FIRST_IS_ONE: Final = "(E2E - TTFT) / (n - 1), the first frame taken for one token"
_CONTENT_ONLY: Final = "the first answer text: reasoning does not count"


def _usage_at(stream: Seen) -> float:
    return _last(stream.of(EventKind.USAGE)) or stream.last_ms


TOOLS: Final[dict[str, Tool]] = {
    "vllm": Tool(
        title="vllm bench serve 0.33.0",
        connects=True,
        counts_errors=True,
        peak_in_frames=True,
        definitions=(
            Definition("TTFT", lambda s: _first(_counted(s)), "ttft_ms", f"an empty text frame counts; {_CONNECT}"),
            Definition(
                "TPOT",
                lambda s: _per_token(_first(_counted(s)), _last(_counted(s)), s.tokens),
                "tpot_ms",
                "the same, from its TTFT",
            ),
            Definition("ITL", lambda s: _gaps(_counted(s)), "chunk_gap_ms", "per frame, not per token: our chunk gap"),
            Definition(
                "E2EL", lambda s: _last(_counted(s)), "e2e_last_token_ms", "our E2E to the last token; " + _CONNECT
            ),
        ),
        notes=(
            "an error inside of a stream counts as a success, with as many tokens as came",
            "0.33.0 does not know the field reasoning_content: such a stream begins with its first answer text there",
        ),
    ),
    "sglang": Tool(
        title="sglang.bench_serving 0.5.23",
        connects=True,
        counts_errors=True,
        peak_in_frames=True,
        definitions=(
            Definition(
                "TTFT", lambda s: _first(s.text_frames), "ttft_ms", f"{_CONNECT}, and it opens one for each request"
            ),
            Definition(
                "TPOT",
                lambda s: _per_token(_first(s.text_frames), s.last_ms if s.text_frames else None, _sglang_tokens(s)),
                "tpot_ms",
                _PER_DONE,
            ),
            Definition(
                "ITL", lambda s: _gaps(s.text_frames), "chunk_gap_ms", "per frame, not per token: our chunk gap"
            ),
            Definition("E2E Latency", lambda s: s.last_ms, "e2e_ms", _TO_DONE),
        ),
        notes=("without usage it takes the length that was asked for as the length of the answer",),
    ),
    "guidellm": Tool(
        title="GuideLLM 0.8.1",
        method="inverted_cdf",
        definitions=(
            Definition("time_to_first_token_ms", lambda s: _first(s.token_frames), "ttft_ms", ""),
            Definition("time_to_first_output_token_ms", lambda s: _first(_answer(s)), "ttft_content_ms", ""),
            Definition(
                "inter_token_latency_ms",
                lambda s: _per_token(_first(s.token_frames), _last(s.token_frames), s.tokens),
                "tpot_ms",
                "our TPOT under another name; in the summary each request counts n - 1 times, and stalls are averaged",
                weight=lambda s: float((s.tokens or 1) - 1),
            ),
            Definition(
                "time_per_output_token_ms",
                lambda s: _per_token(0.0, _last(s.token_frames), s.tokens, less=0),
                "tpot_ms",
                "time to the last token / n: TTFT is in it",
                weight=lambda s: float(s.tokens or 0),
            ),
            Definition("request_latency", _done_at, "e2e_ms", "ends at [DONE]; printed in seconds, here in ms"),
        ),
    ),
    "aiperf": Tool(
        title="AIPerf 0.13.0",
        connects=True,
        counts_errors=True,
        definitions=(
            Definition("time_to_first_token", lambda s: _first(s.token_frames), "ttft_ms", _CONNECT),
            Definition("time_to_first_output_token", lambda s: _first(_answer(s)), "ttft_content_ms", _CONNECT),
            Definition(
                "inter_token_latency",
                lambda s: _per_token(_first(s.token_frames), _last(s.token_frames), s.tokens),
                "tpot_ms",
                f"{_FIRST_IS_ONE}; one value a request: stalls are averaged",
            ),
            Definition("inter_chunk_latency", lambda s: _gaps(s.token_frames), "chunk_gap_ms", ""),
            Definition(
                "request_latency",
                lambda s: _last(s.token_frames),
                "e2e_last_token_ms",
                "our E2E to the last token; " + _CONNECT,
            ),
        ),
        notes=(
            "an error inside of a stream counts as a success unless it is named by `event: error`",
            "it counts tokens with its own tokenizer; here they are ours",
        ),
    ),
    "genai-perf": Tool(
        title="GenAI-Perf 0.0.16",
        definitions=(
            Definition("time_to_first_token", lambda s: _first(s.token_frames), "ttft_ms", ""),
            Definition(
                "inter_token_latency",
                lambda s: _per_token(_first(s.token_frames), s.last_ms if s.token_frames else None, s.tokens),
                "tpot_ms",
                _PER_DONE,
            ),
            Definition("request_latency", lambda s: s.last_ms, "e2e_ms", _TO_DONE),
        ),
        notes=("it counts tokens with its own tokenizer; here they are ours",),
    ),
    "inference-perf": Tool(
        title="inference-perf 7de5ef2",
        definitions=(
            Definition("time_to_first_token", lambda s: _first(_answer(s)), "ttft_ms", _CONTENT_ONLY),
            Definition(
                "time_per_output_token",
                lambda s: _per_token(_first(_answer(s)), _last(_answer(s)), s.tokens),
                "tpot_ms",
                "from the first to the last answer text: reasoning does not count",
            ),
            Definition(
                "normalized_time_per_output_token",
                lambda s: _per_token(0.0, s.end_ms, s.tokens, less=0),
                "tpot_ms",
                "E2E / n: TTFT is in it",
            ),
            Definition(
                "inter_token_latency",
                _token_gaps,
                "itl_ms",
                "zeros between the tokens of one frame, the whole gap once; ours shares it among them",
            ),
            Definition("request_latency", lambda s: s.end_ms, "e2e_ms", ""),
        ),
        notes=("it counts tokens of each frame with a tokenizer; here they are ours",),
    ),
    "llmperf": Tool(
        title="LLMPerf f1d6bed",
        definitions=(
            Definition("ttft_s", lambda s: _first(_answer(s)), "ttft_ms", f"{_CONTENT_ONLY}; printed in seconds"),
            Definition(
                "inter_token_latency_s",
                lambda s: _per_token(0.0, _last(_answer(s)), s.tokens, less=0),
                "tpot_ms",
                "time to the last text / n: TTFT is in it; printed in seconds",
            ),
            Definition("end_to_end_latency_s", lambda s: s.end_ms, "e2e_ms", "printed in seconds"),
        ),
        notes=("it counts tokens with one fixed tokenizer; here they are ours",),
    ),
    "evalscope": Tool(
        title="EvalScope 1.14.1",
        definitions=(
            Definition("TTFT", lambda s: _first(s.token_frames), "ttft_ms", ""),
            Definition(
                "TPOT",
                lambda s: _per_token(_first(s.token_frames), s.last_ms if s.token_frames else None, s.tokens),
                "tpot_ms",
                _PER_DONE,
            ),
            Definition(
                "ITL", lambda s: _gaps(s.token_frames), "chunk_gap_ms", "per frame, not per token: our chunk gap"
            ),
            Definition("Latency", lambda s: s.last_ms, "e2e_ms", _TO_DONE),
        ),
    ),
    "genai-bench": Tool(
        title="genai-bench 0.0.5",
        definitions=(
            Definition("ttft", lambda s: _first(s.text_frames), "ttft_ms", "printed in seconds"),
            Definition(
                "tpot",
                lambda s: _per_token(_first(s.text_frames), _usage_at(s) if s.text_frames else None, s.tokens),
                "tpot_ms",
                "(E2E - TTFT) / (n - 1) with an E2E that ends with the usage frame",
            ),
            Definition("e2e_latency", _usage_at, "e2e_ms", "ends with the usage frame"),
        ),
    ),
}
"""Name of the view -> what the tool prints, and how."""
