"""One request as another tool tells it, and the record of it.

Whatever the tool does not tell is absent in the record. The one field that a record cannot be without is `e2e_ns`: a
tool that knows only the last token has that there, and its run names `e2e_ms` among what is absent.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import SlowThresholds
from tailrace.model.timeline import EventKind, Timeline

__all__ = ["Tally", "Told", "events_of", "reason_of", "record_of"]

_REMAINDER: Final = source(SourceKind.INFERRED, "remainder")
_OVER_NS: Final = SlowThresholds().gap_ns
_LONGEST_ERROR: Final = 300
_STATUS: Final = {
    400: Reason.BAD_REQUEST,
    401: Reason.UNAUTHORIZED,
    403: Reason.UNAUTHORIZED,
    404: Reason.UNKNOWN_MODEL,
    408: Reason.TOTAL_TIMEOUT,
    413: Reason.INPUT_TOO_LONG,
    429: Reason.RATE_LIMITED,
    503: Reason.ENGINE_LOADING,
}


class Tally:
    """What was set right or left out while a file was read, by sentence; `notes` tells it once each, with its count."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._plain: list[str] = []

    def count(self, sentence: str, n: int = 1) -> None:
        """`sentence` follows the number: "times to the first token are 0 or negative: missing stamps"."""
        if n:
            self._counts[sentence] += n

    def say(self, sentence: str) -> None:
        """A note without a number, once."""
        if sentence not in self._plain:
            self._plain.append(sentence)

    def notes(self) -> list[str]:
        """All of it."""
        return [f"{n} {sentence}" for sentence, n in self._counts.items()] + self._plain


class Told(msgspec.Struct, kw_only=True):
    """A request by another tool's account; durations in ns from its send."""

    request_id: str
    tool: str
    lane: str = "default"
    endpoint: str = ""
    model: str = ""
    start_unix_ns: int = 0
    offset_ns: int | None = None
    """Start of the run -> the send, or the intended send where that is known."""
    late_ns: int | None = None
    """Intended send -> send, of an open loop."""
    ttft_ns: int | None = None
    content_ns: int | None = None
    events: list[int] = []
    """Offsets of the events that carry tokens, the first token's first."""
    kinds: list[int] = []
    tokens: list[int] = []
    """Of each event, where they are known."""
    others: list[tuple[int, int]] = []
    """(offset, kind) of events without tokens."""
    last_ns: int | None = None
    """The last token."""
    end_ns: int | None = None
    """The end of the answer."""
    tpot_ns: int | None = None
    """Where the tool tells one by our definition, and the stamps for it are absent."""
    prompt_tokens: int | None = None
    prompt_source: str = ""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_source: str = ""
    max_tokens: int | None = None
    stream: bool = True
    reason: Reason = Reason.NONE
    error: str = ""
    status: int | None = None
    session_id: str = ""
    connect_ns: int | None = None
    reused: bool | None = None
    finish_reason: str = ""


def events_of(ttft_ns: int | None, gaps: list[int | None], tally: Tally) -> list[int]:
    """Offsets of the token events from the first one and the gaps; none where a stamp on the way is missing."""
    if ttft_ns is None:
        return []
    at = [ttft_ns]
    for gap in gaps:
        if gap is None:
            tally.count("streams have a gap that is no duration; their timelines were left out")
            return []
        at.append(at[-1] + gap)
    return at


def reason_of(text: str, status: int | None = None) -> Reason:
    """The reason of a failure that another tool words as `text` (a message, a label, the name of an exception)."""
    if status is not None and status in _STATUS:
        return _STATUS[status]
    words = text.lower()
    for marks, reason in _WORDS:
        if any(mark in words for mark in marks):
            return reason
    return Reason.ENGINE_ERROR


_WORDS: Final[tuple[tuple[tuple[str, ...], Reason], ...]] = (
    (("too many requests", "429", "rate limit"), Reason.RATE_LIMITED),
    (("cancel",), Reason.CLIENT_DISCONNECT),
    (("timeout", "timed out"), Reason.TOTAL_TIMEOUT),
    (("context length", "context window", "maximum context", "too long"), Reason.INPUT_TOO_LONG),
    (("refused", "cannot connect", "connection error", "connect call failed"), Reason.ENGINE_UNREACHABLE),
    (
        ("payload is not completed", "incomplete", "disconnected", "reset by peer", "never received", "closed"),
        Reason.STREAM_CUT,
    ),
)


