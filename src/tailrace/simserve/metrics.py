"""`/metrics` under vLLM's current names (0.32), types and default buckets.

Only what the engine really knows is exported: a family that would always be a constant lie is left out.
As in vLLM, requests whose client left are counted in no histogram.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from tailrace.simulate.cost import PS_PER_S
from tailrace.simulate.engine import Engine
from tailrace.simulate.request import SimRequest

_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
_STEP: Final = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_PREEMPTIONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_N: Final = (1.0, 2.0, 5.0, 10.0, 20.0)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """A Prometheus histogram with fixed upper bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> list[str]:
        """Exposition lines: cumulative buckets, count, sum."""
        out = []
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            out.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(seen)}')
        seen += self.counts[-1]
        out.append(f'{name}_bucket{{{labels},le="+Inf"}} {float(seen)}')
        out.append(f"{name}_count{{{labels}}} {float(seen)}")
        out.append(f"{name}_sum{{{labels}}} {self.total}")
        return out


_HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "vllm:request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "vllm:request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
    "vllm:iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _STEP),
    "vllm:request_max_num_generation_tokens": ("Histogram of maximum number of requested generation tokens.", _TOKENS),
    "vllm:request_params_n": ("Histogram of the n request parameter.", _N),
    "vllm:request_params_max_tokens": ("Histogram of the max_tokens request parameter.", _TOKENS),
    "vllm:time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "vllm:inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _ITL),
    "vllm:request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _ITL,
    ),
    "vllm:e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "vllm:request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "vllm:request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "vllm:request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "vllm:request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
    "vllm:request_num_preemptions": ("Histogram of the number of times a request was preempted.", _PREEMPTIONS),
    "vllm:request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        _TOKENS,
    ),
}


