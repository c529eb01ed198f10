"""The quantities that evidence speaks of, their units, and the words that people use for them.

One name a quantity, whatever the source calls it: a rule asks for `ttft` in ms and gets it from a table in seconds, a
benchmark's text, a histogram or a series.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["QUANTITIES", "TO_MS", "Quantity", "in_unit", "phrase_in", "quantity_named", "unit_in_name"]


class Quantity(msgspec.Struct, frozen=True):
    """A quantity, the unit in which it is kept, and other words for it (lower case, blanks between words)."""

    name: str
    unit: str
    words: tuple[str, ...] = ()


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split(", "))


QUANTITIES: Final[dict[str, Quantity]] = {
    item.name: item
    for item in (
        # -- durations of a request (ms)
        Quantity(
            "ttft",
            "ms",
            (
                "time to first token",
                "first token",
                "first token latency",
                "ttfb",
                "first byte",
                "first event",
                "first chunk",
                "time to first byte",
                "time to first chunk",
                "time to first event",
                "time till first token",
                "time until first token",
                "first response",
                "first delta",
                "first output",
                "time to first response",
                "time to first output",
                "first token time",
                "first token delay",
                "t first",
                "t first token",
                "time to first",
            ),
        ),
        Quantity("ttft_content", "ms", ("time to first content token",)),
        Quantity(
            "tpot",
            "ms",
            (
                "time per output token",
                "time per token",
                "latency per token",
                "latency per output token",
                "ms per token",
                "ms/token",
                "ms/tok",
                "ms per tok",
            ),
        ),
        Quantity(
            "itl",
            "ms",
            _listed(
                "inter token latency, inter token, intertoken latency, between tokens, "
                "time between tokens, token gap, token interval, next token, next token latency, "
                "token latency, inter token gap, inter token time, tbt"
            ),
        ),
        Quantity("chunk_gap", "ms", ("gap", "inter chunk latency", "stall", "pause", "freeze")),
        Quantity(
            "e2e",
            "ms",
            (
                "e2el",
                "e2e latency",
                "end to end latency",
                "latency",
                "request latency",
                "request duration",
                "response time",
                "total latency",
                "total time",
                "last event",
                "last chunk",
                "last byte",
                "last token",
                "roundtrip",
                "round trip",
                "round trip time",
                "whole request",
                "full response",
                "total duration",
                "complete response",
            ),
        ),
        Quantity(
            "queue",
            "ms",
            (
                "queue time",
                "queue wait",
                "queue delay",
                "queueing",
                "waiting time",
                "wait time",
                "time in queue",
                "queued time",
            ),
        ),
        Quantity("prefill", "ms", ("prefill time",)),
        Quantity("decode", "ms", ("decode time",)),
        Quantity(
            "encode",
            "ms",
            _listed(
                "encoder time, encode time, encoding, encoding time, encoder, vision encode, "
                "vision encoder, vision encoding, vision encoder time, vision tower, vision tower time, "
                "vit, vit time, image encode, image encoder, image encoding, image encode time, "
                "audio encoder, audio encode, audio encoding, mm encoder, mm encode, multimodal encoder, "
                "vision"
            ),
        ),
        Quantity(
            "preprocess",
            "ms",
            _listed(
                "preprocessing, preprocess time, preproc, pre processing, input processing, image decode, "
                "image decoding, image processing, tokenization time, tokenization, tokenisation, "
                "tokenize, tokenise"
            ),
        ),
        Quantity(
            "postprocess", "ms", ("postprocessing", "postprocess time", "postproc", "post processing", "detokenize")
        ),
        Quantity("compute", "ms", ("inference time", "compute infer", "compute time", "infer", "infer time")),
        Quantity("late", "ms", ("request dispatch delay", "schedule delay")),
        Quantity("loop_lag", "ms", ("event loop lag", "event loop delay", "loop delay", "loop latency")),
        Quantity("duration", "s", ("benchmark duration", "test duration", "run duration", "run length", "wall time")),
        # -- rates
        Quantity(
            "output_tok_s",
            "tok/s",
            (
                "output token throughput",
                "output tok/s",
                "generation throughput",
                "tok/s",
                "token throughput",
                "output throughput",
                "gen tok/s",
                "generation tok/s",
                "generated tok/s",
                "generate tok/s",
            ),
        ),
        Quantity(
            "peak_output_tok_s",
            "tok/s",
            ("peak output token throughput", "peak output tok/s", "peak tok/s", "max output tok/s"),
        ),
        Quantity(
            "prompt_tok_s",
            "tok/s",
            (
                "prompt throughput",
                "input token throughput",
                "prefill tok/s",
                "prompt tok/s",
                "input tok/s",
                "prefill speed",
                "ctx tok/s",
                "context tok/s",
                "prefill throughput",
                "input throughput",
            ),
        ),
        Quantity("decode_tok_s", "tok/s", ("decode tok/s", "decode speed", "decode throughput")),
        Quantity(
            "req_s",
            "1/s",
            (
                "request throughput",
                "completed req/s",
                "achieved req/s",
                "served req/s",
                "actual req/s",
                "throughput",
                "rps",
                "qps",
                "requests per second",
                "req/s",
                "completed rps",
            ),
        ),
        Quantity(
            "offered_rps",
            "1/s",
            (
                "request rate",
                "offered rate",
                "arrival rate",
                "offered load",
                "traffic request rate",
                "offered req/s",
                "req/s offered",
                "offered rps",
                "offered qps",
                "target req/s",
                "target rps",
            ),
        ),
        Quantity("tflops", "TFLOPS", ("tflop/s",)),
        Quantity("total_tok_s", "tok/s", ("total token throughput", "total throughput", "total tok/s")),
        # -- counts
        Quantity(
            "n",
            "count",
            (
                "requests",
                "samples",
                "completed",
                "successful requests",
                "request count",
                "num requests",
                "num prompts",
                "prompts",
                "sample count",
                "count",
            ),
        ),
        Quantity("failed", "count", ("failed requests", "errors", "failures")),
        Quantity(
            "concurrency",
            "count",
            (
                "max concurrency",
                "users",
                "parallel requests",
                "in flight",
                "max request concurrency",
                "maximum request concurrency",
                "concurrent requests",
                "concurrent users",
                "parallel users",
                "clients",
                "conc",
                "concur",
            ),
        ),
        Quantity("peak_concurrency", "count", ("peak concurrent requests", "max concurrent requests")),
        Quantity(
            "running",
            "count",
            (
                "running reqs",
                "running req",
                "running requests",
                "running seqs",
                "requests running",
                "active requests",
                "num running",
                "num running reqs",
                "num requests running",
                "engine running",
                "executing",
                "executing requests",
            ),
        ),
        Quantity(
            "waiting",
            "count",
            (
                "pending",
                "pending requests",
                "pending request count",
                "waiting reqs",
                "waiting requests",
                "requests waiting",
                "num waiting",
                "num requests waiting",
                "num queue reqs",
                "queue req",
                "queue reqs",
                "queue length",
                "queue len",
                "queue size",
                "queued",
                "queued requests",
                "queue depth",
                "engine waiting",
            ),
        ),
        Quantity("swapped", "count"),
        Quantity("preemptions", "count", ("num preemptions", "preempted")),
        Quantity("replicas", "count", ("gpus", "nodes", "instances", "workers", "replica count", "pods")),
        Quantity("max_num_seqs", "count", ("max seqs", "max running requests", "max batch size", "batch limit")),
        Quantity(
            "max_num_batched_tokens",
            "tokens",
            ("chunked prefill size", "token budget", "prefill chunk", "n batch", "step budget"),
        ),
        Quantity("max_model_len", "tokens", ("context length",)),
        Quantity("kv_capacity_tokens", "tokens", ("kv capacity", "gpu kv cache size")),
        Quantity("tensor_parallel", "count", ("tp", "tp size", "tensor parallel size")),
        Quantity("data_parallel", "count", ("dp", "dp size", "data parallel size")),
        Quantity(
            "sessions",
            "count",
            ("streams", "concurrent streams", "concurrent sessions", "parallel sessions", "calls", "concurrent calls"),
        ),
        Quantity(
            "prompt_tokens",
            "tokens",
            ("input tokens", "prompt toks", "isl", "input len", "prompt len", "input length", "prompt length"),
        ),
        Quantity(
            "output_tokens",
            "tokens",
            ("generated tokens", "osl", "output len", "max tokens", "output length", "completion tokens"),
        ),
        Quantity("total_prompt_tokens", "tokens", ("total input tokens", "total input", "total prompt tokens")),
        Quantity("total_output_tokens", "tokens", ("total generated tokens", "total output tokens", "total output")),
        Quantity("tokens_in_flight", "tokens", ("queued+running tokens", "tokens")),
        # -- shares (0..1)
        Quantity(
            "failed_share", "share", ("error rate", "err rate", "failure rate", "error share", "failed share", "errors")
        ),
        Quantity("success_share", "share", ("success", "success rate")),
        Quantity("goodput", "1/s", ("request goodput", "goodput")),
        Quantity(
            "kv_usage",
            "share",
            (
                "kv cache usage",
                "gpu kv cache usage",
                "token usage",
                "gpu cache usage",
                "kv utilization",
                "kv used",
                "kv cache used",
                "kv cache",
                "kv occupancy",
            ),
        ),
        Quantity(
            "prefix_hit_tokens",
            "tokens",
            (
                "hit tokens",
                "tokens hit",
                "cached tokens",
                "cached toks",
                "prefix hit tokens",
                "hits",
                "cache read",
                "cached read",
                "n past",
                "cache n",
                "reused tokens",
                "tokens reused",
                "tokens from cache",
                "cached prompt tokens",
            ),
        ),
        Quantity("prefix_query_tokens", "tokens", ("query tokens", "queried tokens", "queries", "tokens queried")),
        Quantity(
            "prefix_hit",
            "share",
            (
                "prefix cache hit rate",
                "cache hit rate",
                "hit rate",
                "hit ratio",
                "cache hit ratio",
                "cache hit",
                "hit",
                "cache share",
                "cached share",
            ),
        ),
        Quantity(
            "gpu_util",
            "share",
            (
                "gpu utilization",
                "gpu utilisation",
                "utilization gpu",
                "gpu utilized",
                "gpu used",
                "gpu busy",
                "gpu usage",
                "gpu load",
            ),
        ),
        Quantity("encoder_cache_usage", "share", ("encoder cache usage",)),
        # -- hardware
        Quantity(
            "sm_clock",
            "MHz",
            (
                "sclk",
                "clocks sm",
                "sm clock",
                "gpu clock",
                "clock",
                "core clock",
                "graphics clock",
                "sm mhz",
                "clock mhz",
            ),
        ),
        Quantity(
            "power",
            "W",
            ("power draw", "power w", "gpu power", "gpu power w", "board power", "watts", "draw"),
        ),
        Quantity(
            "power_limit",
            "W",
            (
                "power limit",
                "power cap",
                "power limit w",
                "power cap w",
                "limit w",
                "cap w",
                "tdp",
                "enforced power limit",
            ),
        ),
        Quantity("temperature", "C", ("temp", "temperature gpu", "temp c", "temperature c", "gpu temp", "gpu temp c")),
        Quantity("accept_length", "tokens", ("mean acceptance length", "accept len", "acceptance length")),
        # -- speech
        Quantity("lag", "ms", ("stop lag",)),
        Quantity("first_partial", "ms", ("first word", "time to first partial")),
        Quantity("final_latency", "ms", ("stop", "finalization latency")),
        Quantity("end_of_turn", "ms", ("end of utterance delay", "end of turn delay", "eou delay")),
        Quantity("transcription_delay", "ms", ()),
        Quantity(
            "silence",
            "ms",
            _listed(
                "min silence, min silence duration, silence duration, silence timeout, vad silence, "
                "end silence, configured silence, silence threshold, min endpointing delay"
            ),
        ),
        Quantity("backlog", "ms", ("audio backlog", "buffered audio", "unprocessed audio")),
        Quantity(
            "chunk_service",
            "ms",
            _listed(
                "chunk service time, chunk time, chunk processing, chunk processing time, chunk compute, "
                "chunk compute time, chunk latency, per chunk, ms per chunk, time per chunk, feed, "
                "feed time, feed latency, inference per chunk, compute per chunk, processing per chunk, "
                "decode per chunk, service per chunk"
            ),
        ),
        Quantity(
            "audio_received",
            "s",
            ("received audio", "audio sent", "audio fed", "fed audio", "audio pushed", "audio in", "sent audio"),
        ),
        Quantity(
            "audio_processed",
            "s",
            _listed(
                "processed audio, audio transcribed, transcribed audio, audio decoded, decoded audio, "
                "audio consumed, consumed audio, audio out, audio done"
            ),
        ),
        Quantity("deltas", "count", ("delta count", "partials", "results sent", "transcript deltas", "delta events")),
        Quantity(
            "empty_deltas",
            "count",
            _listed(
                "blank deltas, empty partials, blank partials, empty results, deltas empty, deltas blank, "
                "blank tokens, empty delta count, empty transcripts"
            ),
        ),
        Quantity("rtf", "", ("real time factor",)),
        Quantity("rtfx", "", ("aggregate rtfx",)),
    )
}

TO_MS: Final = {
    "ns": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,
    "usec": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "sec": 1e3,
    "min": 6e4,
    "h": 3.6e6,
}


_ENDINGS: Final = (
    ("_ms", "ms"), ("_us", "us"), ("_ns", "ns"), ("_seconds", "s"), ("_secs", "s"), ("_sec", "s"), ("_s", "s"),
)  # fmt: skip


def in_unit(value: float, unit: str, wanted: str) -> float | None:
    """`value` in `unit`, expressed in `wanted`: durations, and percent for shares. `None` where that makes no sense."""
    unit = unit.strip().replace("μ", "µ")
    if unit == wanted or not wanted:
        return value
    if wanted == "ms" and unit in TO_MS:
        return round(value * TO_MS[unit], 9)
    if wanted == "s" and unit in TO_MS:
        return round(value * TO_MS[unit] / 1e3, 12)
    if wanted == "MHz" and unit == "GHz":
        return value * 1e3
    if wanted == "share" and unit in {"%", "pct", "percent"}:
        return round(value / 100.0, 12)
    return None


def unit_in_name(name: str) -> tuple[str, str]:
    """(`chunk_service`, `ms`) of `chunk_service_ms`: a name without its unit of time, and the unit; empty where it has
    none.
    """
    for ending, unit in _ENDINGS:
        if name.lower().endswith(ending):
            return name[: -len(ending)], unit
    return name, ""


def quantity_named(words: str) -> Quantity | None:
    """The quantity that these words name, whatever case and hyphens; `None` when the vocabulary has none."""
    plain = " ".join(words.lower().replace("_", " ").replace("-", " ").split())
    return _BY_WORDS.get(plain)


def phrase_in(words: list[str]) -> tuple[Quantity, int, int] | None:
    """(quantity, first word, word behind the last) of the longest phrase of the vocabulary among `words` (lower case);
    of equally long ones the first. `None` when there is none.
    """
    for length in range(min(_LONGEST, len(words)), 0, -1):
        for start in range(len(words) - length + 1):
            found = _BY_WORDS.get(" ".join(words[start : start + length]))
            if found is not None:
                return found, start, start + length
    return None


_BY_WORDS: Final = {
    **{word: item for item in reversed(QUANTITIES.values()) for word in item.words},
    **{item.name.replace("_", " "): item for item in QUANTITIES.values()},
}
_LONGEST: Final = max(len(words.split()) for words in _BY_WORDS)
