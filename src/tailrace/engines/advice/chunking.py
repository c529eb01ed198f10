"""Tokens in one step: chunked prefill, `max_num_batched_tokens`, and the threshold for long prompts.

A step computes at most so many tokens; every decoding stream waits for its end. So a step's length is the gap that a
long prompt puts into all streams, and a prompt longer than a step needs several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from tailrace.engines.advice.case import Case, percent
from tailrace.engines.advice.lengths import Of
from tailrace.engines.advice.memory import step_seconds
from tailrace.engines.advice.option_names import chunked_spelling
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

_STEPS: Final = (256, 512, 1024, 2048, 4096, 8192, 16384)
_TRADE: Final = Evidence(
    "measured, 2 prompts of 4,054 tokens beside 6 streams: off p99 gap 9,885 ms, p90 62 ms; on (256) p99 506 ms, p90 "
    "178 ms",
    "vLLM 0.32.0, 38.8 M parameters, CPU",
    "chunked_prefill",
)


def judge_chunking(case: Case) -> Iterator[CheckFinding]:
    """Findings on the size of steps; for engines with vLLM's scheduler."""
    if not case.vllm:
        return
    yield from _refused(case)
    if case.facts.flag("chunked_prefill") is False:
        yield _off(case)
    else:
        yield from _too_small(case)
        yield from _too_large(case)
        yield from _threshold(case)


