"""Every Prometheus metric that Tailrace exposes: the one table from which code, documentation and checks are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.export.alert_metrics import ALERT_METRICS
from tailrace.export.backend_metrics import BACKEND_METRICS
from tailrace.export.cache_metrics import CACHE_METRICS
from tailrace.export.host_metrics import HOST_METRICS
from tailrace.export.ladder_metrics import LADDER_METRICS
from tailrace.export.lane_metrics import LANE_METRICS
from tailrace.export.metric import Metric
from tailrace.export.prediction_metrics import PREDICTION_METRICS
from tailrace.export.route_metrics import ROUTE_METRICS
from tailrace.export.span_metrics import SPAN_METRICS
from tailrace.export.token_metrics import TOKEN_METRICS
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord

__all__ = [
    "BUCKET_LIST_VERSION",
    "CHUNK_GAP_BUCKETS",
    "METRIC_TABLE",
    "REQUEST_LABELS",
    "STAGE_BUCKETS",
    "Metric",
    "metric_markdown",
]

BUCKET_LIST_VERSION: Final = 1
"""Changes whenever a bucket list below does; exposed as a label of `tailrace_build_info`."""

TTFT_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TPOT_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
CHUNK_GAP_BUCKETS: Final = (
    *(0.01, 0.02, 0.04, 0.08, 0.15, 0.16, 0.32, 0.5, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
STAGE_BUCKETS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.0, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
CANCEL_BUCKETS: Final = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
CONNECT_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0)
OVERHEAD_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


REQUEST_LABELS: Final[dict[str, Callable[[RequestRecord], str]]] = {
    "backend": lambda record: record.backend,
    "lane": lambda record: record.lane,
    "model": lambda record: record.model,
    "engine": lambda record: record.engine,
    "outcome": lambda record: record.outcome.value,
    "reason": lambda record: record.reason.value,
    "stage": lambda record: record.died_in,
}
"""The labels that an ended request has a value for."""


def _one(_: RequestRecord) -> int:
    return 1


def _sent(record: RequestRecord) -> int | None:
    """Whether the engine has had it: a connection was given to it, or an answer came, or it completed (gRPC)."""
    reached = record.connection_reused is not None or record.headers_ns is not None
    reached = reached or record.outcome is OutcomeKind.COMPLETED
    return 1 if reached and record.lane != "passthrough" else None


def _first_token_unseen(record: RequestRecord) -> int | None:
    unseen = record.ttft_ns is None and record.stream and record.outcome is OutcomeKind.COMPLETED
    return 1 if unseen else None


_TABLE: Final = (
    # -- requests
    Metric(
        name="tailrace_requests_total",
        kind="counter",
        labels=("lane", "model", "outcome", "reason", "stage"),
        unit="requests",
        definition="Requests that ended, by outcome, by reason, and by the stage in which one that did not complete "
        "died. HTTP status does not decide the outcome: an error frame inside a 200 is failed.",
        of=_one,
    ),
    Metric(
        name="tailrace_slow_requests_total",
        kind="counter",
        labels=("lane", "threshold"),
        unit="requests",
        definition="Requests that crossed a slow threshold (ttft, tpot, stall, gap); one request may count "
        "under several.",
    ),
    Metric(
        name="tailrace_retries_total",
        kind="counter",
        labels=("lane",),
        unit="attempts",
        definition="Attempts after the first, before any token had reached the client.",
        of=lambda record: record.retries or None,
    ),
    # -- latency
    Metric(
        name="tailrace_ttft_seconds",
        kind="histogram",
        labels=("lane", "model"),
        unit="seconds",
        definition="Request received to the first event that carries a token, written to the client. A request whose "
        "first token was not seen is absent here and counted in tailrace_ttft_missing_total.",
        buckets=TTFT_BUCKETS,
        objective="ttft",
        of=lambda record: record.ttft_ns,
    ),
    Metric(
        name="tailrace_ttft_missing_total",
        kind="counter",
        labels=("lane", "engine"),
        unit="requests",
        definition="Completed streamed requests whose first token was not seen.",
        of=_first_token_unseen,
    ),
    Metric(
        name="tailrace_ttft_upstream_seconds",
        kind="histogram",
        labels=("lane", "model"),
        unit="seconds",
        definition="Request sent upstream to the first token read from the engine: TTFT without our own queue.",
        buckets=TTFT_BUCKETS,
        objective="ttft",
        of=lambda record: record.ttft_upstream_ns,
    ),
    Metric(
        name="tailrace_tpot_seconds",
        kind="histogram",
        labels=("lane", "model"),
        unit="seconds",
        definition="(last token - first token) / (tokens - 1) of one request.",
        buckets=TPOT_BUCKETS,
        objective="tpot",
        of=lambda record: record.tpot_ns,
    ),
    Metric(
        name="tailrace_chunk_gap_max_seconds",
        kind="histogram",
        labels=("lane", "model"),
        unit="seconds",
        definition="The longest gap between two token-carrying events of a request; one observation a request.",
        buckets=CHUNK_GAP_BUCKETS,
        objective="chunk_gap",
        of=lambda record: record.chunk_gap_max_ns,
    ),
    Metric(
        name="tailrace_chunk_gaps_total",
        kind="counter",
        labels=("lane", "model"),
        unit="gaps",
        definition="Gaps between token-carrying events.",
        of=lambda record: None if record.chunk_gap_max_ns is None else record.chunk_gap_count,
    ),
    Metric(
        name="tailrace_chunk_gaps_over_threshold_total",
        kind="counter",
        labels=("lane", "model"),
        unit="gaps",
        definition="Gaps longer than the gap threshold (150 ms by default).",
        of=lambda record: None if record.chunk_gap_max_ns is None else record.chunk_gap_over,
    ),
    Metric(
        name="tailrace_stalls_total",
        kind="counter",
        labels=("lane", "model"),
        unit="stalls",
        definition="Stalls: several gaps in a row above the threshold, or one far above the recent median.",
        of=lambda record: record.stall_count or None,
    ),
    Metric(
        name="tailrace_e2e_seconds",
        kind="histogram",
        labels=("lane", "model", "outcome"),
        unit="seconds",
        definition="Request received to the last byte of the answer.",
        buckets=STAGE_BUCKETS,
        objective="e2e",
        of=lambda record: record.e2e_ns,
    ),
    Metric(
        name="tailrace_stage_seconds",
        kind="histogram",
        labels=("stage", "lane"),
        unit="seconds",
        definition="Time in each stage. The stages of a request add up to its end-to-end time; what nobody can explain "
        "is the stage unattributed.",
        buckets=STAGE_BUCKETS,
    ),
    Metric(
        name="tailrace_stage_part_seconds",
        kind="histogram",
        labels=("part", "lane"),
        unit="seconds",
        definition="Time in a part of a stage: queue.gateway is our lane, queue.engine the engine's scheduler.",
        buckets=STAGE_BUCKETS,
    ),
    Metric(
        name="tailrace_client_blocked_seconds_total",
        kind="counter",
        labels=("lane",),
        unit="seconds",
        definition="Time in which the client did not read, and held its stream up.",
        of=lambda record: record.client_blocked_ns or None,
    ),
    Metric(
        name="tailrace_gateway_overhead_seconds",
        kind="histogram",
        labels=("lane",),
        unit="seconds",
        definition="Sum over a stream of upstream read to client write: what the gateway itself added.",
        buckets=OVERHEAD_BUCKETS,
        of=lambda record: record.gateway_overhead_ns,
    ),
    # -- the way to the engine
    Metric(
        name="tailrace_connect_seconds",
        kind="histogram",
        labels=("lane",),
        unit="seconds",
        definition="Opening a connection to the engine; requests that found one ready are not in it.",
        buckets=CONNECT_BUCKETS,
        of=lambda record: record.connect_ns,
    ),
    Metric(
        name="tailrace_pool_wait_seconds",
        kind="histogram",
        labels=("lane",),
        unit="seconds",
        definition="Waiting for a connection to the engine because limits.upstream_connections were in use; requests "
        "that did not have to wait are not in it.",
        buckets=STAGE_BUCKETS,
        of=lambda record: record.pool_wait_ns,
    ),
    Metric(
        name="tailrace_upstream_connections",
        kind="gauge",
        labels=("state",),
        unit="connections",
        definition="Connections to the engine: in_use, idle; and requests waiting for one.",
    ),
    Metric(
        name="tailrace_upstream_connections_taken_total",
        kind="counter",
        labels=("connection",),
        unit="connections",
        definition="Connections to the engine by how a request came by one: new, reused.",
    ),
    Metric(
        name="tailrace_tcp_rtt_seconds",
        kind="gauge",
        labels=("hop",),
        unit="seconds",
        merge="max",
        definition="TCP's smoothed round-trip time to the engine (upstream) and to a client, at the last request whose "
        "timeline was kept; Linux only.",
    ),
    # -- cancels
    Metric(
        name="tailrace_cancel_upstream_seconds",
        kind="histogram",
        labels=("reason",),
        unit="seconds",
        definition="Seen why a request is over (its client left, its deadline passed) to its connection to the engine "
        "closed, of cancelled requests that had one.",
        buckets=CANCEL_BUCKETS,
        of=lambda record: record.cancel_upstream_ns,
    ),
    Metric(
        name="tailrace_cancel_slot_seconds",
        kind="histogram",
        labels=("reason",),
        unit="seconds",
        definition="The same to a scrape that shows the engine's slot free. Only where the engine's own counts prove "
        "it; the others are in tailrace_cancel_slot_unseen_total.",
        buckets=CANCEL_BUCKETS,
    ),
    Metric(
        name="tailrace_cancel_slot_unseen_total",
        kind="counter",
        labels=("reason",),
        unit="requests",
        definition="Cancelled requests whose slot nobody saw become free: the engine shows no counts, others keep it "
        "busy, or it was free before the first look.",
    ),
    # -- work
    Metric(
        name="tailrace_prompt_tokens_total",
        kind="counter",
        labels=("lane", "model"),
        unit="tokens",
        definition="Prompt tokens, where the number is known.",
        of=lambda record: record.prompt_tokens or None,
    ),
    Metric(
        name="tailrace_cached_tokens_total",
        kind="counter",
        labels=("lane", "model"),
        unit="tokens",
        definition="Prompt tokens that the engine found in its prefix cache, where it says so.",
        of=lambda record: record.cached_tokens or None,
    ),
    Metric(
        name="tailrace_output_tokens_total",
        kind="counter",
        labels=("lane", "model"),
        unit="tokens",
        definition="Output tokens, where the number is known.",
        of=lambda record: record.output_tokens or None,
    ),
    *TOKEN_METRICS,
    # -- now
    Metric(
        name="tailrace_requests_in_flight",
        kind="gauge",
        labels=("lane",),
        unit="requests",
        definition="Requests admitted and not ended.",
    ),
    Metric(
        name="tailrace_requests_queued",
        kind="gauge",
        labels=("lane",),
        unit="requests",
        definition="Requests waiting in a lane's queue.",
    ),
    *LANE_METRICS,
    *PREDICTION_METRICS,
    Metric(
        name="tailrace_in_flight_over_objective",
        kind="gauge",
        labels=("lane",),
        unit="requests",
        definition="Requests in flight that have passed the TTFT objective without a first token: a hang is visible "
        "here before it ends.",
    ),
    Metric(
        name="tailrace_workers",
        kind="gauge",
        unit="processes",
        definition="Processes that serve the data port; those that only end their last requests do not count.",
    ),
    Metric(
        name="tailrace_worker_restarts_total",
        kind="counter",
        unit="processes",
        definition="Worker processes that ended unasked and were started again.",
    ),
    Metric(
        name="tailrace_event_loop_lag_seconds",
        kind="gauge",
        unit="seconds",
        merge="max",
        definition="The largest event-loop lag of the last interval; what is measured while it is high is not to "
        "be trusted.",
    ),
    Metric(
        name="tailrace_gateway_cpu_ratio",
        kind="gauge",
        unit="ratio",
        merge="max",
        definition="Cores that the gateway's process used in the last second; its relay runs on one thread, which is "
        "full at 1.",
    ),
    Metric(
        name="tailrace_backend_up",
        kind="gauge",
        labels=("backend",),
        unit="bool",
        merge="max",
        definition="1 when the backend answered its last check.",
    ),
    Metric(
        name="tailrace_engine_requests_running",
        kind="gauge",
        labels=("backend",),
        unit="requests",
        merge="max",
        definition="Running requests by the engine's own metrics, at the last scrape.",
    ),
    Metric(
        name="tailrace_engine_requests_waiting",
        kind="gauge",
        labels=("backend",),
        unit="requests",
        merge="max",
        definition="Waiting requests by the engine's own metrics, at the last scrape.",
    ),
    Metric(
        name="tailrace_engine_kv_usage_ratio",
        kind="gauge",
        labels=("backend",),
        unit="ratio",
        merge="max",
        definition="Share of KV-cache blocks in use by the engine's own metrics, 0 to 1.",
    ),
    # -- reports of services before the gateway
    Metric(
        name="tailrace_application_records_total",
        kind="counter",
        labels=("fate",),
        unit="records",
        definition="Requests that services before the gateway have reported, by what became of their records: kept, "
        "dropped. They are in no other number.",
    ),
    Metric(
        name="tailrace_application_reports_lost_total",
        kind="counter",
        unit="requests",
        definition="Requests that those services could not report, as they last said themselves.",
    ),
    Metric(
        name="tailrace_scrapes_total",
        kind="counter",
        labels=("backend", "result"),
        unit="scrapes",
        definition="Times that the engine's metrics were asked for, by result: answered, failed (late, refused).",
    ),
    Metric(
        name="tailrace_engine_state_age_seconds",
        kind="gauge",
        labels=("backend",),
        unit="seconds",
        merge="max",
        definition="Age of the last scrape that was answered; above scrape.stale it counts as absent.",
    ),
    Metric(
        name="tailrace_engine_frozen",
        kind="gauge",
        labels=("backend",),
        unit="bool",
        merge="max",
        definition="1 while the engine has requests and its counters of tokens, steps and ended requests have stood "
        "still for scrape.frozen; its /health may say 200 all the while.",
    ),
    Metric(
        name="tailrace_engine_draining",
        kind="gauge",
        labels=("backend",),
        unit="bool",
        merge="max",
        definition="1 while an operator keeps new requests away from the engine.",
    ),
    Metric(
        name="tailrace_engine_preemption_suspected",
        kind="gauge",
        labels=("backend",),
        unit="bool",
        merge="max",
        definition="1 while requests wait in the engine with others running and its KV cache full, though its counter "
        "of preemptions has not moved: vLLM counts one when the request resumes.",
    ),
    Metric(
        name="tailrace_engine_restarts_total",
        kind="counter",
        labels=("backend",),
        unit="restarts",
        definition="Times that the engine's counters were seen to begin anew.",
    ),
    Metric(
        name="tailrace_engine_tokens_total",
        kind="counter",
        labels=("backend", "kind"),
        unit="tokens",
        definition="Tokens by the engine's own counters since the gateway began to ask, over its restarts: prompt, "
        "generation, cached (prompt tokens found in the prefix cache).",
    ),
    Metric(
        name="tailrace_engine_preemptions_total",
        kind="counter",
        labels=("backend",),
        unit="preemptions",
        definition="Preemptions by the engine's own counter, over its restarts.",
    ),
    Metric(
        name="tailrace_engine_requests_total",
        kind="counter",
        labels=("backend", "result", "reason"),
        unit="requests",
        definition="Requests by the engine's own counters, over its restarts: finished, aborted, rejected, failed. "
        "Those whose client left are often in none; tailrace_engine_sent_total has them.",
    ),
    Metric(
        name="tailrace_engine_sent_total",
        kind="counter",
        labels=("backend", "outcome", "reason"),
        unit="requests",
        definition="Requests that the gateway sent to the engine and that have ended, as the gateway saw it: the other "
        "side of tailrace_engine_requests_total.",
        of=_sent,
    ),
    Metric(
        name="tailrace_engine_latency_seconds",
        kind="gauge",
        labels=("backend", "signal", "stat"),
        unit="seconds",
        merge="max",
        definition="The engine's own durations over the last minute: queue, prefill, decode, ttft, itl, tpot, e2e. "
        "stat is mean (from sum and count), or the low and high end of the bucket in which a quantile lies (p50_low, "
        "p50_high, p99_low, p99_high; +Inf where no bucket ends above it).",
    ),
    Metric(
        name="tailrace_engine_latency_observations",
        kind="gauge",
        labels=("backend", "signal"),
        unit="observations",
        merge="max",
        definition="How many observations tailrace_engine_latency_seconds rests on.",
    ),
    Metric(
        name="tailrace_engine_prefix_hit_ratio",
        kind="gauge",
        labels=("backend",),
        unit="ratio",
        merge="max",
        definition="Share of prompt tokens found in the engine's prefix cache in the last minute.",
    ),
    *(*BACKEND_METRICS, *LADDER_METRICS, *ALERT_METRICS),
    *SPAN_METRICS,
    *ROUTE_METRICS,
    *CACHE_METRICS,
    # -- our own records
    Metric(
        name="tailrace_records_acknowledged_total",
        kind="counter",
        unit="records",
        definition="Records committed to the hot tier.",
    ),
    Metric(
        name="tailrace_records_dropped_total",
        kind="counter",
        labels=("class",),
        unit="records",
        definition="Records lost because the disk did not keep up, by class. Normal ones are given up before slow "
        "ones; a diagnosis refuses above 1 %.",
    ),
    Metric(
        name="tailrace_amendments_acknowledged_total",
        kind="counter",
        unit="amendments",
        definition="Late reports on requests (spans, freed slots) committed to the hot tier.",
    ),
    Metric(
        name="tailrace_amendments_dropped_total",
        kind="counter",
        labels=("class",),
        unit="amendments",
        definition="Late reports lost, by class: `stages` would have split a request's time, `facts` told something "
        "else. The records themselves are not touched by it.",
    ),
    Metric(
        name="tailrace_records_waiting",
        kind="gauge",
        unit="records",
        definition="Records not yet committed.",
    ),
    Metric(
        name="tailrace_records_disk_ok",
        kind="gauge",
        unit="bool",
        merge="min",
        definition="0 while records cannot be written; relaying goes on.",
    ),
    # -- this machine
    *HOST_METRICS,
    Metric(
        name="tailrace_build_info",
        kind="gauge",
        labels=("version", "bucket_list"),
        merge="max",
        definition="Always 1. bucket_list is the version of the histogram bounds, with the bounds added by objectives.",
    ),
)

METRIC_TABLE: Final[dict[str, Metric]] = {metric.name: metric for metric in _TABLE}
"""Name -> metric."""


def metric_markdown() -> str:
    """The reference page of the metrics, as a Markdown table."""
    lines = ["| metric | type | labels | unit | definition |", "|---|---|---|---|---|"]
    for metric in _TABLE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        definition = metric.definition.replace("|", "\\|")
        if metric.buckets:
            definition += " Buckets: " + " ".join(f"{bound:g}" for bound in metric.buckets) + "."
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {definition} |")
    return "\n".join(lines) + "\n"
