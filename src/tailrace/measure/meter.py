"""The stream meter: bytes with one timestamp a read in, what the stream did out.

The hot path is one complete one-line event a read. It makes no object beyond the decoded event and its meaning; it is
measured by `bench/meter.py`.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.measure.dialect import Dialect, EngineFault, Meaning, Usage
from tailrace.measure.event_log import EventLog
from tailrace.measure.sse import MAX_EVENT_BYTES, EventTooLarge, SseFramer
from tailrace.measure.stall import StallWatch
from tailrace.measure.summary import StreamSummary
from tailrace.model.thresholds import SlowThresholds
from tailrace.model.timeline import EventKind

_LF: Final = 10
_CR: Final = 13
_LAST_TOKEN_KIND: Final = int(EventKind.REFUSAL)
_CONTENT: Final = EventKind.CONTENT
_COMMENT: Final = int(EventKind.COMMENT)


class StreamMeter:
    """Measures one streamed answer.

    Args:
        dialect: how to read events.
        origin_ns: our monotonic clock when the request was received (gateway) or its send began (probe); latencies
            and the timeline count from it.
        thresholds: when the stream counts as slow.
        timeline_limit: events kept at most; older ones are thinned.
        max_event_bytes: bound of one event; a larger one ends the measuring with `protocol_fault`, never the relaying.
        cut: kinds of events whose byte ranges are collected in `cuts`, for a relay that takes out what it injected.

    """

    __slots__ = (
        "_at_append", "_dead", "_dialect", "_framer", "_limit", "_log", "_open", "_read", "_thresholds", "_usage",
        "_usage_final", "_watch", "_what_append", "blocked", "clean", "comments", "cut", "cuts", "done", "done_at",
        "ended_at", "events", "fault", "finish_reason", "first_content_ns", "first_event_ns", "first_progress_ns",
        "first_token_ns", "last_progress_ns", "last_token_ns", "malformed", "origin_ns", "protocol_fault",
        "response_id", "stall", "text_chars", "timings", "token_events", "ttft_slow",
    )  # fmt: skip

    def __init__(
        self,
        dialect: Dialect,
        *,
        origin_ns: int,
        thresholds: SlowThresholds | None = None,
        timeline_limit: int = 2048,
        max_event_bytes: int = MAX_EVENT_BYTES,
        cut: frozenset[EventKind] = frozenset(),
    ) -> None:
        self._dialect = dialect
        self._read = dialect.read
        self._framer = SseFramer(max_event_bytes)
        # The first block goes through the framer, which strips a byte-order mark.
        self._open = True
        self._dead = False
        self._thresholds = thresholds or SlowThresholds()
        self._log = EventLog(timeline_limit)
        self._limit = timeline_limit
        self._at_append = self._log.at.append
        self._what_append = self._log.what.append
        self._usage: Usage | None = None
        self._usage_final = False
        self.stall = StallWatch(self._thresholds)
        self._watch = self.stall.watch_ns
        self.origin_ns = origin_ns
        self.cut = cut
        self.cuts: list[tuple[int, int]] = []
        self.blocked: list[tuple[int, int]] = []
        self.first_event_ns: int | None = None
        self.first_progress_ns: int | None = None
        self.first_token_ns: int | None = None
        self.first_content_ns: int | None = None
        self.last_token_ns: int | None = None
        self.last_progress_ns: int | None = None
        self.done_at: int | None = None
        self.ended_at: int | None = None
        self.clean = False
        self.done = False
        self.finish_reason = ""
        self.fault: EngineFault | None = None
        self.protocol_fault = ""
        self.response_id = ""
        self.timings: dict[str, Any] | None = None
        self.ttft_slow = False
        self.events = 0
        self.comments = 0
        self.malformed = 0
        self.token_events = 0
        self.text_chars = 0

    # -- feeding

    def feed(self, data: bytes, now: int) -> None:
        """Bytes of one read, stamped `now`. Never raises."""
        size = len(data)
        if (
            not self._open
            and data.find(_LF) == size - 2
            and data[size - 1] == _LF
            and _CR not in data
            and data.startswith(b"data:")
        ):
            framer = self._framer
            framer.offset = end = framer.offset + size
            framer.block_start = end
            # A space after the colon is white space to the JSON reader.
            meaning = self._read(None, data[5 : size - 2])
            self._take(meaning, now)
            if self.cut and meaning.kind in self.cut:
                self.cuts.append((end - size, end))
            return
        self._feed_pieces(data, now)

    def _feed_pieces(self, data: bytes, now: int) -> None:
        if self._dead:
            return
        framer = self._framer
        try:
            events = framer.feed(data)
        except EventTooLarge as error:
            self._dead = self._open = True
            self.protocol_fault = str(error)
            return
        self._open = framer.open or framer.pristine
        read = self._read
        cut = self.cut
        for event in events:
            if event.data is None:
                self.comments += 1
                self._log_event(now, _COMMENT, -1)
                continue
            meaning = read(event.event, event.data)
            self._take(meaning, now)
            if meaning.kind in cut:
                self.cuts.append((event.start, event.end))

    def _take(self, meaning: Meaning, now: int) -> None:
        kind = meaning.kind
        if kind > _LAST_TOKEN_KIND:
            self._take_other(meaning, now)
            return
        self.events += 1
        self.text_chars += meaning.text
        last = self.last_token_ns
        tokens = -1
        if last is None:
            self._first_token(meaning, now)
            if meaning.usage is not None:
                tokens = self._note_usage(meaning)
        else:
            if meaning.usage is not None:
                tokens = self._note_usage(meaning)
            gap = now - last
            if gap > self._watch:
                self.stall.judge(gap, self._log.recent_gaps(self._thresholds.window))
            elif self.stall.run:
                self.stall.end_run()
        self.last_token_ns = self.last_progress_ns = now
        self.token_events += 1
        if self.first_content_ns is None and (kind is _CONTENT or meaning.has_content):
            self.first_content_ns = now
        if meaning.finish_reason or meaning.timings is not None:
            self._note_rest(meaning, now)
        self._at_append(now)
        self._what_append(kind | (tokens + 1) << 4)
        if len(self._log.at) >= self._limit:
            self._log.thin()

    def _take_other(self, meaning: Meaning, now: int) -> None:
        kind = meaning.kind
        if kind is EventKind.COMMENT:
            self.comments += 1
            self._log_event(now, _COMMENT, -1)
            return
        self.events += 1
        if self.first_event_ns is None:
            self.first_event_ns = now
        if kind is EventKind.OTHER:
            self.malformed += 1
        elif kind is EventKind.PROGRESS:
            if self.first_progress_ns is None:
                self.first_progress_ns = now
            self.last_progress_ns = now
        tokens = self._note_usage(meaning) if meaning.usage is not None else -1
        if kind is EventKind.USAGE:
            # A total that comes by itself brought no token.
            tokens = -1
        elif tokens > 0:
            # An incomplete character is held back by the detokenizer: a token without text is progress all the same.
            self.last_progress_ns = now
        self._note_rest(meaning, now)
        self._log_event(now, int(kind), tokens)

    def _log_event(self, now: int, kind: int, tokens: int) -> None:
        self._at_append(now)
        self._what_append(kind | (tokens + 1) << 4)
        if len(self._log.at) >= self._limit:
            self._log.thin()

    def _first_token(self, meaning: Meaning, now: int) -> None:
        self.first_token_ns = now
        if self.first_event_ns is None:
            self.first_event_ns = now
        if meaning.response_id and not self.response_id:
            self.response_id = meaning.response_id
        if now - self.origin_ns > self._thresholds.ttft_ns:
            self.ttft_slow = True

    def _note_usage(self, meaning: Meaning) -> int:
        """Merge the counts; how many tokens the event brought, -1 where that cannot be known."""
        new = meaning.usage
        if new is None:
            return -1
        old = self._usage
        before = None if old is None else old.completion
        if meaning.usage_final:
            self._usage_final = True
        if old is not None:
            new = Usage(
                old.prompt if new.prompt is None else new.prompt,
                before if new.completion is None else new.completion,
                old.cached if new.cached is None else new.cached,
                old.reasoning if new.reasoning is None else new.reasoning,
            )
        self._usage = new
        if new.completion is None:
            return -1
        if before is None:
            # The first count of all: it is this event's own only if no token came before it.
            return new.completion if not self.token_events else -1
        return max(new.completion - before, 0)

    def _note_rest(self, meaning: Meaning, now: int) -> None:
        if meaning.response_id and not self.response_id:
            self.response_id = meaning.response_id
        if meaning.finish_reason:
            self.finish_reason = meaning.finish_reason
        if meaning.timings is not None and meaning.kind is not EventKind.PROGRESS:
            self.timings = meaning.timings
        if meaning.fault is not None and self.fault is None:
            self.fault = meaning.fault
        if meaning.done and not self.done:
            self.done = True
            self.done_at = now

    def client_blocked(self, start_ns: int, end_ns: int) -> None:
        """The client did not take bytes from `start_ns` to `end_ns` (absolute)."""
        if end_ns > start_ns:
            self.blocked.append((start_ns, end_ns))

    def end(self, now: int, *, clean: bool) -> None:
        """The body ended: `clean` if HTTP says it is whole."""
        if self.ended_at is not None:
            return
        if clean and not self._dead:
            event = self._framer.finish()
            if event is not None and event.data is not None:
                self._take(self._read(event.event, event.data), now)
        self.ended_at = now
        self.clean = clean

    # -- in flight

    @property
    def offset(self) -> int:
        """Bytes fed."""
        return self._framer.offset

    @property
    def block_start(self) -> int:
        """Where, in the bytes fed, the event that is still incomplete begins."""
        return self._framer.offset if self._dead else self._framer.block_start

    @property
    def tokens(self) -> int:
        """Output tokens so far, by the best source there is."""
        usage = self._usage
        if usage is not None and usage.completion is not None:
            return usage.completion
        return self.token_events

    @property
    def error(self) -> EngineFault | None:
        """The error that the engine sent inside the stream."""
        return self.fault

    @property
    def slow(self) -> list[str]:
        """The thresholds crossed so far, in the order `ttft`, `tpot`, `stall`, `gap`."""
        out = ["ttft"] if self.ttft_slow else []
        tpot = self._tpot()
        if self.ended_at is not None and tpot is not None and tpot > self._thresholds.tpot_ns:
            out.append("tpot")
        out.extend(rule for rule in ("stall", "gap") if rule in self.stall.by_rule)
        return out

    def check(self, now: int) -> bool:
        """Whether a threshold is crossed at `now`, the wait that is still open included. For a sweeper."""
        last = self.last_token_ns
        if last is None:
            if now - self.origin_ns > self._thresholds.ttft_ns:
                self.ttft_slow = True
        elif (
            self.ended_at is None
            and now - last > self._watch
            and not self.finish_reason
            and self.stall.is_single(now - last, self._log.recent_gaps(self._thresholds.window))
        ):
            return True
        return self.ttft_slow or bool(self.stall.by_rule)

    # -- at the end

    def _tokens_with_source(self) -> tuple[int | None, str]:
        usage = self._usage
        if usage is not None and usage.completion is not None:
            return usage.completion, "usage" if self._usage_final else "chunk_usage"
        return (self.token_events, "chunks") if self.token_events else (None, "")

    def _tpot(self) -> int | None:
        tokens, _ = self._tokens_with_source()
        if tokens is None or tokens < 2 or self.token_events < 2:
            return None
        if self.first_token_ns is None or self.last_token_ns is None:
            return None
        return round((self.last_token_ns - self.first_token_ns) / (tokens - 1))

    def summary(self) -> StreamSummary:
        """Everything that is known now. Cheap enough for a live view, meant for the end."""
        log = self._log
        log.settle()
        gaps = log.gaps
        origin = self.origin_ns
        first, last, content = self.first_token_ns, self.last_token_ns, self.first_content_ns
        tokens, source = self._tokens_with_source()
        usage = self._usage or Usage()
        until_last = None if last is None else last - origin
        return StreamSummary(
            origin_at=origin,
            first_event_at=self.first_event_ns,
            first_progress_at=self.first_progress_ns,
            first_token_at=first,
            first_content_at=content,
            last_token_at=last,
            done_at=self.done_at,
            ended_at=self.ended_at,
            clean=self.clean,
            done=self.done,
            finish_reason=self.finish_reason,
            fault=self.fault,
            protocol_fault=self.protocol_fault,
            ttft_ns=None if first is None else first - origin,
            ttft_content_ns=None if content is None else content - origin,
            e2e_last_token_ns=until_last,
            events=self.events,
            comments=self.comments,
            malformed=self.malformed,
            token_events=self.token_events,
            output_tokens=tokens,
            output_tokens_source=source,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            reasoning_tokens=usage.reasoning,
            text_chars=self.text_chars,
            chunk_gap_count=gaps.count,
            chunk_gap_p50_ns=gaps.quantile(0.5),
            chunk_gap_p95_ns=gaps.quantile(0.95),
            chunk_gap_max_ns=gaps.max,
            chunk_gap_over=self.stall.over,
            chunk_gap_method=gaps.method,
            tpot_ns=self._tpot(),
            tokens_per_s=tokens * 1e9 / until_last if tokens and until_last and until_last > 0 else None,
            stall_count=self.stall.count,
            stall_longest_ns=self.stall.longest_ns,
            slow=self.slow,
            client_blocked=list(self.blocked),
            response_id=self.response_id,
            timings=self.timings,
            timeline=log.timeline(origin),
        )


def summarise_body(meaning: Meaning, *, origin_ns: int, now: int, clean: bool = True) -> StreamSummary:
    """The summary of an answer that came as one body. It has no first token: nobody could see one."""
    usage = meaning.usage or Usage()
    return StreamSummary(
        origin_at=origin_ns,
        ended_at=now,
        clean=clean,
        done=meaning.done and clean,
        done_at=now if meaning.done and clean else None,
        finish_reason=meaning.finish_reason,
        fault=meaning.fault,
        output_tokens=usage.completion,
        output_tokens_source="usage" if usage.completion is not None else "",
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cached,
        reasoning_tokens=usage.reasoning,
        text_chars=meaning.text,
        response_id=meaning.response_id,
        timings=meaning.timings,
    )
