"""Text Generation Inference and TensorRT-LLM: what their options say, read in their sources, not run."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.engines.advice.case import Case, percent
from tailrace.engines.advice.lengths import Of
from tailrace.model.check import CheckFinding, Weight


def judge_tgi(case: Case) -> Iterator[CheckFinding]:
    """TGI's limits against each other and against the lengths."""
    if case.engine != "tgi":
        return
    prompt, total, batch = (case.number(key) for key in ("max_input_len", "max_model_len", "max_num_batched_tokens"))
    if prompt is not None and total is not None and prompt >= total:
        yield case.finding(
            "INPUT_ABOVE_TOTAL",
            Weight.ERROR,
            f"max_input_tokens ({prompt:.0f}) must be below max_total_tokens ({total:.0f}): there is no room for an "
            "answer, and the launcher refuses.",
            subject="--max-input-tokens",
            evidence=case.shown("max_input_len", "max_model_len"),
            advice=f"--max-total-tokens {int(prompt) + 1024}",
            effect="The engine starts.",
            price="Each request may take that much of the KV cache.",
            verify="The engine's start.",
        )
    if prompt is not None and batch is not None and batch < prompt:
        yield case.finding(
            "PREFILL_BELOW_INPUT",
            Weight.ERROR,
            f"max_batch_prefill_tokens ({batch:.0f}) is less than max_input_tokens ({prompt:.0f}): the longest prompt "
            "could never be computed, and the launcher refuses.",
            subject="--max-batch-prefill-tokens",
            evidence=case.shown("max_num_batched_tokens", "max_input_len"),
            advice=f"--max-batch-prefill-tokens {int(prompt) + 50}",
            effect="The engine starts.",
            price="Memory for the activations of that many tokens, and longer gaps beside a prefill.",
            verify="The engine's start.",
        )
    if prompt is not None and case.lengths is not None and (share := case.lengths.share_above(prompt, Of.PROMPT)):
        yield case.finding(
            "PROMPTS_ABOVE_CONTEXT",
            Weight.WARNING,
            f"{percent(share)} of prompts are longer than max_input_tokens ({prompt:.0f}) and are refused.",
            subject="--max-input-tokens",
            evidence=[*case.shown("max_input_len"), *case.length_evidence(Of.PROMPT)],
            advice="Raise --max-input-tokens (and --max-total-tokens), or cut inputs before they are sent.",
            effect="These requests are served.",
            price="More memory a request.",
            verify="tailrace records query, reason input_too_long, stays at zero",
        )
    at_once = case.number("max_concurrent_requests")
    if at_once is not None:
        yield case.finding(
            "QUEUE_BOUND_SHAPE",
            Weight.INFO,
            f"At most {at_once:.0f} requests are taken, waiting and running together; more get 429.",
            subject="--max-concurrent-requests",
            evidence=case.shown("max_concurrent_requests"),
        )
    ratio = case.number("waiting_served_ratio")
    if ratio is not None:
        yield case.finding(
            "PREFILL_PAUSES_DECODE",
            Weight.INFO,
            f"Running requests pause for a prefill when those that wait are {ratio:g} times as many "
            "(waiting_served_ratio), or after max_waiting_tokens: gaps in all streams.",
            subject="--waiting-served-ratio",
            evidence=case.shown("waiting_served_ratio", "max_waiting_tokens"),
        )
    yield case.finding(
        "TRAP_NO_TTFT",
        Weight.INFO,
        "There is no metric of the time to first token; queue and inference times come in response headers "
        "(x-queue-time, x-inference-time), and prefill time only for whole batches. The project is in maintenance "
        "mode.",
        subject="/metrics",
    )


def judge_trtllm(case: Case) -> Iterator[CheckFinding]:
    """TensorRT-LLM: that nothing here was tried."""
    if case.engine != "tensorrt_llm":
        return
    yield case.finding(
        "NOT_RUN",
        Weight.INFO,
        "TensorRT-LLM is known from names in its source alone and was never run with this tool: its options are not "
        "checked.",
        subject="TensorRT-LLM",
    )
