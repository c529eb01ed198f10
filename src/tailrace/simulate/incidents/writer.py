"""Flows as the records that the gateway writes: the same ledger, the same sampler, and nothing that it cannot see."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.gaps import exact_quantile
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.stall import StallWatch
from tailrace.measure.summary import StreamSummary
from tailrace.model.record import RequestRecord
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS, SlowThresholds
from tailrace.model.timeline import EventKind, Timeline
from tailrace.simulate.incidents.flow import Flow
from tailrace.simulate.incidents.site import Site
from tailrace.simulate.incidents.world import Seen, body_bytes

_QUEUE: Final = source(SourceKind.REPORTED, "metrics.queue_time_ms")
_PREFILL: Final = source(SourceKind.REPORTED, "metrics.time_to_first_token_ms")
_DECODE: Final = source(SourceKind.REPORTED, "metrics.generation_time_ms")
_SERVICE: Final = source(SourceKind.REPORTED, "server-timing")
_HANDOVER: Final = source(SourceKind.INFERRED, "metrics.queue_time_ms + end of the running step")
_MISSED: Final = source(SourceKind.INFERRED, "steps missed beside neighbours")
_SMALL_NS: Final = 2 * MS
_NEAR_NS: Final = 10 * MS
_NEAR: Final = 0.1
_LONGEST_TIMELINE: Final = 2048


class RecordWriter:
    """Makes the records of a window. `wall_ns` is the wall clock at its beginning; `rng` is for what only varies."""

    def __init__(self, site: Site, seen: Seen, rng: np.random.Generator, *, wall_ns: int, reports: bool = True) -> None:
        self._site = site
        self._seen = seen
        self._rng = rng
        self._wall_ns = wall_ns
        self._reports = reports
        self._limits = SlowThresholds()
        self._fresh_ns = round(5 * site.gateway.scrape_s * 1e9)
        self._retransmits: dict[int, int] = {}

    def records(self) -> list[RequestRecord]:
        """One a flow, in the order in which they came."""
        noise = self._rng.random((len(self._seen.flows), 4))
        return [self._record(flow, *row) for flow, row in zip(self._seen.flows, noise.tolist(), strict=True)]

    def _record(self, flow: Flow, a: float, b: float, c: float, d: float) -> RequestRecord:
        site, call = self._site, flow.call
        replica = self._seen.replicas[flow.replica]
        stream = call.stream
        summary = self._summary(flow)
        chunks = 0 if summary is None else summary.token_events
        ledger = RequestLedger(
            request_id=flow.ident,
            start_unix_ns=self._wall_ns + flow.received,
            received=flow.received,
            parsed=flow.parsed,
            queued=flow.queued if flow.queued >= flow.parsed else None,
            admitted=flow.admitted,
            sent=flow.sent,
            headers=flow.headers if summary is not None else None,
            upstream_end=flow.upstream_end,
            lane=flow.lane,
            endpoint="/v1/chat/completions",
            model="llama3-8b",
            backend=replica.name if flow.sent is not None else "",
            engine="vllm",
            engine_version=site.version,
            session_id=f"s{call.session}" if call.session >= 0 else "",
            attempts=flow.attempts,
            retries=flow.attempts - 1,
            retry_wait_ns=flow.retry_wait,
            prompt_tokens=call.prompt,
            prompt_tokens_source="estimate",
            prompt_bytes=body_bytes(call.prompt),
            stream=stream,
            n=call.n,
            sampled=True,
            grammar=call.grammar,
            at_admission=flow.admission,
            pool_wait_ns=flow.pool_wait,
            predicted_wait_ns=flow.predicted_wait_ns,
            connection_reused=True if flow.sent is not None else None,
            http_status=flow.ending.status,
            loop_lag_ns=max(self._lag(flow), round((0.2 + 1.5 * a) * MS)),
        )
        if flow.delivered is not None and stream:
            read, written = flow.delivered.read, flow.delivered.written
            ledger.client_first_write = ledger.client_first_token = int(written[0]) + 30_000
            ledger.client_last_write = flow.end
            ledger.blocked = [pair for pair in flow.delivered.blocked if pair[0] < flow.end]
            ledger.gateway_overhead_ns = round(chunks * site.gateway.chunk_us * 1000 * (0.8 + 0.4 * b))
            ledger.at_first_token = replica.state_at(int(read[0]), self._fresh_ns)
        elif summary is not None:
            ledger.client_first_write = ledger.client_last_write = flow.end
        if flow.cut_at is not None:
            ledger.client_last_write = None
        timings = self._timings(flow, ledger, summary)
        record = ledger.close(
            flow.end,
            flow.ending.outcome,
            flow.ending.reason,
            summary=summary,
            timings=timings,
            died_in=flow.ending.stage,
            error=flow.ending.error,
            thresholds=self._limits,
        )
        return self._with_hops(record, flow, c, d) if record.keep_reason else record

    def _lag(self, flow: Flow) -> int:
        """The sweeper is late by what blocks the loop; it looks every 50 ms."""
        return self._seen.loop.by_plan.worst(flow.received, flow.end)

    def _with_hops(self, record: RequestRecord, flow: Flow, c: float, d: float) -> RequestRecord:
        """TCP's own view of both hops, read where the timeline is kept."""
        hop, client = self._site.hop, self._site.client
        so_far = self._retransmits[flow.replica] = self._retransmits.get(flow.replica, 0) + flow.lost
        return msgspec.structs.replace(
            record,
            upstream_rtt_ns=round((2 * hop.latency_ms + (0.5 + c) * hop.jitter_ms) * MS),
            upstream_rtt_var_ns=round((0.3 + c) * (0.1 * hop.latency_ms + hop.jitter_ms) * MS),
            upstream_retransmits=min(so_far, flow.lost + round(3 * hop.loss * 100 * d)),
            client_rtt_ns=round(2 * client.latency_ms * (0.8 + 0.5 * d) * MS),
            client_rtt_var_ns=round(client.latency_ms * 0.2 * MS),
            client_retransmits=0,
            gateway_cpu=round(0.08 + 0.1 * c, 3),
        )

    # -- the stream

    def _summary(self, flow: Flow) -> StreamSummary | None:  # noqa: C901  (one shape of a stream after the other)
        delivered, chunks = flow.delivered, flow.chunks
        if delivered is None or chunks is None:
            return None
        read, tokens = delivered.read, chunks.tokens
        whole = flow.cut_at is None
        if not whole:
            count = int(np.searchsorted(read, flow.end, side="right"))
            if not count:
                return None
            read, tokens = read[:count], tokens[:count]
        usage: dict[str, Any] = {"prompt_tokens": flow.call.prompt} if whole else {}
        if whole and self._site.tells_cached and flow.requests:
            usage["cached_tokens"] = flow.requests[0].cached or 0
        total = int(tokens.sum())
        if not flow.call.stream:
            return StreamSummary(
                origin_at=flow.received, ended_at=flow.upstream_end, clean=True, done=True, finish_reason="stop",
                output_tokens=total, output_tokens_source="usage", **usage,
            )  # fmt: skip
        first, last = int(read[0]), int(read[-1])
        values: dict[str, Any] = {}
        slow: list[str] = []
        if len(read) > 1:
            gaps = np.diff(read)
            ordered = np.sort(gaps).tolist()
            values = {
                "chunk_gap_count": len(ordered),
                "chunk_gap_p50_ns": exact_quantile(ordered, 0.5),
                "chunk_gap_p95_ns": exact_quantile(ordered, 0.95),
                "chunk_gap_max_ns": ordered[-1],
                "chunk_gap_method": "exact",
            }
            known = total if whole else len(read)
            if known > 1:
                values["tpot_ns"] = round((last - first) / (known - 1))
                if values["tpot_ns"] > self._limits.tpot_ns:
                    slow.append("tpot")
            if ordered[-1] > min(self._limits.gap_ns, self._limits.single_gap_ns):
                values |= self._stalls(gaps.tolist(), slow)
        if first - flow.received > self._limits.ttft_ns:
            slow.append("ttft")
        return StreamSummary(
            origin_at=flow.received,
            first_event_at=first,
            first_token_at=first,
            first_content_at=first,
            last_token_at=last,
            ended_at=flow.upstream_end,
            clean=whole,
            done=whole,
            finish_reason="stop" if whole else "",
            ttft_ns=first - flow.received,
            ttft_content_ns=first - flow.received,
            e2e_last_token_ns=last - flow.received,
            events=len(read),
            token_events=len(read),
            output_tokens=total if whole else len(read),
            output_tokens_source="usage" if whole else "chunks",
            tokens_per_s=total * 1e9 / max(last - flow.received, 1),
            slow=slow,
            timeline=_timeline(read - flow.received, flow, whole=whole),
            **usage,
            **values,
        )

    def _stalls(self, gaps: list[int], slow: list[str]) -> dict[str, Any]:
        watch = StallWatch(self._limits)
        window = self._limits.window
        for i, gap in enumerate(gaps):
            if gap > watch.watch_ns:
                watch.judge(gap, gaps[max(i - window, 0) : i])
            elif watch.run:
                watch.end_run()
        slow += [rule for rule in ("stall", "gap") if rule in watch.by_rule]
        return {"chunk_gap_over": watch.over, "stall_count": watch.count, "stall_longest_ns": watch.longest_ns}

    # -- what the engine says of itself

    def _timings(self, flow: Flow, ledger: RequestLedger, summary: StreamSummary | None) -> EngineTimings:
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        if flow.pre_ns is not None and summary is not None:
            values["preprocess_ns"], sources["preprocess"] = flow.pre_ns, _SERVICE
            if flow.encode_ns is not None:
                values["encode_ns"], sources["encode"] = flow.encode_ns, _SERVICE
        told = flow.reported if self._reports and summary is not None and flow.cut_at is None else None
        if told is not None:
            # Milliseconds with three places, as the field has them.
            queue, prefill = (round(value, -3) for value in told)
            values["prefill_ns"], sources["prefill"] = prefill, _PREFILL
            sources["queue"] = _QUEUE
            if summary is not None and not flow.call.stream and flow.upstream_end is not None:
                values["decode_ns"], sources["decode"] = self._decode(flow), _DECODE
            shown = self._handover(flow, queue, sum(values.values()))
            if shown:
                queue += shown
                sources["queue"] = _HANDOVER
            values["queue_ns"] = queue
        if not values:
            return NO_TIMINGS
        preempted = None
        if flow.preemptions and summary is not None and summary.chunk_gap_p50_ns:
            # The gateway sees it where a stream missed steps of which its neighbours had tokens.
            preempted = flow.preemptions if (summary.chunk_gap_max_ns or 0) > 3 * summary.chunk_gap_p50_ns else None
            if preempted:
                ledger.fact_sources = {"preemptions": _MISSED}
        return EngineTimings(**values, sources=sources, preemptions=preempted)

    @staticmethod
    def _decode(flow: Flow) -> int:
        first = flow.first_core or 0
        return max(max(request.ended_at for request in flow.requests) // 1000 - first, 0)

    @staticmethod
    def _handover(flow: Flow, queue: int, told: int) -> int:
        """The step that ran when the request came; the engine's queue time leaves it out (`measure.inference`)."""
        if flow.sent is None or not flow.marks or flow.delivered is None or not flow.call.stream:
            return 0
        rest = int(flow.delivered.read[0]) - flow.sent - queue - told
        if rest <= _SMALL_NS:
            return 0
        ends = [mark - flow.sent for mark in flow.marks]
        near = max(_NEAR_NS, round(_NEAR * rest))
        if rest <= ends[0] + near:
            return rest
        reached = max(end for end in ends if end <= rest + near)
        return rest if rest - reached <= near else reached


def _timeline(at: np.ndarray, flow: Flow, *, whole: bool) -> Timeline:
    stamps = at[:_LONGEST_TIMELINE].tolist()
    kinds = [int(EventKind.CONTENT)] * len(stamps)
    tokens = [-1] * len(stamps)
    if whole and flow.upstream_end is not None:
        stamps.append(flow.upstream_end - flow.received)
        kinds.append(int(EventKind.DONE))
        tokens.append(-1)
    return Timeline(at_ns=stamps, kind=kinds, tokens=tokens)
