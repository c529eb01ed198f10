"""Order and bounds of the waiting line, and what requests share: policy, queue limits, prefix cache, blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.engines.advice.case import Case
from tailrace.engines.advice.lengths import Of
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

_SPREAD: Final = 8.0


def judge_scheduling(case: Case) -> Iterator[CheckFinding]:
    """For vLLM and what schedules like it."""
    if not case.vllm:
        return
    yield from _policy(case)
    yield from _bound(case)
    yield from _prefix(case)
    yield from _blocks(case)


def _policy(case: Case) -> Iterator[CheckFinding]:
    policy = case.facts.text("scheduling_policy")
    if policy == "priority":
        header = " or the header X-Vllm-Priority, which wins" if case.at_least("0.32.0") is not False else ""
        yield case.finding(
            "PRIORITY_SIGN",
            Weight.INFO,
            "Scheduling is by priority: the lower number goes first (SGLang: the higher one; Triton: 1 is the "
            f"highest). A request says it in its body (`priority`, a whole number){header}; without one it has 0.",
            subject="--scheduling-policy",
            evidence=[
                *case.shown("scheduling_policy"),
                Evidence(
                    "2 at once: -5 got its first token after 0.36 s, 10 after 1.00 s", "vLLM 0.32.0 run", "priority"
                ),
            ],
        )
        return
    p50 = case.lengths.quantile(0.5) if case.lengths is not None else None
    end = case.lengths.tail() if case.lengths is not None else None
    if policy == "fcfs" and p50 and end is not None and end[0] >= _SPREAD * p50:
        yield case.finding(
            "FCFS_MIXED_LENGTHS",
            Weight.ADVICE,
            f"Requests are taken in order of arrival, and long prompts ({end[1]}: {end[0]:,.0f}) are "
            f"{end[0] / p50:.0f} times the median ({p50:,.0f}): a short one behind a long one waits for all of it.",
            subject="--scheduling-policy",
            evidence=[*case.shown("scheduling_policy"), *case.length_evidence(Of.PROMPT)],
            advice="Lanes in the gateway (long prompts in one of their own, with few running); or --scheduling-policy "
            "priority and a priority a class, the lower number first.",
            effect="p99 time to first token of short requests falls towards that of short requests alone.",
            price="Long requests wait longer; without a bound on their wait they may starve.",
        )


def _bound(case: Case) -> Iterator[CheckFinding]:
    bound = case.number("max_queued")
    if bound:
        yield case.finding(
            "QUEUE_BOUND_SHAPE",
            Weight.INFO,
            f"At most {bound:.0f} requests may be in the engine, waiting and running; the next gets 503. In a burst, "
            "streams get that 503 as an error frame inside HTTP 200, then `[DONE]`, and the engine's own counters "
            "call it 2xx.",
            subject="--max-num-queued-reqs",
            evidence=[
                *case.shown("max_queued"),
                Evidence("12 streams at once, limit 6: the 6 refused ones got 200", "vLLM 0.32.0 run", "burst"),
            ],
        )
        seqs = case.number("max_num_seqs")
        if seqs is not None and bound < seqs:
            yield case.finding(
                "QUEUE_BOUND_BELOW_SEQS",
                Weight.WARNING,
                f"max_num_queued_reqs ({bound:.0f}) counts running requests too and is below max_num_seqs "
                f"({seqs:.0f}): the batch never fills.",
                subject="--max-num-queued-reqs",
                evidence=case.shown("max_queued", "max_num_seqs"),
                advice=f"--max-num-queued-reqs {int(seqs * 2)} (data-parallel ranks x max_num_seqs + the wanted "
                "queue).",
                effect="The batch fills before requests are refused.",
                price="Requests may wait: bound the time in the gateway (budgets: queue).",
                verify=case.compare_runs(),
            )
        return
    known = case.facts.get("max_queued") is not None or case.command is not None
    if known and case.facts.number("max_num_queued_tokens") is None:
        yield case.finding(
            "QUEUE_UNBOUNDED",
            Weight.ADVICE,
            "The engine's waiting line has no bound: under overload every request waits longer and longer, and none "
            "is refused.",
            subject="--max-num-queued-reqs",
            evidence=case.shown("max_queued") or [Evidence("no --max-num-queued-reqs", "command line", "max_queued")],
            advice="A bounded lane in the gateway (lanes: running, queued), which answers 429 with Retry-After"
            + (
                "; or --max-num-queued-tokens (wanted time to first token x prefill tokens per second)."
                if case.at_least("0.32.0") is not False
                else "; this version has no bound of its own."
            ),
            effect="Overload shows as refusals that can be retried, not as a time to first token of minutes.",
            price="Some requests are refused.",
            verify="tailrace bench URL --rate (twice what it carries): p99 time to first token stays within the "
            "queue's budget",
        )


def _prefix(case: Case) -> Iterator[CheckFinding]:
    on = case.facts.flag("prefix_caching")
    if on is False:
        yield case.finding(
            "PREFIX_CACHING_OFF",
            Weight.ADVICE,
            "Prefix caching is off: a system prompt or a chat's history is computed anew for every request.",
            subject="--enable-prefix-caching",
            evidence=[
                *case.shown("prefix_caching"),
                Evidence(
                    "1,803 tokens sent twice: 48.0 ms to the first token, then 3.4 ms", "vLLM 0.32.0 run", "prefix"
                ),
            ],
            advice="--enable-prefix-caching (the default of current versions)",
            effect="Less time to first token for prompts that begin alike, and room for more prefill.",
            price="Next to none; benchmarks that repeat prompts flatter themselves, so switch it off for those alone.",
        )
    elif on and case.scrape is not None:
        queries, hits = (case.scrape.total(f"vllm:prefix_cache_{word}_total") for word in ("queries", "hits"))
        if queries is not None and hits is not None and queries >= 100_000:
            yield case.finding(
                "PREFIX_HITS",
                Weight.INFO,
                f"Since its start {hits / queries:.0%} of prompt tokens came from the prefix cache.",
                subject="prefix cache",
                evidence=[
                    Evidence(
                        f"{hits:,.0f} of {queries:,.0f} tokens", "metric:vllm:prefix_cache_hits_total", "hits", hits
                    )
                ],
            )


def _blocks(case: Case) -> Iterator[CheckFinding]:
    size = case.number("block_size")
    if size is None:
        return
    if case.on_cpu and size % 32:
        yield case.finding(
            "BLOCK_SIZE_CPU",
            Weight.ERROR,
            f"The CPU build refuses blocks of {size:.0f} tokens (`No common block size for {size:.0f}`).",
            subject="--block-size",
            evidence=case.shown("block_size", "device", "version"),
            advice="--block-size 32, or leave it out.",
            effect="The engine starts.",
            price="None.",
            verify="The engine's start.",
        )
        return
    median = case.lengths.quantile(0.5, Of.TOTAL) if case.lengths is not None else None
    if size > 32 and median and size / 2 > 0.1 * median:
        yield case.finding(
            "BLOCK_SIZE_LARGE",
            Weight.ADVICE,
            f"Blocks of {size:.0f} tokens: on average half a block of each request stays empty, "
            f"{size / 2 / median:.0%} of a median request, and only whole blocks can be shared as a prefix.",
            subject="--block-size",
            evidence=[*case.shown("block_size"), *case.length_evidence(Of.TOTAL)],
            advice="--block-size 16 (32 on the CPU build), or leave it to the engine.",
            effect="More requests in the same KV cache, more prefix hits.",
            price="A little more bookkeeping a step; some attention kernels want larger blocks.",
        )
