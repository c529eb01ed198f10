"""What `tailrace engine` is started with."""

from __future__ import annotations

import msgspec

from tailrace.simulate.knobs import EngineKnobs


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the simulated engine's server."""

    preset: str = "a100-llama3-8b"
    knobs: EngineKnobs = msgspec.field(default_factory=EngineKnobs)
    host: str = "127.0.0.1"
    port: int = 8000
    """0 picks a free one."""
    seed: int = 0
    """Of the drawn output lengths and the words of the answers."""
    model: str = ""
    """Name under which the model is served; empty: the preset's. It always contains `simulated`."""
    time_scale: float = 1.0
    """2.0: an engine twice as fast as the preset; 0.5: half as fast."""
    step_overhead_ms: float | None = None
    """The engine's own overhead a step, instead of the preset's (ms at time scale 1)."""
    stream_interval: int = 1
    """Tokens in a stream event; the first token is always sent at once."""
    max_num_queued_reqs: int = 0
    """Refuse (503) a request beyond this many waiting and running ones; 0: the queue is unbounded."""
    reject_in_stream: bool = False
    """Refuse streams as vLLM does in a burst: 200, an error event, `[DONE]`."""
    per_request_metrics: bool = True
    """Put `metrics` into the final usage event and the bodies."""
    output_median: int = 129
    """Median of the drawn output lengths where the request does not pin them (log-normal)."""
    output_sigma: float = 0.93
    keep_alive_interval_s: float = 0.0
    """Send `: keep-alive` comments this often before the first token; 0: never."""
