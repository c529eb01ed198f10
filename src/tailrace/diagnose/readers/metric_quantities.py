"""What an engine's metric measures, in the words of the vocabulary: by its name, else by the words in it.

The tables of `engines` come first: adapters' signals, counters, timings. A metric in none of them (a router's, an
application's own, a renamed one) is told by the words of its name and the unit at its end; one without such words keeps
its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.engines.prometheus_text import Scrape
from tailrace.engines.registry import ADAPTERS
from tailrace.engines.tallies import COUNTERS, TIMINGS

__all__ = ["Measured", "by_words", "counters_in", "gauges_in", "histograms_in", "identity", "is_known", "is_mean_only"]


class Measured(NamedTuple):
    """One metric of a scrape."""

    name: str
    """The quantity."""
    raw: str
    """The metric (of a histogram: its family)."""
    scale: float
    """Multiplies its values into `unit`."""
    unit: str
    by: str = ""
    """A label by whose values a counter is told apart."""
    only: Mapping[str, str] = {}


_COUNTER_NAMES: Final = {"generation_tokens": "output_tokens"}
_MORE_COUNTERS: Final = (
    # Triton counts time; its mean over a window is one counter's delta by another's.
    Measured("queue_time", "nv_inference_queue_duration_us", 1e-3, "ms"),
    Measured("compute_time", "nv_inference_compute_infer_duration_us", 1e-3, "ms"),
    Measured("compute_input_time", "nv_inference_compute_input_duration_us", 1e-3, "ms"),
    Measured("compute_output_time", "nv_inference_compute_output_duration_us", 1e-3, "ms"),
    Measured("request_time", "nv_inference_request_duration_us", 1e-3, "ms"),
    Measured("inferences", "nv_inference_count", 1.0, "count"),
    Measured("executions", "nv_inference_exec_count", 1.0, "count"),
    Measured("prefill_time", "llamacpp:prompt_seconds_total", 1e3, "ms"),
    Measured("decode_time", "llamacpp:tokens_predicted_seconds_total", 1e3, "ms"),
    Measured("process_cpu", "process_cpu_seconds_total", 1e3, "ms"),
    Measured("gc_collections", "python_gc_collections_total", 1.0, "count", by="generation"),
    Measured("loop_stalls", "dynamo_frontend_event_loop_stall_total", 1.0, "count"),
)
_MORE_GAUGES: Final = (
    Measured("waiting", "nv_inference_pending_request_count", 1.0, "count"),
    Measured("gpu_util", "nv_gpu_utilization", 1.0, "share"),
    Measured("power", "nv_gpu_power_usage", 1.0, "W"),
    Measured("power_limit", "nv_gpu_power_limit", 1.0, "W"),
    Measured("swapped", "vllm:num_requests_swapped", 1.0, "count"),
    Measured("prefix_hit", "sglang:cache_hit_rate", 1.0, "share"),
    Measured("prefix_hit", "vllm:gpu_prefix_cache_hit_rate", 1.0, "share"),
    Measured("grammar_waiting", "sglang:num_grammar_queue_reqs", 1.0, "count"),
    Measured("router_waiting", "dynamo_frontend_router_queue_pending_requests", 1.0, "count"),
    Measured("inflight_client", "dynamo_frontend_inflight_requests", 1.0, "count"),
)
_SIGNALS: Final = {"running": "count", "waiting": "count", "kv_usage": "share"}
_FRONTS: Final = ("dynamo_",)
"""Front ends before engines: where the engine behind one speaks too, the engine's own gauges are the engine's."""

_IDENTITY: Final = (
    *("instance", "replica", "pod", "pod_name", "kubernetes_pod_name", "exported_instance", "worker", "worker_id"),
    *("server", "target", "node", "host", "hostname", "container", "backend", "upstream", "dp_rank", "engine", "gpu"),
    *("gpu_uuid", "UUID", "model", "namespace_pod", "exported_pod", "worker_addr", "worker_url", "addr", "address"),
)
"""Labels that say whose a series is. Series that differ in others only (the model's name, a reason) are added up."""

_WORDS: Final[tuple[tuple[str, str], ...]] = (
    # (words that stand in the name, quantity); the first that fits wins.
    (r"time_to_first_token|first_token_(latency|time|duration)|\bttft\b|_ttft_", "ttft"),
    (r"inter_token_latency|\bitl\b|_itl_", "itl"),
    (r"time_per_output_token|\btpot\b|_tpot_", "tpot"),
    (r"queue_(time|wait|duration|latency)|time_in_queue|wait(ing)?_time", "queue"),
    (r"prefill_(time|latency|duration)", "prefill"),
    (r"decode_(time|latency|duration)", "decode"),
    (r"(event_)?loop_(lag|delay)", "loop_lag"),
    (r"e2e_(request_)?latency|request_(total_)?(latency|duration|time)|response_(time|latency)|end_to_end", "e2e"),
    (
        r"(model|llm|engine|backend|upstream|chat|completions?|generat\w+)_(api_)?(calls?|requests?)?_?(total_)?(latency|duration)",
        "e2e",
    ),
    (r"(^|_)calls?_(latency|duration)", "e2e"),
)
_GAUGE_WORDS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"(num_)?(requests_running|running_(reqs|requests|seqs))", "running", "count"),
    (
        r"(num_)?(requests_(waiting|pending)|(waiting|pending|queue|queued)_(reqs|requests|seqs))|queue_(size|depth|length)",
        "waiting",
        "count",
    ),
    (r"(kv|gpu)_?cache_(usage|utili[sz]ation)|kv_usage|token_usage|cache_usage_perc", "kv_usage", "share"),
    (r"gpu_util", "gpu_util", "share"),
    (r"in_?flight|active_requests|requests_in_progress|active_connections", "inflight", "count"),
)
_COUNTER_WORDS: Final[tuple[tuple[str, str], ...]] = (
    (r"preempt|retract(ed|ions)?(_requests|_reqs)?(_total)?$", "preemptions"),
    (r"prefix_cache_hits|cache(d|_hit)_tokens", "prefix_found"),
    (r"prefix_cache_quer(y|ies)|cache_query_tokens", "prefix_queried"),
)
_UNIT_ENDS: Final[tuple[tuple[str, float], ...]] = (
    ("_seconds", 1e3), ("_secs", 1e3), ("_s", 1e3), ("_milliseconds", 1.0), ("_ms", 1.0),
    ("_microseconds", 1e-3), ("_us", 1e-3), ("_nanoseconds", 1e-6), ("_ns", 1e-6),
)  # fmt: skip