def _refused(case: Case) -> Iterator[CheckFinding]:
    batched, seqs, longest = (case.number(key) for key in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"))
    if batched is not None and seqs is not None and batched < seqs:
        yield case.finding(
            "BATCH_TOKENS_BELOW_SEQS",
            Weight.ERROR,
            f"max_num_batched_tokens ({batched:.0f}) is less than max_num_seqs ({seqs:.0f}): the engine refuses to "
            "start, since every running request needs one token a step.",
            subject="--max-num-batched-tokens",
            evidence=case.shown("max_num_batched_tokens", "max_num_seqs"),
            advice=f"--max-num-batched-tokens {_round_up(seqs * 2)}, or --max-num-seqs {batched:.0f} at most.",
            effect="The engine starts.",
            price="Larger steps mean longer gaps beside a prefill.",
            verify="The engine's start.",
        )
    if (
        case.facts.flag("chunked_prefill") is False
        and batched is not None
        and longest is not None
        and batched < longest
    ):
        yield case.finding(
            "BATCH_TOKENS_BELOW_CONTEXT",
            Weight.ERROR,
            f"Without chunked prefill a prompt must fit one step, and max_num_batched_tokens ({batched:.0f}) is less "
            f"than max_model_len ({longest:.0f}): the engine refuses to start.",
            subject="--max-num-batched-tokens",
            evidence=case.shown("chunked_prefill", "max_num_batched_tokens", "max_model_len"),
            advice=f"Leave chunked prefill on, or --max-num-batched-tokens {longest:.0f}.",
            effect="The engine starts.",
            price="Without chunks, the longest prompt stops every stream for its whole prefill.",
            verify="The engine's start.",
        )
    threshold = case.number("long_prefill_token_threshold")
    if threshold and longest is not None and threshold > longest:
        yield case.finding(
            "LONG_PREFILL_ABOVE_CONTEXT",
            Weight.ERROR,
            f"long_prefill_token_threshold ({threshold:.0f}) is above max_model_len ({longest:.0f}): the engine "
            "refuses to start.",
            subject="--long-prefill-token-threshold",
            evidence=case.shown("long_prefill_token_threshold", "max_model_len"),
            advice="Below max_num_batched_tokens, for example half of it; or leave it out.",
            effect="The engine starts.",
            price="None.",
            verify="The engine's start.",
        )


def _off(case: Case) -> CheckFinding:
    end = case.lengths.tail() if case.lengths is not None else None
    longest = end[0] if end is not None else None
    said = (
        f" Long prompts here have {end[0]:,.0f} tokens ({end[1]})."
        if end is not None
        else " How long prompts are is not known here (--lengths)."
    )
    seconds = (
        step_seconds(case.shape, case.card, longest, dtype=case.precision, cards=_cards(case))
        if longest is not None and case.shape is not None and case.card is not None
        else None
    )
    stall = f" One such prefill stops all streams for about {seconds * 1e3:,.0f} ms." if seconds is not None else ""
    return case.finding(
        "CHUNKED_PREFILL_OFF",
        Weight.WARNING,
        "Chunked prefill is off: a prompt is computed in one piece, and every stream stands still "
        f"meanwhile.{said}{stall}",
        subject="--enable-chunked-prefill",
        evidence=[*case.shown("chunked_prefill"), *case.length_evidence(Of.PROMPT), _TRADE],
        advice=f"Write {chunked_spelling(case.version)}, with --max-num-batched-tokens 2048 to begin with.",
        effect="p99 and the largest gap between tokens fall, often tenfold; streams beside a long prompt go on.",
        price="p90 and p95 of the gaps rise and prompts take 10-20 % longer: one giant gap becomes many middling "
        "ones. Judge by p99 and the largest gap, not by p95 alone.",
        verify=case.compare_runs(),
    )


def _too_small(case: Case) -> Iterator[CheckFinding]:
    batched = case.number("max_num_batched_tokens")
    if batched is None:
        return
    if case.lengths is None:
        case.need(
            "max_num_batched_tokens against the prompts: give their lengths (--lengths RUN, a data directory or a "
            "gateway's address)"
        )
        return
    share = case.lengths.share_above(batched)
    median, upper = case.lengths.quantile(0.5), case.lengths.upper()
    if share is None or median is None or upper is None:
        return
    long, word = upper
    steps = math.ceil(long / batched)
    a_long_one = "a prompt at p95" if word == "p95" else word
    evidence = [
        *case.shown("max_num_batched_tokens"),
        case.measured(f"{percent(share)} of prompts are longer than one step", "share_above_step", share),
        *case.length_evidence(Of.PROMPT),
    ]
    if median > batched:
        larger = next((size for size in _STEPS if size >= median), _STEPS[-1])
        yield case.finding(
            "BATCH_TOKENS_SMALL",
            Weight.ADVICE,
            f"{percent(share)} of prompts are longer than one step of {batched:.0f} tokens; {a_long_one} takes "
            f"{steps} steps, each of which also carries the decoding requests.",
            subject="--max-num-batched-tokens",
            evidence=evidence,
            advice=f"--max-num-batched-tokens {larger}",
            effect="Fewer steps a prompt: less time to first token, most for long prompts; more throughput.",
            price="Longer steps: larger gaps in the streams that decode beside a prefill, and more memory for "
            "activations.",
        )
    else:
        yield case.finding(
            "BATCH_TOKENS",
            Weight.INFO,
            f"{percent(share)} of prompts are longer than one step of {batched:.0f} tokens; {a_long_one} takes "
            f"{steps} step{'s' if steps > 1 else ''}.",
            subject="--max-num-batched-tokens",
            evidence=evidence,
        )


def _too_large(case: Case) -> Iterator[CheckFinding]:
    batched = case.number("max_num_batched_tokens")
    if batched is None:
        return
    if case.on_cpu:
        return
    if case.shape is None or case.card is None:
        case.need("how long one full step takes: give the model's size and the card (--model-size 8b --gpu a100-80g)")
        return
    seconds = step_seconds(case.shape, case.card, batched, dtype=case.precision, cards=_cards(case))
    bound = case.slow.single_gap_ns / 1e9
    often = case.slow.gap_ns / 1e9
    if seconds <= often:
        return
    end = case.lengths.tail() if case.lengths is not None else None
    if end is not None and end[0] < batched / 2:
        return  # no step ever gets that full from one prompt
    fitting = max((size for size in _STEPS if size < batched and size / batched * seconds <= often), default=_STEPS[0])
    yield case.finding(
        "BATCH_TOKENS_LARGE",
        Weight.WARNING if seconds > bound else Weight.ADVICE,
        f"A full step of {batched:.0f} tokens takes about {seconds * 1e3:,.0f} ms on {case.card.name}: that long "
        f"every stream stands still beside a long prompt, and {often * 1e3:.0f} ms counts as a gap.",
        subject="--max-num-batched-tokens",
        evidence=[
            *case.shown("max_num_batched_tokens", "tensor_parallel"),
            Evidence(
                f"{seconds * 1e3:,.0f} ms = 2 x {(case.shape.active or case.shape.parameters) / 1e9:.1f}e9 parameters "
                f"x {batched:.0f} tokens / ({case.card.arithmetic:.3g} x 0.7)",
                f"estimate; {case.shape.source}",
                "step_ms",
                seconds * 1e3,
                "ms",
            ),
        ],
        advice=f"--max-num-batched-tokens {fitting}",
        effect=f"Gaps beside a prefill shrink to about {seconds * fitting / batched * 1e3:,.0f} ms.",
        price="Long prompts need more steps: their time to first token rises (measured elsewhere: +15 to +20 % at 512 "
        "and 1,024 tokens a step), and throughput falls a little.",
        verify=case.compare_runs(),
    )


def _threshold(case: Case) -> Iterator[CheckFinding]:
    batched, threshold = case.number("max_num_batched_tokens"), case.number("long_prefill_token_threshold")
    if threshold and batched is not None and threshold >= batched:
        yield case.finding(
            "LONG_PREFILL_WITHOUT_EFFECT",
            Weight.WARNING,
            f"long_prefill_token_threshold ({threshold:.0f}) is not below max_num_batched_tokens ({batched:.0f}), so "
            "it never limits anything.",
            subject="--long-prefill-token-threshold",
            evidence=case.shown("long_prefill_token_threshold", "max_num_batched_tokens"),
            advice=f"--long-prefill-token-threshold {max(int(batched) // 2, 1)}",
            effect="One long prompt leaves room in a step for short ones.",
            price="The long prompt itself takes longer.",
            verify=case.compare_runs(),
        )
        return
    if threshold or batched is None or case.lengths is None:
        return
    share, p50, end = case.lengths.share_above(batched), case.lengths.quantile(0.5), case.lengths.tail()
    if share is None or p50 is None or end is None or not 0 < share <= 0.2 or end[0] < 4 * max(p50, 1.0):
        return
    yield case.finding(
        "LONG_PREFILL_BLOCKS",
        Weight.ADVICE,
        f"Few prompts are long ({percent(share)} above one step, {end[1]} {end[0]:,.0f} against p50 {p50:,.0f} "
        "tokens), and nothing keeps such a one from filling step after step while short ones wait behind it.",
        subject="--long-prefill-token-threshold",
        evidence=[*case.shown("max_num_batched_tokens"), *case.length_evidence(Of.PROMPT)],
        advice=f"--long-prefill-token-threshold {max(int(batched) // 2, 1)}, or a lane of its own for long prompts in "
        "the gateway (lanes: match: min_prompt_tokens).",
        effect="Short requests get into the same step: their p99 time to first token falls.",
        price="Long prompts take about twice as many steps while others are there.",
    )


def _round_up(value: float) -> int:
    return next((size for size in _STEPS if size >= value), int(value))


def _cards(case: Case) -> int:
    return int(case.number("tensor_parallel") or 1)
