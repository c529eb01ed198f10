"""Request records from the simulated engine's account: the same row that a gateway or a probe would write.

The engine keeps no stamp of a token. A request knows in which steps it got one, the step log knows when steps ended:
gaps, stalls and timelines are computed from those when the request has ended, many requests at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from tailrace.measure.sampling import DEFAULT_RATE, keep
from tailrace.measure.stall import StallWatch
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, SourceKind, Stage, source
from tailrace.model.thresholds import SlowThresholds
from tailrace.model.timeline import EventKind, Timeline
from tailrace.simulate.request import SimRequest, State
from tailrace.simulate.step_log import StepLog

Keep = Literal["sampled", "all", "none"]
"""Which timelines are kept: of slow and failed requests and a share of the rest, of all, of none."""

_REPORTED: Final = source(SourceKind.REPORTED, "simulate")
_UNSCHEDULED: Final[dict[str, str]] = dict.fromkeys((Stage.QUEUE.value, QUEUE_ENGINE), _REPORTED)
_UNSTARTED: Final[dict[str, str]] = {**_UNSCHEDULED, Stage.PREFILL.value: _REPORTED}
_SOURCES: Final[dict[str, str]] = {**_UNSTARTED, Stage.DECODE.value: _REPORTED}
_PS_PER_NS: Final = 1000

Stamps = NDArray[np.int64]


class RecordBuilder:
    """Turns ended requests into records.

    `unix_ns` is the wall clock at simulated time 0. `lane` of a record is the request's `tag` where that is text
    (its traffic class).
    """

    def __init__(
        self,
        log: StepLog,
        *,
        model: str = "",
        backend: str = "",
        unix_ns: int = 0,
        thresholds: SlowThresholds | None = None,
        keep_timelines: Keep = "sampled",
        sample_rate: float = DEFAULT_RATE,
    ) -> None:
        self._log = log
        self._thresholds = thresholds or SlowThresholds()
        self._keep = keep_timelines
        self._rate = sample_rate
        self._unix_ns = unix_ns
        self._fixed: dict[str, Any] = {
            "vantage": "simulated",
            "model": model,
            "backend": backend,
            "engine": "simulated",
            "endpoint": "/v1/chat/completions",
            "intended_to_sent_ns": 0,
            "prompt_tokens_source": "usage",
            "output_tokens_source": "usage",
        }

    def build(self, ended: Iterable[SimRequest]) -> list[RequestRecord]:
        """Records of `ended`, in the same order."""
        requests = list(ended)
        spans = [span for request in requests for span in request.spans]
        if not spans:
            return [self._record(request, None, None) for request in requests]
        first = min(span[0] for span in spans)
        last = max(span[1] for span in spans)
        ends = self._log.ends(first, last) // _PS_PER_NS
        gaps = np.diff(ends)
        watch = min(self._thresholds.gap_ns, self._thresholds.single_gap_ns)
        over = np.concatenate(([0], np.cumsum(gaps > watch)))
        out = []
        for request in requests:
            if len(request.spans) == 1:
                lo, hi = request.spans[0]
                lo -= first
                hi -= first
                stamps = ends[lo : hi + 1]
                # The gaps of an unbroken span are those of the engine's steps, and most steps are short.
                between = gaps[lo:hi]
                calm = over[hi] == over[lo]
            elif request.spans:
                stamps = np.concatenate([ends[lo - first : hi - first + 1] for lo, hi in request.spans])
                between = np.diff(stamps)
                calm = False
            else:
                out.append(self._record(request, None, None))
                continue
            out.append(self._record(request, stamps, between, calm=bool(calm)))
        return out

    def _record(
        self, request: SimRequest, stamps: Stamps | None, gaps: Stamps | None, *, calm: bool = True
    ) -> RequestRecord:
        arrival = request.received // _PS_PER_NS
        sent = request.arrival // _PS_PER_NS
        end = request.ended_at // _PS_PER_NS
        state = request.state
        values = self._fixed.copy()
        if state != State.FINISHED:
            if stamps is not None and state == State.ABORTED:
                # Tokens that came out after the client had left reached nobody.
                count = int(np.searchsorted(stamps, end, side="right"))
                stamps = stamps[:count] if count else None
                gaps = None if stamps is None or gaps is None else gaps[: count - 1]
            self._unfinished(request, values, stamps)
        else:
            values["outcome"] = OutcomeKind.COMPLETED
            values["finish_reason"] = "length" if request.output == request.max_tokens else "stop"
        e2e = end - arrival
        slow: list[str] = []
        if request.scheduled_at is None:
            if state != State.REFUSED or e2e:
                values["queue_ns"] = e2e
                values["queue_engine_ns"] = end - sent
                values["stage_sources"] = _UNSCHEDULED
        else:
            scheduled = request.scheduled_at // _PS_PER_NS
            values["queue_ns"] = scheduled - arrival
            values["queue_engine_ns"] = scheduled - sent
            values["cached_tokens"] = request.cached
            values["prefix_hit"] = (request.cached or 0) / request.prompt
            if stamps is None:
                values["prefill_ns"] = end - scheduled
                values["stage_sources"] = _UNSTARTED
            else:
                first = int(stamps[0])
                values["prefill_ns"] = first - scheduled
                values["decode_ns"] = end - first
                values["stage_sources"] = _SOURCES
                self._tokens(request, values, stamps, gaps, slow, calm=calm)
        if sent != arrival:
            values["queue_gateway_ns"] = sent - arrival
            values["stage_sources"] = {**values["stage_sources"], QUEUE_GATEWAY: _REPORTED}
        outcome = values["outcome"]
        if self._keep == "sampled":
            why, weight = keep(request.label, outcome, slow, self._rate)
        else:
            why, weight = ("all", 1.0) if self._keep == "all" else ("", 0.0)
        if why:
            values["timeline"] = _timeline(stamps, arrival, finished=state == State.FINISHED)
        tag = request.tag
        return RequestRecord(
            request_id=request.label,
            lane=tag if isinstance(tag, str) else "default",
            start_unix_ns=self._unix_ns + arrival,
            run_offset_ns=arrival,
            prompt_tokens=request.prompt,
            max_tokens=request.max_tokens,
            running_at_admission=request.running_at_arrival,
            waiting_at_admission=request.waiting_at_arrival,
            kv_usage_at_admission=request.kv_at_arrival,
            preemptions=request.preemptions,
            e2e_ns=e2e,
            slow=slow,
            keep_reason=why,
            keep_weight=weight,
            **values,
        )

    def _unfinished(self, request: SimRequest, values: dict[str, Any], stamps: Stamps | None) -> None:
        if request.state == State.REFUSED:
            values["outcome"] = OutcomeKind.REJECTED
            values["reason"] = Reason.INPUT_TOO_LONG
            values["http_status"] = 400
            values["died_in"] = Stage.QUEUE.value
            values["error"] = "prompt and output exceed the model's length or the KV cache"
            return
        values["outcome"] = OutcomeKind.CANCELLED
        values["reason"] = Reason.CLIENT_DISCONNECT
        if stamps is not None:
            values["died_in"] = Stage.DECODE.value
        else:
            values["died_in"] = Stage.QUEUE.value if request.scheduled_at is None else Stage.PREFILL.value

    def _tokens(
        self,
        request: SimRequest,
        values: dict[str, Any],
        stamps: Stamps,
        gaps: Stamps | None,
        slow: list[str],
        *,
        calm: bool,
    ) -> None:
        limits = self._thresholds
        arrival = request.received // _PS_PER_NS
        first = int(stamps[0])
        last = int(stamps[-1])
        count = len(stamps)
        ttft = first - arrival
        values["ttft_ns"] = ttft
        values["ttft_upstream_ns"] = first - request.arrival // _PS_PER_NS
        values["ttft_content_ns"] = ttft
        values["e2e_last_token_ns"] = last - arrival
        values["output_tokens"] = count
        values["tokens_per_s"] = count * 1e9 / (last - arrival)
        values["running_at_first_token"] = values["batch_size"] = request.running_at_first
        values["waiting_at_first_token"] = request.waiting_at_first
        values["kv_usage_at_first_token"] = request.kv_at_first
        if ttft > limits.ttft_ns:
            slow.append("ttft")
        if gaps is None or count < 2:
            return
        tpot = round((last - first) / (count - 1))
        values["tpot_ns"] = tpot
        if tpot > limits.tpot_ns:
            slow.append("tpot")
        ordered = np.sort(gaps)
        values["chunk_gap_count"] = count - 1
        values["chunk_gap_p50_ns"] = _quantile(ordered, 0.5)
        values["chunk_gap_p95_ns"] = _quantile(ordered, 0.95)
        values["chunk_gap_max_ns"] = int(ordered[-1])
        values["chunk_gap_method"] = "exact"
        if not calm:
            self._stalls(values, gaps, slow)

    def _stalls(self, values: dict[str, Any], gaps: Stamps, slow: list[str]) -> None:
        watch = StallWatch(self._thresholds)
        window = self._thresholds.window
        listed = gaps.tolist()
        for i, gap in enumerate(listed):
            if gap > watch.watch_ns:
                watch.judge(gap, listed[max(i - window, 0) : i])
            elif watch.run:
                watch.end_run()
        values["chunk_gap_over"] = watch.over
        values["stall_count"] = watch.count
        values["stall_longest_ns"] = watch.longest_ns
        slow += [rule for rule in ("stall", "gap") if rule in watch.by_rule]


def _quantile(ordered: Stamps, q: float) -> int:
    """As `measure.gaps.exact_quantile` computes it, without turning the array into a list."""
    position = (len(ordered) - 1) * q
    at = int(position)
    low = int(ordered[at])
    part = position - at
    return round(low + (int(ordered[at + 1]) - low) * part) if part else low


def _timeline(stamps: Stamps | None, arrival: int, *, finished: bool) -> Timeline:
    at = [] if stamps is None else (stamps - arrival).tolist()
    kinds = [int(EventKind.CONTENT)] * len(at)
    tokens = [1] * len(at)
    if finished:
        at.append(at[-1])
        kinds.append(int(EventKind.DONE))
        tokens.append(0)
    return Timeline(at_ns=at, kind=kinds, tokens=tokens)
