"""The ledger: the account of one request that an edge fills while the request lives, and closes into a record."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailrace.measure.cache_account import account_from_cache
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.sampling import DEFAULT_RATE, keep
from tailrace.measure.stage_account import Passage, StageAccount, Stamps, account_for, parts_within
from tailrace.measure.summary import StreamSummary
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import FROM_CACHE, RequestRecord
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import SlowThresholds
from tailrace.model.timeline import Timeline

_LONGEST_ERROR = 300


class RequestLedger(msgspec.Struct, kw_only=True):
    """Everything known about one request so far. Stamps are absolute nanoseconds of one monotonic clock.

    An edge sets the stamps and facts that it has; what it leaves out is absent in the record, never guessed. Vantage
    `client` (the probe) has no queue of its own: `received` is the start of its send, and the time up to `sent`,
    connecting included, is `ingress`.
    """

    request_id: str
    vantage: str = "gateway"
    start_unix_ns: int

    # -- stamps
    received: int
    parsed: int | None = None
    queued: int | None = None
    admitted: int | None = None
    connect_start: int | None = None
    connect_end: int | None = None
    upload_start: int | None = None
    """When the body of an upload began to go upstream; up to `sent` its time is the client's."""
    sent: int | None = None
    headers: int | None = None
    first_byte: int | None = None
    upstream_end: int | None = None
    client_first_write: int | None = None
    client_first_token: int | None = None
    """When the first token was written to the client; gateway only."""
    client_last_write: int | None = None
    """When the client's socket had taken the last byte; ends the request."""
    blocked: list[tuple[int, int]] = []
    passages: list[Passage] = []
    server_timing: bytes = b""
    """What a service behind us said of its stages in the head of the answer; read when the record is made."""

    # -- identity
    client_request_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    session_id: str = ""
    parent_id: str = ""
    tenant: str = ""
    lane: str = "default"
    route: str = "stable"
    endpoint: str = ""
    model: str = ""
    requested_model: str = ""
    backend: str = ""
    engine: str = ""
    engine_version: str = ""
    attempts: int = 1
    cache: str = ""
    """As the record's. One that was served from the cache has no `sent`; its `admitted` is the first byte's write."""

    # -- work
    prompt_tokens: int | None = None
    """Our own count or estimate; the engine's usage replaces it."""
    prompt_tokens_source: str = ""
    prompt_bytes: int | None = None
    audio_seconds: float | None = None
    max_tokens: int | None = None
    stream: bool = True
    n: int = 1
    best_of: int = 1
    beam: int = 1
    sampled: bool | None = None
    grammar: bool = False
    truncated_from: int | None = None
    capped_to: int | None = None

    # -- facts
    at_admission: EngineState | None = None
    at_first_token: EngineState | None = None
    batch_size: int | None = None
    """What the engine itself counted; without it, see `running_with_it`."""
    said_headers: dict[str, str] = {}
    """Headers of the engine's answer that carry its timings, lower case."""
    prefix_hit: float | None = None
    dtype: str = ""
    quantization: str = ""
    fact_sources: dict[str, str] = {}
    gateway_overhead_ns: int | None = None
    loop_lag_ns: int | None = None
    connection_reused: bool | None = None
    pool_wait_ns: int | None = None
    predicted_wait_ns: int | None = None
    intended_to_queued_ns: int | None = None
    intended_to_sent_ns: int | None = None
    run_offset_ns: int | None = None
    http_status: int | None = None
    retries: int = 0
    retry_wait_ns: int = 0
    degradation: str = ""

    @property
    def running_with_it(self) -> int | None:
        """Requests that ran in the engine at the first token, this one among them.

        `None` where the scrape is from before the request was sent, or counts nobody: that was another batch.
        """
        state = self.at_first_token
        return (state.running or None) if state is not None and state.at_ns >= (self.sent or 0) else None

    def client_blocked(self, start_ns: int, end_ns: int) -> None:
        """The client did not take bytes from `start_ns` to `end_ns`."""
        if end_ns > start_ns:
            self.blocked.append((start_ns, end_ns))

    def passage(self, stage: str, at_ns: int, origin: str = "") -> None:
        """The engine was seen to enter `stage` (`queue`, `preprocess`, `encode`, `prefill`) at `at_ns`.

        The last passage before a timeout names the stage in which the request died, so a timeout while encoding and
        one while prefilling are told apart. `origin` is a source as `model.stage.source` spells it.
        """
        self.passages.append(Passage(stage, at_ns, origin or source(SourceKind.MEASURED)))

    def died_in(self, summary: StreamSummary | None) -> str:
        """The stage in which a request that ends now is."""
        if self.sent is None:
            return "queue" if self.queued is not None and self.admitted is None else "ingress"
        if summary is None or summary.first_token_at is None:
            if self.upstream_end is not None and summary is not None and summary.finished:
                return "response"
            seen = self._passages(summary)
            return max(seen, key=lambda passage: passage.at_ns).stage if seen else "prefill"
        if not summary.finished:
            return "decode"
        return "postprocess" if self.upstream_end is None else "response"

    def close(
        self,
        now: int,
        outcome: OutcomeKind,
        reason: Reason = Reason.NONE,
        *,
        summary: StreamSummary | None = None,
        timings: EngineTimings = NO_TIMINGS,
        died_in: str = "",
        budget: str = "",
        error: str = "",
        thresholds: SlowThresholds | None = None,
        sample_rate: float = DEFAULT_RATE,
        timeline: Callable[[], Timeline | None] | None = None,
    ) -> RequestRecord:
        """The record. Its stages add up to its end-to-end time exactly, whatever stamps are missing or out of order.

        The request ends at `client_last_write` if it completed and that is known, else at `now`. `died_in` is derived
        where it is not given. `sample_rate` 1.0 keeps every timeline (the probe). `timeline` gives it where the summary
        does not have it, and is asked only if it is kept.
        """
        limits = thresholds or SlowThresholds()
        end = now
        if outcome is OutcomeKind.COMPLETED and self.client_last_write is not None:
            end = self.client_last_write
        end = max(end, self.received)
        account = self._account(end, summary, timings)
        sources = {str(stage): origin for stage, origin in account.sources.items()}
        parts: dict[str, int] = {}
        if timings.parts_ns:
            parts, of_parts = parts_within(account, timings)
            sources |= of_parts
        ttft = self._ttft(summary)
        slow = self._slow(summary, ttft, end, outcome, limits)
        keep_reason, weight = keep(self.request_id, outcome, slow, sample_rate)
        fault = summary.fault if summary is not None else None
        if not error and fault is not None:
            error = fault.message
        if not error and summary is not None:
            error = summary.protocol_fault
        values, first = account.values, None if summary is None else summary.first_token_at
        stream = summary or StreamSummary(origin_at=self.received)
        from_usage = stream.prompt_tokens is not None
        admission, token_state = self.at_admission, self.at_first_token
        return RequestRecord(
            vantage=self.vantage,
            request_id=self.request_id,
            client_request_id=self.client_request_id,
            trace_id=self.trace_id,
            span_id=self.span_id,
            session_id=self.session_id,
            parent_id=self.parent_id,
            tenant=self.tenant,
            lane=self.lane,
            route=self.route,
            endpoint=self.endpoint,
            model=self.model,
            requested_model=self.requested_model,
            backend=self.backend,
            engine=self.engine,
            engine_version=self.engine_version,
            attempts=self.attempts,
            cache=self.cache,
            prompt_tokens=stream.prompt_tokens if from_usage else self.prompt_tokens,
            prompt_tokens_source="usage" if from_usage else self.prompt_tokens_source,
            cached_tokens=stream.cached_tokens if stream.cached_tokens is not None else timings.cached_tokens,
            output_tokens=stream.output_tokens,
            output_tokens_source=stream.output_tokens_source,
            reasoning_tokens=stream.reasoning_tokens,
            prompt_bytes=self.prompt_bytes,
            audio_seconds=self.audio_seconds,
            max_tokens=self.max_tokens,
            stream=self.stream,
            n=self.n,
            best_of=self.best_of,
            beam=self.beam,
            sampled=self.sampled,
            grammar=self.grammar,
            truncated_from=self.truncated_from,
            capped_to=self.capped_to,
            running_at_admission=admission.running if admission else None,
            waiting_at_admission=admission.waiting if admission else None,
            kv_usage_at_admission=admission.kv_usage if admission else None,
            running_at_first_token=token_state.running if token_state else None,
            waiting_at_first_token=token_state.waiting if token_state else None,
            kv_usage_at_first_token=token_state.kv_usage if token_state else None,
            engine_state_age_ns=self.admitted - admission.at_ns if admission and self.admitted is not None else None,
            batch_size=self.batch_size or self.running_with_it,
            prefix_hit=self.prefix_hit,
            preemptions=timings.preemptions,
            dtype=self.dtype,
            quantization=self.quantization,
            fact_sources=self.fact_sources,
            start_unix_ns=self.start_unix_ns,
            ingress_ns=values.get("ingress"),
            queue_ns=values.get("queue"),
            queue_gateway_ns=values.get("queue.gateway"),
            queue_engine_ns=values.get("queue.engine"),
            preprocess_ns=values.get("preprocess"),
            encode_ns=values.get("encode"),
            prefill_ns=values.get("prefill"),
            decode_ns=values.get("decode"),
            postprocess_ns=values.get("postprocess"),
            response_ns=values.get("response"),
            unattributed_ns=values.get("unattributed"),
            parts_ns=parts,
            stage_sources=sources,
            e2e_ns=end - self.received,
            e2e_last_token_ns=self._not_before(ttft, stream.last_token_at),
            ttft_ns=ttft,
            ttft_upstream_ns=_since(self.sent, first),
            ttft_content_ns=self._not_before(ttft, stream.first_content_at),
            first_byte_ns=_since(self.sent, self.first_byte) if self.vantage == "client" else None,
            headers_ns=_since(self.sent, self.headers),
            chunk_gap_count=stream.chunk_gap_count,
            chunk_gap_p50_ns=stream.chunk_gap_p50_ns,
            chunk_gap_p95_ns=stream.chunk_gap_p95_ns,
            chunk_gap_max_ns=stream.chunk_gap_max_ns,
            chunk_gap_over=stream.chunk_gap_over,
            chunk_gap_method=stream.chunk_gap_method,
            tpot_ns=stream.tpot_ns,
            tokens_per_s=stream.tokens_per_s,
            stall_count=stream.stall_count,
            stall_longest_ns=stream.stall_longest_ns,
            client_blocked_ns=self._blocked_ns(end, summary),
            gateway_overhead_ns=self.gateway_overhead_ns,
            loop_lag_ns=self.loop_lag_ns,
            connect_ns=_since(self.connect_start, self.connect_end),
            connection_reused=self.connection_reused,
            pool_wait_ns=self.pool_wait_ns,
            predicted_wait_ns=self.predicted_wait_ns,
            intended_to_queued_ns=self.intended_to_queued_ns,
            intended_to_sent_ns=self.intended_to_sent_ns,
            run_offset_ns=self.run_offset_ns,
            outcome=outcome,
            reason=reason,
            died_in="" if outcome is OutcomeKind.COMPLETED else died_in or self.died_in(summary),
            budget=budget,
            error=error[:_LONGEST_ERROR],
            http_status=self.http_status,
            finish_reason=stream.finish_reason,
            retries=self.retries,
            retry_wait_ns=self.retry_wait_ns,
            degradation=self.degradation,
            keep_reason=keep_reason,
            keep_weight=weight,
            slow=slow,
            timeline=(stream.timeline or (timeline() if timeline is not None else None)) if keep_reason else None,
        )

    def _passages(self, summary: StreamSummary | None) -> list[Passage]:
        out = self.passages.copy()
        if summary is not None and summary.first_progress_at is not None:
            # Progress frames report the prompt's processing: the prefill has begun.
            out.append(Passage("prefill", summary.first_progress_at, source(SourceKind.MEASURED, "progress frame")))
        return out

    def _account(self, end: int, summary: StreamSummary | None, timings: EngineTimings) -> StageAccount:
        if self.cache in FROM_CACHE:
            return account_from_cache(
                self.cache,
                received=self.received,
                parsed=self.parsed,
                began=self.admitted,
                blocked=self.blocked,
                end=end,
            )
        first = summary.first_token_at if summary is not None else None
        last = summary.last_token_at if summary is not None and summary.finished else None
        upstream_end = self.upstream_end
        if upstream_end is None and summary is not None and summary.finished:
            upstream_end = summary.ended_at
        stamps = Stamps(
            received=self.received,
            queued=self.queued,
            admitted=self.admitted,
            upload_start=self.upload_start,
            sent=self.sent,
            first_token=first,
            last_token=last,
            upstream_end=upstream_end if self.vantage != "client" else None,
            end=end,
        )
        blocked = self.blocked + (summary.client_blocked if summary is not None else [])
        return account_for(stamps, timings=timings, passages=self._passages(summary), blocked=blocked)

    def _blocked_ns(self, end: int, summary: StreamSummary | None) -> int:
        spans = self.blocked + (summary.client_blocked if summary is not None else [])
        if not spans:
            return 0
        spans.sort()
        total, reached = 0, self.received
        for start, stop in spans:
            low, high = max(start, reached), min(stop, end)
            if high > low:
                total += high - low
                reached = high
        return total

    def _ttft(self, summary: StreamSummary | None) -> int | None:
        if summary is None or summary.first_token_at is None:
            return None
        if self.vantage == "client":
            return _since(self.received, summary.first_token_at)
        if self.client_first_token is not None:
            return _since(self.received, self.client_first_token)
        if self.client_first_write is None:
            # The token was read but never written: the client has not seen it.
            return None
        return _since(self.received, max(self.client_first_write, summary.first_token_at))

    def _not_before(self, ttft: int | None, read_at: int | None) -> int | None:
        """Since the request's start; no token reached the client before the first one did.

        The status line is held for the first event, so a token read meanwhile left with it.
        """
        since = _since(self.received, read_at)
        return since if since is None or ttft is None else max(since, ttft)

    def _slow(
        self, summary: StreamSummary | None, ttft: int | None, end: int, outcome: OutcomeKind, limits: SlowThresholds
    ) -> list[str]:
        out = [name for name in summary.slow if name != "ttft"] if summary is not None else []
        waited = ttft
        if waited is None and self.stream and outcome is not OutcomeKind.REJECTED:
            # No token was ever seen: it has waited until the end.
            waited = end - self.received if summary is None or summary.first_token_at is None else None
        if waited is not None and self.upload_start is not None and self.sent is not None:
            waited -= self.sent - self.upload_start  # a client's slow line is no slow answer
        if waited is not None and waited > limits.ttft_ns:
            out.insert(0, "ttft")
        return out


def _since(start: int | None, stop: int | None) -> int | None:
    return None if start is None or stop is None else max(stop - start, 0)
