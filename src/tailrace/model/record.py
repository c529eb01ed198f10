"""The record: one wide row a request, whoever measured it (gateway, probe or simulator)."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.stage import STAGES
from tailrace.model.timeline import Timeline

SCHEMA: Final = 1
"""Version of the record. Fields may be added under one number; a rename or removal takes a new one."""

FROM_CACHE: Final = frozenset({"hit", "shared", "semantic"})
"""Values of `cache` with which no engine worked for the request."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is kept about one request.

    Durations are integer nanoseconds (`_ns`); `None` means "not seen" and is never replaced by another stamp or by
    0. Top-level stage fields that are present add up to `e2e_ns` exactly; parts (`queue_gateway_ns`,
    `queue_engine_ns`) are contained in their stage.
    """

    schema: int = SCHEMA
    vantage: str = "gateway"
    """Whose clock this is: `gateway`, `client` (the probe), `application` (a service before us), `engine` (its own
    trace file) or `simulated`."""

    # -- identity
    request_id: str
    client_request_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    """Our span in the trace: the parent of what the engine (an application: of what the gateway) reports."""
    session_id: str = ""
    turn: int | None = None
    """Its place in its session, from 0; absent where it belongs to none or nobody counted."""
    parent_id: str = ""
    """The caller's span: the `span_id` of the hop before us, where that hop has a record."""
    tenant: str = ""
    """Hashed when the configuration says so."""
    lane: str = "default"
    route: str = "stable"
    endpoint: str = ""
    """The API called, by its path: `/v1/chat/completions`."""
    model: str = ""
    requested_model: str = ""
    """What the client called it, where that is an alias and `model` the engine's own name."""
    service: str = ""
    """Of an application's record: the service that reported it."""
    backend: str = ""
    engine: str = ""
    engine_version: str = ""
    attempts: int = 1
    cache: str = ""
    """What the response cache did: `miss`, `hit`, `shared` (another request's answer as it came), `semantic`; empty
    where the request was none of its. One that was served from it has no engine stages: see `from_cache`."""

    # -- work
    prompt_tokens: int | None = None
    prompt_tokens_source: str = ""
    """`usage`, `tokenizer` or `estimate`."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_source: str = ""
    """`usage` > `chunk_usage` > `tokenizer` > `chunks`, the best that was there."""
    reasoning_tokens: int | None = None
    prompt_bytes: int | None = None
    """Size of the request's body; of a WebSocket session, the payload that its client sent."""
    audio_seconds: float | None = None
    max_tokens: int | None = None
    stream: bool = True
    n: int = 1
    best_of: int = 1
    beam: int = 1
    sampled: bool | None = None
    """Temperature above 0."""
    grammar: bool = False
    """Structured output was asked for."""
    truncated_from: int | None = None
    capped_to: int | None = None

    # -- engine state seen at admission and at first token (absent when no fresh scrape was there)
    running_at_admission: int | None = None
    waiting_at_admission: int | None = None
    kv_usage_at_admission: float | None = None
    running_at_first_token: int | None = None
    waiting_at_first_token: int | None = None
    kv_usage_at_first_token: float | None = None
    engine_state_age_ns: int | None = None
    """How old the scrape was that the state at admission comes from."""
    batch_size: int | None = None
    """Requests in its batch: as the engine counted, else those that ran at the first token (see `fact_sources`).
    Absent where the engine was not asked between the send and that token."""
    prefix_hit: float | None = None
    preemptions: int | None = None
    dtype: str = ""
    quantization: str = ""
    fact_sources: dict[str, str] = {}
    """Field (`dtype`, `batch_size`, ...) -> where it is known from: `configuration`, a metric, a path asked."""

    # -- time
    start_unix_ns: int
    """Wall clock at the request's first byte; for ordering and display only, never subtracted."""
    ingress_ns: int | None = None
    queue_ns: int | None = None
    queue_gateway_ns: int | None = None
    queue_engine_ns: int | None = None
    preprocess_ns: int | None = None
    encode_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    model_ns: int | None = None
    """Of an application's record: its call of the hop behind, whose own record splits it; absent in all others."""
    postprocess_ns: int | None = None
    response_ns: int | None = None
    unattributed_ns: int | None = None
    parts_ns: dict[str, int] = {}
    """Parts that services report by name: `preprocess.retrieval`. Each is contained in its stage; they may overlap."""
    stage_sources: dict[str, str] = {}
    """Stage or part -> source, as `model.stage.source` spells it."""
    e2e_ns: int
    e2e_last_token_ns: int | None = None
    ttft_ns: int | None = None
    """Request received (probe: sent) -> first token written to (probe: read by) the client."""
    ttft_upstream_ns: int | None = None
    """Request sent upstream -> first token read from the engine."""
    ttft_content_ns: int | None = None
    first_byte_ns: int | None = None
    """Request sent -> the first byte of the reply. The probe's; a gateway reads head and first byte at once."""
    headers_ns: int | None = None
    """Request sent upstream -> the engine's status line."""
    first_partial_ns: int | None = None
    chunk_gap_count: int = 0
    chunk_gap_p50_ns: int | None = None
    chunk_gap_p95_ns: int | None = None
    chunk_gap_max_ns: int | None = None
    chunk_gap_over: int = 0
    """Gaps above the configured gap threshold (150 ms by default)."""
    chunk_gap_method: str = ""
    """How the gap quantiles are known: `exact`, or `histogram` (within 0.8 %; count and maximum stay exact)."""
    tpot_ns: int | None = None
    tokens_per_s: float | None = None
    stall_count: int = 0
    stall_longest_ns: int | None = None
    client_blocked_ns: int = 0
    gateway_overhead_ns: int | None = None
    """Sum over the stream of upstream read -> client write."""
    loop_lag_ns: int | None = None
    """The largest event-loop lag seen while the request lived."""
    connect_ns: int | None = None
    """Opening the connection to the engine (probe: to the server); absent where one was there already."""
    connection_reused: bool | None = None
    pool_wait_ns: int | None = None
    """Waiting for a connection because the pool was full; absent where nobody had to wait. Contained in `queue`."""
    predicted_wait_ns: int | None = None
    """What it was foretold to wait in its lane when it was queued or refused; absent where it was let in at once, or
    nothing was known yet. `queue_gateway` is what a queued one really waited."""
    cancel_upstream_ns: int | None = None
    """Why it is over was seen (the client's end, the deadline, a call) -> its connection to the engine was closed.

    Cancelled requests that had one.
    """
    cancel_slot_ns: int | None = None
    """Why it is over was seen -> the engine's slot was seen free. Known only after the record was written: it comes by
    an amendment, where it could be proved (`GET /cancels` says why not)."""
    # -- hops: read once, at the end, of requests whose timeline is kept; Linux only
    upstream_rtt_ns: int | None = None
    """TCP's smoothed round-trip time to the engine."""
    upstream_rtt_var_ns: int | None = None
    """Its mean deviation."""
    upstream_retransmits: int | None = None
    """Segments sent again to the engine since this connection was opened, by earlier requests on it too."""
    client_rtt_ns: int | None = None
    """TCP's smoothed round-trip time to the client."""
    client_rtt_var_ns: int | None = None
    client_retransmits: int | None = None
    """Segments sent again to the client since this connection was opened."""
    gateway_cpu: float | None = None
    """Cores that the gateway's process used in the second before the end; 1.0 is one thread's all."""
    # -- time of the schedule: the probe's own stamps, as offsets from the intended time
    intended_to_queued_ns: int | None = None
    """Intended send time -> taken up by the load generator. What follows until the send is the wait for a free slot
    (where the requests in flight are capped) and for a connection."""
    intended_to_sent_ns: int | None = None
    """Intended send time -> real send. Latency from the schedule is this plus the latency from the send."""
    run_offset_ns: int | None = None
    """Start of the run -> the intended send time."""

    # -- end
    outcome: OutcomeKind
    reason: Reason = Reason.NONE
    died_in: str = ""
    """The stage in which a request that did not complete ended."""
    budget: str = ""
    """The budget that a timed-out request exceeded: `queue`, `first_token`, `idle`, `total`; of an application, the
    stage that had it: `preprocess.retrieval`."""
    error: str = ""
    """What the engine said, shortened to 300 characters."""
    http_status: int | None = None
    finish_reason: str = ""
    answer_hash: str = ""
    """Of the answer's text (64 bits of BLAKE2b, hexadecimal), where a load test looks whether answers are the same."""
    retries: int = 0
    """Attempts after the first; `backend` is the one of the last."""
    retry_wait_ns: int = 0
    """From the first attempt's begin to the last one's: what failed attempts and the pauses behind them took. Contained
    in `queue`."""
    degradation: str = ""

    # -- keep
    keep_reason: str = ""
    """Why the timeline was kept: `slow`, `stall`, `failed`, `sampled`, ... or empty."""
    keep_weight: float = 1.0
    """How many requests of its kind this record's timeline stands for."""
    slow: list[str] = []
    """The thresholds that were crossed: `ttft`, `tpot`, `stall`, `gap`; of an application, the stages that took longer
    than their budget and were not stopped."""
    timeline: Timeline | None = None

    @property
    def from_cache(self) -> bool:
        """Whether no engine worked for it: its times say nothing of one."""
        return self.cache in FROM_CACHE

    def stage_ns(self, stage: str) -> int | None:
        """The value of a stage or part by its dotted name (ns), `None` where it is absent."""
        value: int | None = getattr(self, f"{stage.replace('.', '_')}_ns")
        return value

    def stages(self) -> dict[str, int]:
        """The stages present, in the order of a request's life (ns); their sum is `e2e_ns`."""
        out: dict[str, int] = {}
        for stage in STAGES:
            value = self.stage_ns(stage)
            if value is not None:
                out[str(stage)] = value
        return out