def record_of(told: Told) -> RequestRecord:
    """The record. Its stages add up to its end: what the tool cannot tell apart before the first token is
    `unattributed`.
    """
    first, events = told.ttft_ns, told.events
    last = told.last_ns if told.last_ns is not None else events[-1] if events else None
    if first is not None and last is not None:
        last = max(first, last)
    end = max(told.end_ns or 0, last or 0, first or 0)
    known: dict[str, Any] = {"unattributed_ns": end, "stage_sources": {"unattributed": _REMAINDER}}
    reported = source(SourceKind.REPORTED, told.tool)
    if first is not None and last is not None:
        known = {
            "unattributed_ns": first,
            "decode_ns": last - first,
            "postprocess_ns": end - last,
            "stage_sources": {"unattributed": _REMAINDER, "decode": reported, "postprocess": _REMAINDER},
        }
    gaps = [after - before for before, after in itertools.pairwise(events)]
    if gaps:
        known |= {
            "chunk_gap_count": len(gaps),
            "chunk_gap_p50_ns": round(float(np.quantile(gaps, 0.5))),
            "chunk_gap_p95_ns": round(float(np.quantile(gaps, 0.95))),
            "chunk_gap_max_ns": max(gaps),
            "chunk_gap_over": sum(gap > _OVER_NS for gap in gaps),
            "chunk_gap_method": "exact",
        }
    tokens = told.output_tokens
    tpot = told.tpot_ns
    if first is not None and last is not None and tokens is not None and tokens > 1 and last > first:
        tpot = round((last - first) / (tokens - 1))
    rate = tokens / (last / 1e9) if tokens and last else None
    outcome = REASON_KIND[told.reason]
    died = ""
    if outcome is not OutcomeKind.COMPLETED:
        died = "decode" if first is not None else "prefill"
    return RequestRecord(
        vantage="client",
        request_id=told.request_id,
        session_id=told.session_id,
        lane=told.lane,
        endpoint=told.endpoint,
        model=told.model,
        prompt_tokens=told.prompt_tokens,
        prompt_tokens_source=told.prompt_source if told.prompt_tokens is not None else "",
        cached_tokens=told.cached_tokens,
        output_tokens=tokens,
        output_tokens_source=told.output_source if tokens is not None else "",
        max_tokens=told.max_tokens,
        stream=told.stream,
        start_unix_ns=told.start_unix_ns,
        run_offset_ns=told.offset_ns,
        intended_to_sent_ns=told.late_ns,
        e2e_ns=end,
        e2e_last_token_ns=last,
        ttft_ns=first,
        ttft_content_ns=told.content_ns,
        tpot_ns=tpot,
        tokens_per_s=rate,
        connect_ns=told.connect_ns,
        connection_reused=told.reused,
        outcome=outcome,
        reason=told.reason,
        died_in=died,
        error=told.error[:_LONGEST_ERROR],
        http_status=told.status,
        finish_reason=told.finish_reason,
        timeline=_timeline(told),
        **known,
    )


def _timeline(told: Told) -> Timeline | None:
    if not told.events:
        return None
    kinds = told.kinds or _same(int(EventKind.CONTENT), len(told.events))
    tokens = told.tokens or _same(-1, len(told.events))
    if not told.others:
        return Timeline(at_ns=told.events, kind=kinds, tokens=tokens)
    rows = [*zip(told.events, kinds, tokens, strict=True), *((at, kind, -1) for at, kind in told.others)]
    rows.sort(key=lambda row: row[0])
    return Timeline(at_ns=[row[0] for row in rows], kind=[row[1] for row in rows], tokens=[row[2] for row in rows])


@functools.lru_cache(maxsize=8192)
def _same(value: int, n: int) -> list[int]:
    """One list for all streams of a length: nobody changes a timeline, and there are millions of entries."""
    return [value] * n