_IN_SECONDS: Final = ("litellm_",)
"""Makers whose durations are in seconds though no name says so."""


def counters_in(scrape: Scrape) -> list[Measured]:
    """The counters of a scrape that a rule may ask for, then all others under their own names."""
    out: list[Measured] = []
    for noun, counter in COUNTERS.items():
        found = next((alias for alias in counter.aliases if alias.name in scrape), None)
        if found is not None:
            name = _COUNTER_NAMES.get(noun, noun)
            out.append(Measured(name, found.name, found.scale, counter.unit, counter.by, counter.only))
    out += [item for item in _MORE_COUNTERS if item.raw in scrape]
    known = {item.raw for item in out}
    nouns = {item.name for item in out}
    for raw in scrape.samples:
        if raw in known or not _counts(scrape, raw):
            continue
        name = _counted(raw)
        if name and name not in nouns:
            out.append(Measured(name, raw, 1.0, "count"))
            nouns.add(name)
        elif not raw.endswith(("_bucket", "_sum", "_count")):
            out.append(Measured(raw, raw, 1.0, ""))
    return out


def is_mean_only(scrape: Scrape, raw: str) -> bool:
    """Whether of a histogram its sum and its count are there, and no bucket."""
    return f"{raw}_sum" in scrape and f"{raw}_count" in scrape and raw not in scrape and f"{raw}_bucket" not in scrape