def broken_invariants(record: RequestRecord) -> list[str]:
    """Every rule that `record` breaks, one sentence each; empty for a sound record.

    The rules: stages add up to the end-to-end time exactly; no stage is negative; parts never exceed their stage;
    every stage names its source; a completed request has no reason, any other has one.
    """
    out: list[str] = []
    stages = record.stages()
    total = sum(stages.values())
    if total != record.e2e_ns:
        out.append(f"stages add up to {total} ns, end to end is {record.e2e_ns} ns")
    out.extend(f"stage {name} is negative: {value} ns" for name, value in stages.items() if value < 0)
    parts = (record.queue_gateway_ns or 0) + (record.queue_engine_ns or 0)
    if parts > (record.queue_ns or 0):
        out.append(f"parts of queue are {parts} ns, the stage is {record.queue_ns} ns")
    for name, value in record.parts_ns.items():
        whole = record.stage_ns(name.partition(".")[0]) if name.partition(".")[0] in STAGES else None
        if whole is None or not 0 <= value <= whole:
            out.append(f"part {name} is {value} ns, its stage {whole} ns")
    out.extend(f"stage {name} has no source" for name in stages if name not in record.stage_sources)
    if (record.outcome is OutcomeKind.COMPLETED) != (record.reason is Reason.NONE):
        out.append(f"outcome {record.outcome} with reason {record.reason!r}")
    return out