class EngineMetrics:
    """What the server observes, step by step and request by request."""

    def __init__(self, engine: Engine, model: str, *, max_model_len: int) -> None:
        self._engine = engine
        self._labels = f'engine="0",model_name="{model}"'
        self._model = model
        self._max_model_len = max_model_len
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._success: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self._rejected = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        self.http: dict[tuple[str, str, str], int] = {}
        """(handler, method, status class) -> answers."""

    def step(self, tokens: int, gaps: dict[int, int]) -> None:
        """A step ended: tokens computed, and how many tokens came out at which gap (ps) since their request's last."""
        self._histograms["vllm:iteration_tokens_total"].observe(tokens)
        itl = self._histograms["vllm:inter_token_latency_seconds"]
        for gap, times in gaps.items():
            itl.observe(gap / PS_PER_S, times)

    def first_token(self, request: SimRequest) -> None:
        """A request's first token came out."""
        if request.first_at is not None:
            value = (request.first_at - request.arrival) / PS_PER_S
            self._histograms["vllm:time_to_first_token_seconds"].observe(value)

    def rejected(self) -> None:
        """A request was refused because the queue is full."""
        self._rejected["max_num_queued_reqs"] += 1

    def answered(self, handler: str, method: str, status: int) -> None:
        """An HTTP answer began with this status."""
        key = (handler, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1

    def finished(self, request: SimRequest, reason: str, max_tokens: int) -> None:
        """A request completed."""
        self._success[reason] += 1
        observe = {name.removeprefix("vllm:"): histogram.observe for name, histogram in self._histograms.items()}
        scheduled = request.scheduled_at or request.arrival
        first = request.first_at or scheduled
        end = request.ended_at
        observe["request_prompt_tokens"](request.prompt)
        observe["request_generation_tokens"](request.output)
        observe["request_max_num_generation_tokens"](request.output)
        observe["request_params_n"](1)
        observe["request_params_max_tokens"](max_tokens)
        observe["e2e_request_latency_seconds"]((end - request.arrival) / PS_PER_S)
        observe["request_queue_time_seconds"]((scheduled - request.arrival) / PS_PER_S)
        observe["request_inference_time_seconds"]((end - scheduled) / PS_PER_S)
        observe["request_prefill_time_seconds"]((first - scheduled) / PS_PER_S)
        observe["request_decode_time_seconds"]((end - first) / PS_PER_S)
        observe["request_num_preemptions"](request.preemptions)
        observe["request_prefill_kv_computed_tokens"](request.prompt - (request.cached or 0))
        if request.output > 1:
            observe["request_time_per_output_token_seconds"]((end - first) / PS_PER_S / (request.output - 1))

    def render(self) -> str:
        """The exposition text."""
        engine = self._engine
        counters = engine.counters
        labels = self._labels
        out: list[str] = []

        def family(name: str, kind: str, text: str, samples: list[tuple[str, float]]) -> None:
            # A counter's TYPE line carries `_total` here, as prometheus_client writes it in the text format.
            out.append(f"# HELP {name} {text}")
            out.append(f"# TYPE {name} {kind}")
            out.extend(f"{name}{{{sample}}} {float(value)}" for sample, value in samples)

        def gauge(name: str, text: str, value: float) -> None:
            family(name, "gauge", text, [(labels, value)])

        def counter(name: str, text: str, value: float) -> None:
            family(name, "counter", text, [(labels, value)])

        waiting = engine.waiting
        gauge("vllm:num_requests_running", "Number of requests in model execution batches.", engine.running)
        gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Number of waiting requests by reason.",
            [(f'{labels},reason="capacity"', waiting), (f'{labels},reason="deferred"', 0)],
        )
        gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.kv_usage)
        counter(
            "vllm:prefix_cache_queries_total",
            "Prefix cache queries, in terms of number of queried tokens.",
            counters.prefix_query_tokens,
        )
        counter(
            "vllm:prefix_cache_hits_total",
            "Prefix cache hits, in terms of number of cached tokens.",
            counters.prefix_hit_tokens,
        )
        counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", counters.preemptions)
        counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", counters.prompt_tokens)
        family(
            "vllm:prompt_tokens_by_source_total",
            "counter",
            "Number of prompt tokens by source.",
            [
                (f'{labels},source="local_compute"', counters.prompt_tokens - counters.prefix_hit_tokens),
                (f'{labels},source="local_cache_hit"', counters.prefix_hit_tokens),
                (f'{labels},source="external_kv_transfer"', 0),
            ],
        )
        counter(
            "vllm:prompt_tokens_cached_total",
            "Number of cached prompt tokens (local + external).",
            counters.prefix_hit_tokens,
        )
        counter("vllm:generation_tokens_total", "Number of generation tokens processed.", counters.generation_tokens)
        family(
            "vllm:request_success_total",
            "counter",
            "Count of successfully processed requests.",
            [(f'{labels},finished_reason="{reason}"', count) for reason, count in self._success.items()],
        )
        family(
            "vllm:admission_rejections_total",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
            [(f'model_name="{self._model}",reason="{reason}"', count) for reason, count in self._rejected.items()],
        )
        for name, (text, _) in _HISTOGRAMS.items():
            out.append(f"# HELP {name} {text}")
            out.append(f"# TYPE {name} histogram")
            out.extend(self._histograms[name].lines(name, labels))
        knobs = engine.knobs
        info = (
            f'block_size="{knobs.block_size}",cache_dtype="auto",'
            f'enable_prefix_caching="{knobs.enable_prefix_caching}",engine="0",'
            f'kv_cache_size_tokens="{knobs.kv_tokens}",model_name="{self._model}",'
            f'kv_cache_max_concurrency="{knobs.kv_tokens / self._max_model_len:.2f}",'
            f'num_gpu_blocks="{knobs.num_gpu_blocks}",simulated="True"'
        )
        family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", [(info, 1)])
        family(
            "http_requests_total",
            "counter",
            "Total number of requests by method, status and handler.",
            [
                (f'handler="{handler}",method="{method}",status="{status}"', count)
                for (handler, method, status), count in sorted(self.http.items())
            ],
        )
        return "\n".join(out) + "\n"
