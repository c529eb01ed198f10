"""The sections of the configuration, one struct each; `config.py` puts them together and checks them."""

from __future__ import annotations

from typing import Literal

import msgspec

from tailrace.gateway.config_values import Duration, Section, lasting
from tailrace.gateway.guard_keys import GapConfig, PaceConfig
from tailrace.gateway.lane_keys import AdaptiveConfig
from tailrace.gateway.token_keys import TokenLimitsConfig
from tailrace.govern.lane import LaneMatch, Order
from tailrace.model.thresholds import MS, Budgets, S, SlowThresholds


class TlsConfig(Section):
    """TLS on the data port; files in PEM form, read again with each reload."""

    cert: str
    """The certificate and its chain."""
    key: str | None = None
    """Its key, without a passphrase; default: in the same file."""
    client_ca: str | None = None
    """Authorities of client certificates. Set, no client without one gets in."""


class EngineTlsConfig(Section):
    """How an engine behind `https://` is trusted."""

    ca: str | None = None
    """Its authorities; default: the system's."""
    verify: bool = True
    """False trusts whoever answers."""
    server_name: str | None = None
    """The name that its certificate must have, where the address has another."""
    cert: str | None = None
    """A certificate of our own, for an engine that demands one."""
    key: str | None = None


class BackendConfig(Section):
    """One engine."""

    url: str
    """`http://`, `https://`, or a Unix socket: `unix:/run/engine.sock`, `http+unix://%2Frun%2Fengine.sock`."""
    tls: EngineTlsConfig | None = None
    """For `https://`; the system's authorities without it."""
    name: str = "default"
    engine: str = "auto"
    """`auto` looks at the engine's headers, its metrics and what it answers about itself; or `vllm`, `sglang`,
    `llamacpp`, `triton`, `tgi`, `tensorrt_llm`, `dynamo`, `openai`."""
    dtype: str = ""
    """Precision of the model, for records of an engine that does not tell it; what the engine tells wins."""
    quantization: str = ""
    """Quantisation of its weights, likewise."""
    metrics_url: str | None = None
    """Where the engine's Prometheus text is; default: `/metrics` of `url`."""
    model: str | None = None
    """A model that the engine must list. Where another server has taken its address, `/health` says 200 all the same;
    with this key nothing is sent to it."""
    api_key: str | None = None
    forward_priority: bool | Literal["override"] = False
    """Give the engine the lane's priority, in its own field and sign: vLLM (`--scheduling-policy priority`), SGLang
    (`--enable-priority-scheduling`), Triton (`priority_levels`). A client's own wins, but with `override`."""
    grpc_url: str | None = None
    """Where a Triton serves gRPC: `10.0.0.5:8001`, or `grpcs://triton.example:443` for TLS. Needs `grpc_listen`."""
    weight: float = 1.0
    """Its share of the work among several: one of weight 2 gets twice that of one of weight 1."""
    max_prompt_tokens: int | None = None
    """Longer prompts go to other backends; where none takes them, to the one with the largest bound."""


class BudgetsConfig(Section):
    """The longest each phase may take."""

    queue: Duration = lasting(2 * S)
    """Waiting in the lane."""
    first_token: Duration = lasting(5 * S)
    """From the send to the first token of a stream."""
    idle: Duration = lasting(2 * S)
    """Between two tokens of a stream; comments do not count."""
    total: Duration = lasting(120 * S)
    """From the first byte of a request to the end of its stream."""
    unstreamed_total: Duration = lasting(30 * S)
    """The same for an answer that comes in one piece."""

    def resolve(self) -> Budgets:
        """As the governor reads them."""
        return Budgets(
            queue_ns=int(self.queue),
            first_token_ns=int(self.first_token),
            idle_ns=int(self.idle),
            total_ns=int(self.total),
            unstreamed_total_ns=int(self.unstreamed_total),
        )


