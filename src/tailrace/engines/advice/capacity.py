"""How many requests the KV cache carries, against how many the engine is told to run, and how long they may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from tailrace.engines.advice.case import Case, percent
from tailrace.engines.advice.lengths import Of
from tailrace.engines.advice.plan import plan_of
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

_ROOMY: Final = 2.0
"""A limit this many times below what the cache carries is worth a sweep."""
_FULL: Final = 0.9
_ONE_BLOCK: Final = 16.0


def kv_tokens(case: Case) -> tuple[float, str] | None:
    """(tokens of KV cache, where that comes from); `None` where nobody told."""
    told = case.number("kv_tokens")
    if told is not None:
        return told, case.source("kv_tokens")
    blocks, size = case.number("num_gpu_blocks"), case.number("block_size")
    if blocks is not None and size is not None:
        return blocks * size, f"{case.source('num_gpu_blocks')} x {case.source('block_size')}"
    at_once, longest = case.number("kv_max_concurrency"), case.number("max_model_len")
    if at_once is not None and longest is not None:
        return at_once * longest, f"{case.source('kv_max_concurrency')} x {case.source('max_model_len')}"
    plan = plan_of(case)
    if plan is not None and plan.kv_tokens:
        return plan.kv_tokens, "estimate from the model's size and the card"
    return None


def requests_held(tokens: float, length: float, block: float) -> float:
    """Requests of `length` tokens that fit `tokens`; each takes whole blocks."""
    return tokens / (math.ceil(max(length, 1.0) / block) * block)


def judge_capacity(case: Case) -> Iterator[CheckFinding]:
    """KV capacity, `max_num_seqs` and `max_model_len`."""
    if case.engine not in {"vllm", "simulated", "sglang", "tgi"}:
        return
    cache = kv_tokens(case)
    if cache is None:
        case.need(
            "the size of the KV cache: give the engine's address, its start-up log, or its model size and card "
            "(--model-size 8b --gpu a100-80g)"
        )
    else:
        yield from _context(case, *cache)
        yield from _concurrency(case, *cache)
    yield from _queueing(case)
    yield from _overlong(case)


def _tokens_evidence(tokens: float, source: str) -> Evidence:
    return Evidence(f"KV cache: {tokens:,.0f} tokens", source, "kv_tokens", tokens, "tokens")


def _context(case: Case, tokens: float, source: str) -> Iterator[CheckFinding]:
    longest = case.number("max_model_len")
    if longest is None:
        return
    if longest > tokens:
        yield case.finding(
            "CONTEXT_ABOVE_KV",
            Weight.ERROR,
            f"max_model_len ({longest:,.0f}) is larger than the whole KV cache ({tokens:,.0f} tokens): vLLM refuses "
            "to start, and where an engine does start, such a request waits for ever.",
            subject="--max-model-len",
            evidence=[*case.shown("max_model_len"), _tokens_evidence(tokens, source)],
            advice=f"--max-model-len {int(tokens * 0.9) // 256 * 256 or int(tokens)}, or more memory for the cache.",
            effect="The engine starts, and no request waits for room that cannot exist.",
            price="Longer requests are refused.",
            verify="The engine's start.",
        )
        return
    if tokens / longest < 4 and case.lengths is None:
        yield case.finding(
            "CONTEXT_FILLS_KV",
            Weight.INFO,
            f"Only {tokens / longest:.1f} requests of the longest length (max_model_len {longest:,.0f}) fit the KV "
            "cache at once.",
            subject="--max-model-len",
            evidence=[*case.shown("max_model_len", "kv_max_concurrency"), _tokens_evidence(tokens, source)],
        )


def _concurrency(case: Case, tokens: float, source: str) -> Iterator[CheckFinding]:
    block = case.number("block_size") or _ONE_BLOCK
    limit = case.number("max_num_seqs")
    lengths = case.lengths
    p50 = lengths.quantile(0.5, Of.TOTAL) if lengths is not None else None
    upper = lengths.upper(Of.TOTAL) if lengths is not None else None
    if lengths is None or p50 is None or upper is None:
        case.need(
            "KV capacity in concurrent requests: give the lengths of requests (--lengths RUN, a data directory or a "
            "gateway's address)"
        )
        return
    long, word = upper
    at_p50, at_upper = requests_held(tokens, p50, block), requests_held(tokens, long, block)
    of_upper = f"{at_upper:,.0f} of p95 length" if word == "p95" else f"{at_upper:,.0f} as long as {word}"
    evidence = [
        _tokens_evidence(tokens, source),
        *case.length_evidence(Of.TOTAL),
        Evidence(f"{at_p50:,.0f} requests of {p50:,.0f} tokens fit", source, "requests_at_p50", at_p50),
        Evidence(f"{at_upper:,.0f} requests of {long:,.0f} tokens fit", source, "requests_at_long", at_upper),
        *case.shown("max_num_seqs"),
    ]
    least = "at least " if not lengths.exact else ""
    if limit is None:
        case.need("max_num_seqs against the KV cache: give the command line, the log or the card")
    if limit is not None and limit > at_p50:
        # A default that no load has reached yet is no mistake; a number that somebody wrote down, or a full cache, is.
        full = case.state is not None and (case.state.kv_usage or 0.0) >= _FULL
        chosen = not case.source("max_num_seqs").startswith("default")
        yield case.finding(
            "SEQS_ABOVE_KV",
            Weight.WARNING if chosen or full else Weight.ADVICE,
            f"max_num_seqs allows {limit:.0f} requests at once, and the KV cache holds {least}{at_p50:,.0f} of median "
            f"length ({of_upper}): beyond that, running requests lose their cache and are computed again.",
            subject="--max-num-seqs",
            evidence=evidence,
            advice=f"--max-num-seqs {max(int(at_upper), 1)}, or a lane in the gateway with running: "
            f"{max(int(at_upper), 1)}; shorter answers (max_tokens) help as well.",
            effect="No preemptions: a request waits once, in the queue, instead of standing still in the middle of "
            "its answer.",
            price="Fewer requests at once: more queueing at the same load, and less throughput where requests are "
            "short.",
            verify=f"{case.compare_runs()}; vllm:num_preemptions_total must not rise",
        )
        return
    yield case.finding(
        "KV_CAPACITY",
        Weight.INFO,
        f"The KV cache carries {least}{at_p50:,.0f} requests of median length at once ({of_upper})"
        + (f"; max_num_seqs allows {limit:.0f}." if limit is not None else "."),
        subject="KV cache",
        evidence=evidence,
    )


def _waiting(case: Case) -> tuple[float, float, str] | None:
    """(waiting, share of KV cache used, source): requests wait though the cache has room."""
    state = case.state
    if state is not None and state.waiting and state.kv_usage is not None:
        return float(state.waiting), float(state.kv_usage), "/metrics"
    if case.load is not None and case.load.waiting_with_room:
        return float(case.load.waiting), case.load.kv_usage, f"{case.log_name} ({case.load.lines} lines)"
    return None


def _queueing(case: Case) -> Iterator[CheckFinding]:
    waiting, limit = _waiting(case), case.number("max_num_seqs")
    cache = kv_tokens(case)
    if case.load is not None and case.load.preemptions:
        yield case.finding(
            "PREEMPTIONS_SEEN",
            Weight.WARNING,
            f"Running requests lost their KV cache at least {case.load.preemptions} times in this log.",
            subject="KV cache",
            evidence=[
                Evidence(
                    f"{case.load.preemptions} preemptions", case.log_name, "preemptions", float(case.load.preemptions)
                ),
                Evidence(
                    f"KV cache at most {case.load.kv_usage:.0%} full", case.log_name, "kv_usage", case.load.kv_usage
                ),
            ],
            advice="Fewer requests at once (--max-num-seqs, or a lane in the gateway), shorter answers, or more KV "
            "cache.",
            effect="Streams no longer stand still in their middle.",
            price="More requests wait in the queue.",
            verify="vllm:num_preemptions_total over the same load",
        )
    if waiting is None or limit is None:
        return
    count, usage, source = waiting
    if usage >= 0.8:
        return
    running = case.state.running if case.state is not None else None
    running = running if running is not None else (case.load.running if case.load is not None else None)
    if running is None or running < limit * 0.9:
        return
    upper = case.lengths.upper(Of.TOTAL) if case.lengths is not None else None
    block = case.number("block_size") or _ONE_BLOCK
    held = requests_held(cache[0], upper[0], block) if cache is not None and upper is not None else None
    aim = int(min(limit * 2, held)) if held is not None else int(limit * 2)
    if held is not None and held < limit * _ROOMY / 2:
        return
    yield case.finding(
        "SEQS_BELOW_KV",
        Weight.ADVICE,
        f"{count:.0f} requests wait while {running} of max_num_seqs {limit:.0f} run and the KV cache is "
        f"{percent(usage)} full: the limit, not the memory, holds them back.",
        subject="--max-num-seqs",
        evidence=[
            Evidence(f"waiting {count:.0f}, running {running}", source, "waiting", count),
            Evidence(f"KV cache {percent(usage)} full", source, "kv_usage", usage),
            *case.shown("max_num_seqs"),
        ],
        advice=f"--max-num-seqs {aim}, as one step of a sweep.",
        effect="Less queueing and more throughput as long as the time per token stays flat.",
        price="Time per output token rises with the batch; beyond the KV cache, preemptions.",
    )


def _overlong(case: Case) -> Iterator[CheckFinding]:
    longest, lengths = case.number("max_model_len"), case.lengths
    if longest is None or lengths is None:
        return
    share = lengths.share_above(longest - 1, Of.PROMPT)
    if share:
        yield case.finding(
            "PROMPTS_ABOVE_CONTEXT",
            Weight.WARNING,
            f"{percent(share)} of prompts are as long as max_model_len ({longest:,.0f}) or longer: they are refused "
            "with 400.",
            subject="--max-model-len",
            evidence=[*case.shown("max_model_len"), *case.length_evidence(Of.PROMPT)],
            advice="Raise --max-model-len if the model was trained for it, or cut inputs before they are sent.",
            effect="These requests are served.",
            price="Each may hold that much KV cache; fewer requests run at once.",
            verify="tailrace records query, outcome rejected, reason input_too_long",
        )
        return
    most = lengths.quantile(1.0, Of.TOTAL)
    if lengths.exact and most and longest >= 4 * most and lengths.count(Of.TOTAL) >= 100:
        yield case.finding(
            "CONTEXT_UNUSED",
            Weight.ADVICE,
            f"max_model_len is {longest:,.0f}, and the longest of {lengths.count(Of.TOTAL):,} requests had "
            f"{most:,.0f} tokens in all.",
            subject="--max-model-len",
            evidence=[*case.shown("max_model_len"), *case.length_evidence(Of.TOTAL)],
            advice=f"--max-model-len {_next(most * 1.5)}",
            effect="One client's mistake cannot take the room of hundreds of requests; some engines reserve less "
            "memory.",
            price="Requests longer than that are refused with 400.",
            verify="tailrace records query, reason input_too_long, stays at zero",
        )


def _next(value: float) -> int:
    return 1 << math.ceil(math.log2(max(value, 2.0)))