def histograms_in(scrape: Scrape) -> list[Measured]:
    """The histograms of a scrape: durations in ms under their quantity, others under their own names."""
    out: list[Measured] = []
    for noun, timing in TIMINGS.items():
        found = next((alias for alias in timing.aliases if f"{alias.name}_bucket" in scrape), None)
        # Who pastes by hand leaves the buckets out: sum and count still give the mean.
        found = found or next((alias for alias in timing.aliases if is_mean_only(scrape, alias.name)), None)
        if found is not None:
            out.append(Measured(noun, found.name, found.scale * 1e3, "ms"))
    known, nouns = {item.raw for item in out}, {item.name for item in out}
    for sample in scrape.samples:
        raw = sample.removesuffix("_bucket")
        if raw == sample:
            raw = sample.removesuffix("_sum")
            # Without buckets it tells a mean, which is worth something where its name says of what.
            if raw == sample or not is_mean_only(scrape, raw) or by_words(raw)[0] == raw:
                continue
        if raw in known:
            continue
        name, scale, unit = by_words(raw)
        if name in nouns:
            name = raw
        out.append(Measured(name, raw, scale, unit))
        nouns.add(name)
    return out


def gauges_in(scrape: Scrape) -> list[Measured]:
    """The gauges of a scrape that a rule may ask for, then all others under their own names."""
    out: list[Measured] = []
    engines = [adapter for adapter in ADAPTERS.values() if not set(adapter.metric_prefixes) & set(_FRONTS)]
    fronts = [adapter for adapter in ADAPTERS.values() if set(adapter.metric_prefixes) & set(_FRONTS)]
    for signal, unit in _SIGNALS.items():
        aliases = [alias for adapter in (*engines, *fronts) for alias in adapter.signals.get(signal, ())]
        found = next((alias for alias in aliases if alias.name in scrape), None)
        if found is not None:
            out.append(Measured(signal, found.name, found.scale, unit))
    nouns, known = {item.name for item in out}, {item.raw for item in out}
    for item in _MORE_GAUGES:
        if item.raw in scrape and item.raw not in known and item.name not in nouns:
            out.append(item)
            nouns.add(item.name)
            known.add(item.raw)
    for raw in scrape.samples:
        if raw in known or raw.endswith(("_bucket", "_sum", "_count", "_info")) or _counts(scrape, raw):
            continue
        named = next(((name, unit) for words, name, unit in _GAUGE_WORDS if re.search(words, raw)), None)
        if named is not None and named[0] not in nouns:
            out.append(Measured(named[0], raw, 1.0, named[1]))
            nouns.add(named[0])
        else:
            name, scale, unit = by_words(raw)
            taken = name != raw and name in nouns
            out.append(Measured(raw, raw, 1.0, "") if taken else Measured(name, raw, scale, unit))
    return out


def is_known(scrape: Scrape) -> bool:
    """Whether any of its metrics measures a quantity that the vocabulary has."""
    found = (*gauges_in(scrape), *histograms_in(scrape), *counters_in(scrape))
    return any(item.name != item.raw for item in found) or any(
        name.startswith(("DCGM_", "dcgm_")) for name in scrape.names
    )


@lru_cache(maxsize=4096)
def _counted(raw: str) -> str:
    return next((name for words, name in _COUNTER_WORDS if re.search(words, raw)), "")


@lru_cache(maxsize=4096)
def by_words(raw: str) -> tuple[str, float, str]:
    """(quantity, factor into its unit, unit) by the words of a metric's name; its own name where they say nothing."""
    bare = raw.removesuffix("_total").removesuffix("_metric")
    scale = next((factor for end, factor in _UNIT_ENDS if bare.endswith(end)), None)
    name = next((quantity for words, quantity in _WORDS if re.search(words, bare.lower())), "")
    if scale is None and name and raw.startswith(_IN_SECONDS):
        scale = 1e3
    if scale is None:
        return raw, 1.0, ""
    return name or raw, scale, "ms"


def identity(labels: Iterable[tuple[str, str]], by: str = "") -> tuple[tuple[str, str], ...]:
    """Of a label set, what says whose the series is (and `by`)."""
    # A list is made faster than what a generator gives, and a fleet's scrape has a hundred thousand label sets.
    return tuple([item for item in labels if item[0] in _IDENTITY or (by and item[0] == by)])


def _counts(scrape: Scrape, raw: str) -> bool:
    """Whether a sample is a counter, by its declared type, else by its name."""
    kind = scrape.type_of(raw) or scrape.type_of(raw.removesuffix("_total"))
    if kind:
        return kind == "counter"
    return raw.endswith("_total")