class LaneConfig(Section):
    """One lane; the first whose `match` accepts a request takes it."""

    name: str
    match: LaneMatch = LaneMatch()
    running: int = 256
    """Requests of the lane that the engine may have at once."""
    queued: int = 1024
    """Requests that may wait for one of these places; more are refused with 429."""
    order: Order = Order.FIRST_COME
    priority: str | int = "normal"
    """`high`, `normal`, `low`, or a number (lower goes first)."""
    budgets: BudgetsConfig | None = None
    objectives: dict[str, Duration] | None = None
    gap: GapConfig | None = None
    """The longest gap between two tokens of a stream, and what becomes of it; absent: only the idle budget counts."""
    pace: PaceConfig | None = None
    """The fewest tokens a second; absent: none are demanded."""
    tokens: TokenLimitsConfig | None = None
    """Limits of prompts and outputs in this lane."""
    throughput: float | None = None
    """Output tokens a second that the lane should get done, for work whose latency nobody feels. Such a lane has no
    latency objectives but those that it names."""
    running_tokens: int | None = None
    """Prompt and predicted output tokens of all its requests that the engine may have at once."""
    running_kv_tokens: int | None = None
    """What they may come to hold in the KV cache: prompt, and of each sequence the predicted output's high end."""
    queued_tokens: int | None = None
    """Prompt and predicted output tokens that may wait; more are refused with 429."""
    prefill_requests: int | None = None
    """Requests that may be between their start and their first token. An answer in one piece has its first at its end.
    """
    prefill_tokens: int | None = None
    """Their prompts, together."""
    prefill_order: Order | None = None
    """Who is next when a place in prefill became free; default: `order`."""
    patience: Duration | None = None
    """How long a request may be overtaken by its lane's order: then every second place is for the one that came first.
    Default: half of the queue budget."""
    weight: float = 1.0
    """Its part of what lanes share, where `sharing.between_lanes` is `weighted`."""
    backends: list[str] = msgspec.field(default_factory=list)
    """Backends that serve it; default: all."""
    adaptive: AdaptiveConfig | None = None
    """Let the running limit move below `running`; absent: it stands still."""


class SlowConfig(Section):
    """When a request counts as slow, and its timeline is kept."""

    ttft: Duration = lasting(500 * MS)
    tpot: Duration = lasting(80 * MS)
    gap: Duration = lasting(150 * MS)
    gaps_in_a_row: int = 3
    single_gap: Duration = lasting(500 * MS)
    single_gap_factor: float = 10.0

    def resolve(self) -> SlowThresholds:
        """As the meter reads them."""
        return SlowThresholds(
            ttft_ns=int(self.ttft),
            tpot_ns=int(self.tpot),
            gap_ns=int(self.gap),
            gaps_in_a_row=self.gaps_in_a_row,
            single_gap_ns=int(self.single_gap),
            single_gap_factor=self.single_gap_factor,
        )


class LimitsConfig(Section):
    """What the data port accepts."""

    header_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024
    """Of a JSON body, which is read before it is admitted. Larger than any text prompt; images as base64 fit."""
    upload_bytes: int = 1024 * 1024 * 1024
    """Of a body that goes upstream as it comes (audio, `passthrough`): it is never here as a whole."""
    upload_stall: Duration = lasting(30 * S)
    """How long a request's body may make no progress before it is given up."""
    upload_total: Duration = lasting(600 * S)
    """How long a body may take to go upstream, all in all; the request's own budgets begin at its end."""
    event_bytes: int = 1024 * 1024
    connections: int = 10_000
    header_stall: Duration = lasting(10 * S)
    """How long a request's head may take; a slow sender of headers holds a connection and no more."""
    client_idle: Duration = lasting(75 * S)
    """How long a client's connection may lie idle: longer than the 60 s of common balancers, which then close first."""
    upstream_connections: int = 8192
    """Connections to the engine, one for each request it works on. At the bound a request waits, within its queue
    budget, for one to become free."""
    client_buffer_bytes: int = 256 * 1024
    """How much may wait for a client that reads slowly before the engine is paused."""
    grpc_message_bytes: int = 256 * 1024 * 1024
    """The largest gRPC message in either direction. gRPC's own 4 MiB cut tensors off: eight RGB pictures of 1920 x 1080
    as 32-bit floats are 190 MiB. A message is held whole, so this times the calls at once bounds the memory."""


