"""What a meter knows about one stream when it ends."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.measure.dialect import EngineFault
from tailrace.model.timeline import Timeline


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One stream, measured. `_at` fields are absolute stamps of our monotonic clock, others durations (ns)."""

    origin_at: int
    first_event_at: int | None = None
    """The first event that was not a comment: a role frame counts."""
    first_progress_at: int | None = None
    """The first frame that reports progress of the prefill (llama.cpp `prompt_progress`)."""
    first_token_at: int | None = None
    first_content_at: int | None = None
    last_token_at: int | None = None
    done_at: int | None = None
    ended_at: int | None = None
    """When the body ended, cleanly or not; `None` while it runs."""
    clean: bool = False
    """The body ended as HTTP says it should."""
    done: bool = False
    """The end marker came."""
    finish_reason: str = ""
    fault: EngineFault | None = None
    protocol_fault: str = ""
    """Why the bytes could not be read as events, in one sentence."""

    ttft_ns: int | None = None
    """Origin -> first event that carries a token (content, reasoning, tool call, refusal)."""
    ttft_content_ns: int | None = None
    e2e_last_token_ns: int | None = None
    events: int = 0
    """Events of every kind but comments."""
    comments: int = 0
    malformed: int = 0
    """Events whose data was no JSON of the dialect."""
    token_events: int = 0
    output_tokens: int | None = None
    output_tokens_source: str = ""
    """`usage`, `chunk_usage`, `chunks`; empty where no token came."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    chunk_gap_count: int = 0
    chunk_gap_p50_ns: int | None = None
    chunk_gap_p95_ns: int | None = None
    chunk_gap_max_ns: int | None = None
    chunk_gap_over: int = 0
    chunk_gap_method: str = ""
    """`exact`, or `histogram` (quantiles within 0.8 %; count and maximum are exact all the same)."""
    tpot_ns: int | None = None
    """(last token - first token) / (tokens - 1); absent below two tokens or two token events."""
    tokens_per_s: float | None = None
    """Output tokens / (origin -> last token)."""
    stall_count: int = 0
    stall_longest_ns: int | None = None
    slow: list[str] = []
    """The thresholds crossed: `ttft`, `tpot`, `stall` (gaps in a row), `gap` (one gap)."""
    client_blocked: list[tuple[int, int]] = []
    """Intervals (absolute) in which the client did not take bytes."""
    response_id: str = ""
    timings: dict[str, Any] | None = None
    """The engine's own per-request timings, as its dialect gave them."""
    timeline: Timeline | None = None

    @property
    def finished(self) -> bool:
        """Whether the engine said that the answer is whole: a finish reason or the end marker, and no error."""
        return self.fault is None and not self.protocol_fault and (self.done or bool(self.finish_reason))
