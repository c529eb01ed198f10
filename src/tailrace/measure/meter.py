"""The stream meter: bytes with one timestamp a read in, what the stream did out.

The hot path is one complete event a read. An event that differs from one read before in nothing but its text is not
parsed again (`StreamMeter._learn`); any other one-line event costs one typed decode. `bench/meter.py` measures both.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.measure.dialect import Dialect, EngineFault, Meaning, Usage
from tailrace.measure.event_log import KIND_BITS, EventLog
from tailrace.measure.sse import MAX_EVENT_BYTES, EventTooLarge, SseFramer
from tailrace.measure.stall import StallWatch
from tailrace.measure.summary import StreamSummary
from tailrace.model.thresholds import SlowThresholds
from tailrace.model.timeline import EventKind, Timeline

_LF: Final = 10
_CR: Final = 13
_BACKSLASH: Final = 92
_LAST_TOKEN_KIND: Final = int(EventKind.REFUSAL)
_CONTENT: Final = EventKind.CONTENT
_COMMENT: Final = int(EventKind.COMMENT)
_LESSONS: Final = 8
_LONGEST_LESSON: Final = 4096
_KIND_BITS: Final = KIND_BITS


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
        "_at", "_completion", "_dead", "_dialect", "_framer", "_hits", "_kind", "_lessons", "_log",
        "_max_event_bytes", "_open", "_other_events", "_other_progress_ns", "_prefix", "_read", "_room", "_suffix",
        "_text_end", "_text_start", "_thresholds", "_usage_final", "_watch", "_what", "_what_append", "blocked",
        "cached_tokens", "clean", "comments", "cut", "cuts", "done", "done_at", "ended_at", "fault", "finish_reason",
        "first_content_ns", "first_event_ns", "first_progress_ns", "first_token_ns", "last_token_ns", "malformed",
        "origin_ns", "prompt_tokens", "protocol_fault", "reasoning_tokens", "response_id", "stall", "timings",
        "token_events", "ttft_slow",
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
        self._max_event_bytes = max_event_bytes
        # The first block goes through the framer, which strips a byte-order mark.
        self._open = True
        self._dead = False
        self._thresholds = thresholds or SlowThresholds()
        self._log = EventLog(timeline_limit)
        self._room = self._log.room
        self._at = self._log.at
        self._what = self._log.what
        self._what_append = self._what.append
        self._prefix: bytes | None = None
        self._suffix = b""
        self._text_start = self._text_end = 0
        self._kind = _CONTENT
        self._hits = 0
        self._lessons = _LESSONS
        self._completion: int | None = None
        self._usage_final = False
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
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
        self._other_progress_ns: int | None = None
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
        self._other_events = 0
        self.comments = 0
        self.malformed = 0
        self.token_events = 0

    # -- feeding

    def feed(self, data: bytes, now: int) -> None:  # noqa: C901  (inlined: a call costs what the budget cannot spare)
        """Bytes of one read, stamped `now`. Never raises."""
        if self._open:
            joined = None if self._dead else self._framer.take_back(data)
            if joined is None:
                self._feed_pieces(data, now)
                return
            data = joined
            self._open = False
        prefix = self._prefix
        if prefix is not None and data.startswith(prefix) and data.endswith(self._suffix):
            # Byte for byte an event that was read before, but for its text. A text without quotes, escapes and
            # control characters leaves everything else as it was: see `_learn`.
            try:
                text = data[self._text_start : self._text_end].decode()
            except UnicodeDecodeError:
                text = ""
            if text.isprintable() and text and '"' not in text and "\\" not in text:
                framer = self._framer
                framer.offset = framer.block_start = framer.offset + len(data)
                self._hits += 1
                self._token(self._kind, -1, now)
                return
        size = len(data)
        if (
            data.find(_LF) == size - 2
            and size - 2 <= self._max_event_bytes
            and data[size - 1] == _LF
            and _CR not in data
            and data.startswith(b"data:")
        ):
            # A space after the colon is white space to the JSON reader.
            self._feed_one(data, 5, size - 2, None, now)
            return
        if data.startswith(b"event: ") and size - 2 <= self._max_event_bytes and _CR not in data:
            name_end = data.find(_LF)
            # The first line end after the name's own is followed by the last: two lines and a blank one.
            if (
                data.find(_LF, name_end + 1) == size - 2
                and data[size - 1] == _LF
                and data.startswith(b"data: ", name_end + 1)
            ):
                self._feed_one(data, name_end + 7, size - 2, data[7:name_end], now)
                return
        # Several events in one read: by the rule that any split of the bytes reads alike, one at a time.
        blank = b"\r\n\r\n" if _CR in data else b"\n\n"
        blocks = data.split(blank)
        rest = blocks.pop()
        if len(blocks) > 1 or (blocks and rest):
            for block in blocks:
                self.feed(block + blank, now)
            data = rest
        if data:
            self._feed_pieces(data, now)

    def pattern(self) -> tuple[bytes, bytes, int, int] | None:
        """What the next event will be like, if it is like the last ones: (begin, end, where its text begins and ends).

        The text's end counts from the event's. A relay may then take such events itself (`event_stamps`, `note_same`):
        whole ones in one read, with a printable text without quotes and backslashes, at most `stall.watch_ns` after
        the last one and while `event_stamps` has `room`. `None` where nothing is known, or the next has to be judged.
        """
        if (
            self._prefix is None
            or self._open
            or self.stall.run
            or self.last_token_ns is None
            or (not self._kind and self.first_content_ns is None)
        ):
            return None
        return self._prefix, self._suffix, self._text_start, self._text_end

    @property
    def event_stamps(self) -> list[int]:
        """The stamps (absolute ns) of the last events: whoever takes an event by `pattern` appends its own."""
        return self._at

    @property
    def room(self) -> int:
        """The length of `event_stamps` at which it is folded; the event that reaches it has to be fed."""
        return self._room

    def note_same(self, count: int) -> None:
        """`count` events of the last pattern were taken, their stamps appended."""
        self._what.extend([int(self._kind)] * count)
        self.token_events += count
        self._hits += count
        self.last_token_ns = self._at[-1]

    def _feed_one(self, data: bytes, start: int, end: int, event: bytes | None, now: int) -> None:
        """A read that is exactly one event, with its data at [start, end)."""
        framer = self._framer
        framer.offset = framer.block_start = stop = framer.offset + len(data)
        meaning = self._read(event, data[start:end])
        self._take(meaning, now)
        if self._lessons:
            self._learn(data, start, end, event, meaning)
        if self.cut and meaning.kind in self.cut:
            self.cuts.append((stop - len(data), stop))

    def _learn(self, data: bytes, start: int, end: int, event: bytes | None, meaning: Meaning) -> None:
        """Remember a plain token event, so that the next one like it need not be parsed.

        Engines send one chunk over and over with nothing but its text changed. Where the text stands once, as a JSON
        string, in a read that is exactly one event, any other printable text in its place gives the same event with
        another text: neither the framing nor the JSON around it can change. Streams in which something else changes
        too (a running number, usage) never profit; they stop being learned from after a few lessons.
        """
        if meaning.kind > _LAST_TOKEN_KIND:
            return
        if self._hits:
            self._lessons = _LESSONS
            self._hits = 0
        self._lessons -= 1
        if not self._lessons:
            self._prefix = None
            return
        if meaning.usage is not None or len(data) > _LONGEST_LESSON or _BACKSLASH in data:
            # With an escape anywhere, what stands in quotes may not be the text, nor the text stand as it is.
            return
        text = self._dialect.plain_text(event, data[start:end])
        if not text or not text.isprintable() or '"' in text:
            return
        quoted = b'"%b"' % text.encode()
        at = data.find(quoted, start, end)
        if at < 0 or data.find(quoted, at + 1, end) >= 0:
            return
        self._text_start = at + 1
        self._text_end = at + len(quoted) - 1 - len(data)
        self._prefix = data[: self._text_start]
        self._suffix = data[self._text_end :]
        self._kind = meaning.kind

    def _feed_pieces(self, data: bytes, now: int) -> None:
        framer = self._framer
        if self._dead:
            framer.offset += len(data)
            return
        whole = not self._open
        try:
            events = framer.feed(data)
            self._open = framer.open or framer.pristine
        except EventTooLarge as error:
            self._dead = self._open = True
            self.protocol_fault = str(error)
            events = error.events
        read = self._read
        cut = self.cut
        for event in events:
            if event.data is None:
                self.comments += 1
                self._log_event(now, _COMMENT, -1)
                continue
            meaning = read(event.event, event.data)
            self._take(meaning, now)
            if cut and meaning.kind in cut:
                self.cuts.append((event.start, event.end))
            if whole and self._lessons and event.end - event.start == len(data) and data[-1] == _LF:
                at = data.find(event.data)
                if at >= 0 and data.find(event.data, at + 1) < 0:
                    self._learn(data, at, at + len(event.data), event.event, meaning)

    def _take(self, meaning: Meaning, now: int) -> None:
        kind = meaning.kind
        if kind > _LAST_TOKEN_KIND:
            self._take_other(meaning, now)
            return
        usage = meaning.usage
        tokens = -1 if usage is None else self._note_usage(usage, final=meaning.usage_final)
        if meaning.has_content and self.first_content_ns is None:
            self.first_content_ns = now
        if meaning.finish_reason or meaning.timings is not None or (meaning.response_id and not self.response_id):
            self._note_rest(meaning, now)
        self._token(kind, tokens, now)

    def _token(self, kind: int, tokens: int, now: int) -> None:
        self.token_events += 1
        last = self.last_token_ns
        self.last_token_ns = now
        if last is None:
            self.first_token_ns = now
            if self.first_event_ns is None:
                self.first_event_ns = now
            if now - self.origin_ns > self._thresholds.ttft_ns:
                self.ttft_slow = True
        else:
            gap = now - last
            if gap > self._watch:
                self.stall.judge(gap, self._log.recent_gaps(self._thresholds.window))
            elif self.stall.run:
                self.stall.end_run()
        if self.first_content_ns is None and not kind:
            self.first_content_ns = now
        self._what_append(kind | (tokens + 1) << _KIND_BITS)
        at = self._at
        at.append(now)
        if len(at) >= self._room:
            self._room = self._log.fold()

    def _take_other(self, meaning: Meaning, now: int) -> None:
        kind = meaning.kind
        if kind is EventKind.COMMENT:
            self.comments += 1
            self._log_event(now, _COMMENT, -1)
            return
        self._other_events += 1
        if self.first_event_ns is None:
            self.first_event_ns = now
        if kind is EventKind.OTHER:
            self.malformed += 1
        elif kind is EventKind.PROGRESS:
            if self.first_progress_ns is None:
                self.first_progress_ns = now
            self._other_progress_ns = now
        usage = meaning.usage
        tokens = -1 if usage is None else self._note_usage(usage, final=meaning.usage_final)
        if kind is EventKind.USAGE:
            # A total that comes by itself brought no token.
            tokens = -1
        elif tokens > 0:
            # An incomplete character is held back by the detokenizer: a token without text is progress all the same.
            self._other_progress_ns = now
        self._note_rest(meaning, now)
        self._log_event(now, int(kind), tokens)

    def _log_event(self, now: int, kind: int, tokens: int) -> None:
        self._log.others += 1
        self._what_append(kind | (tokens + 1) << _KIND_BITS)
        self._at.append(now)
        if len(self._at) >= self._room:
            self._room = self._log.fold()

    def _note_usage(self, usage: Usage, *, final: bool) -> int:
        """Merge the counts; how many tokens the event brought, -1 where that cannot be known."""
        if final:
            self._usage_final = True
        if usage.prompt is not None:
            self.prompt_tokens = usage.prompt
        if usage.cached is not None:
            self.cached_tokens = usage.cached
        if usage.reasoning is not None:
            self.reasoning_tokens = usage.reasoning
        completion = usage.completion
        if completion is None:
            return -1
        before = self._completion
        self._completion = completion
        if before is None:
            # The first count of all: it is this event's own only if no token came before it.
            return -1 if self.token_events else completion
        return completion - before if completion > before else 0

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

    def message(self, meaning: Meaning, now: int) -> None:
        """An event that its transport framed and its reader read already (a gRPC message), stamped `now`."""
        self._take(meaning, now)

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
                meaning = self._read(event.event, event.data)
                self._take(meaning, now)
                if meaning.kind in self.cut:
                    self.cuts.append((event.start, event.end))
        self.ended_at = now
        self.clean = clean
        if clean and self._dialect.ends_with_body and self.events and not self._dead:
            self.done = True
            self.done_at = now

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
    def events(self) -> int:
        """Events of every kind but comments."""
        return self.token_events + self._other_events

    @property
    def last_progress_ns(self) -> int | None:
        """The last token or sign of progress (a prefill's report, a token without text); comments do not count."""
        token, other = self.last_token_ns, self._other_progress_ns
        if token is None or other is None:
            return other if token is None else token
        return max(token, other)

    @property
    def tokens(self) -> int:
        """Output tokens so far, by the best source there is."""
        return self.token_events if self._completion is None else self._completion

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

    @property
    def watch_ns(self) -> int:
        """A wait for the next token up to this is nothing to look at."""
        return self._watch

    @property
    def recent_gaps(self) -> list[int]:
        """The last gaps between token events (ns), oldest first, ten at most by default."""
        return self._log.recent_gaps(self._thresholds.window)

    def stands_still(self, now: int) -> bool:
        """Whether the wait for the next token, still open at `now`, is a stall by the rule of the single gap."""
        last = self.last_token_ns
        return (
            last is not None
            and self.ended_at is None
            and now - last > self._watch
            and not self.finish_reason
            and self.stall.is_single(now - last, self.recent_gaps)
        )

    def check(self, now: int) -> bool:
        """Whether a threshold is crossed at `now`, the wait that is still open included. For a sweeper."""
        if self.last_token_ns is None:
            if now - self.origin_ns > self._thresholds.ttft_ns:
                self.ttft_slow = True
        elif self.stands_still(now):
            return True
        return self.ttft_slow or bool(self.stall.by_rule)

    # -- at the end

    def _tokens_with_source(self) -> tuple[int | None, str]:
        if self._completion is not None:
            return self._completion, "usage" if self._usage_final else "chunk_usage"
        return (self.token_events, "chunks") if self.token_events else (None, "")

    def _tpot(self) -> int | None:
        tokens, _ = self._tokens_with_source()
        if tokens is None or tokens < 2 or self.token_events < 2:
            return None
        if self.first_token_ns is None or self.last_token_ns is None:
            return None
        return round((self.last_token_ns - self.first_token_ns) / (tokens - 1))

    def timeline(self) -> Timeline:
        """The log of events, from `origin_ns` on."""
        return self._log.timeline(self.origin_ns)

    def summary(self, *, timeline: bool = True) -> StreamSummary:
        """Everything that is known now. Cheap enough for a live view, meant for the end.

        Without `timeline`, whoever turns out to need it asks for it: for ninety-nine requests in a hundred nobody does.
        """
        log = self._log
        log.settle()
        gaps = log.gaps
        origin = self.origin_ns
        first, last, content = self.first_token_ns, self.last_token_ns, self.first_content_ns
        tokens, source = self._tokens_with_source()
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
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
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
            timeline=log.timeline(origin) if timeline else None,
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
        response_id=meaning.response_id,
        timings=meaning.timings,
    )