class ScrapeConfig(Section):
    """How the engine's metrics are read, off every request's path."""

    period: Duration = lasting(1 * S)
    jitter: float = 0.1
    """By which share of the period a pause is shorter or longer, by chance: gateways started together do not stay in
    step."""
    timeout: Duration = lasting(1 * S)
    stale: Duration = lasting(3 * S)
    """An older answer is no evidence: the record's engine state is then absent."""
    frozen: Duration = lasting(10 * S)
    """How long an engine with requests may compute nothing before it is called frozen. A long prompt that is computed
    in one piece looks the same, so let it exceed your longest."""


class SignalsConfig(Section):
    """What is read of this machine: CPU time given and withheld, pressure, memory, accelerators."""

    enabled: bool = True
    """False reads nothing."""
    period: Duration = lasting(1 * S)
    """Between two samples; one costs one to three milliseconds of CPU, in a thread of its own."""
    gpu: str | bool = "auto"
    """`auto` takes NVML (the Python module `pynvml`) or the program `nvidia-smi`, where there is one; `off`; or the URL
    of a DCGM exporter, for example `http://127.0.0.1:9400/metrics`."""
    engine_pid: int | None = None
    """The engine's process on this machine; unset: whoever listens at the backend's address, and what it started."""

    @property
    def gpu_source(self) -> str:
        """`auto`, `off` or a URL; YAML reads a bare `off` as false."""
        if isinstance(self.gpu, bool):
            return "auto" if self.gpu else "off"
        return self.gpu


class TracesConfig(Section):
    """Spans that engines and services report, and which requests an engine is asked to trace."""

    share: float = 0.01
    """Of the traces that begin here, how many the engine is asked to trace; drawn by the trace's id."""
    per_second: float = 1.0
    """The most of them a second over all workers; as many again of those whose caller samples them, and of those that
    ask by `x-tailrace-trace: 1`. 0 asks for none."""
    body_bytes: int = 4 * 1024 * 1024
    """The largest `POST /v1/traces`, unpacked. Exporters send at most 512 spans at once by default, about 1 kB each;
    what is in memory at once is this times four."""
    grpc_listen: str | None = None
    """Where exporters that speak gRPC send their spans (SGLang's does), for example `127.0.0.1:4317`. Needs the extra
    `grpc`. Beyond loopback it takes `admin_token`, as the admin port does."""


class InferenceConfig(Section):
    """Queue and prefill of an engine that reports neither, inferred from the tokens of the requests beside it."""

    enabled: bool = True
    error_share: float = 0.15
    """A stage is shown where its stated error is at most this share of it ..."""
    error_floor: Duration = lasting(10 * MS)
    """... or this time, whichever is more; otherwise it stays unattributed."""


class WebsocketConfig(Section):
    """What a WebSocket session may do. The `total` budget does not apply to it."""

    message_bytes: int = 16 * 1024 * 1024
    """The largest message in either direction, as it is on the wire; above it both sides are closed with 1009.
    uvicorn, under most engines, takes no more either."""
    idle: Duration = lasting(300 * S)
    """How long neither side may send data; pings are no data. A voice session may be silent for minutes."""
    session: Duration | None = None
    """How long a session may last; unset: as long as its ends want."""


class RecordsConfig(Section):
    """What is kept, where and for how long."""

    dir: str = "tailrace-data"
    sample: float = 0.01
    """Share of the normal requests whose timeline is kept."""
    queue: int = 10_000
    """Records that may wait for the writer; above it normal ones are dropped first, and counted."""
    seal_rows: int = 20_000
    seal_after: Duration = lasting(30 * S)
    """Records become a Parquet segment when there are `seal_rows` of them, or the oldest is this old."""
    retention: Duration = lasting(7 * 86400 * S)
    timeline_events: int = 2048
