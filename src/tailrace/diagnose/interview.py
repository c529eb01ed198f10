"""A short interview: which question comes next, by what would decide among the causes that are still possible.

Nothing is asked that cannot change the answer, nothing twice, and never more than `MOST` questions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from tailrace.model.finding import Diagnosis, Level

__all__ = ["MOST", "QUESTIONS", "SYMPTOMS", "Question", "next_question", "settled"]

MOST: Final = 14
SYMPTOMS: Final = ("first token", "stream", "all", "errors", "numbers", "speech")
"""What may be wrong: slow first tokens, stuttering streams, everything slow, failures, numbers that look wrong."""


class Question(msgspec.Struct, frozen=True):
    """One question; its answer is the fact `key` (of both arms where `both`)."""

    key: str
    text: str
    codes: frozenset[str]
    """Causes that the answer bears on."""
    symptoms: frozenset[str] = frozenset(SYMPTOMS)
    both: bool = False
    """Asked for before and after."""
    after: str = ""
    """Only where this fact was given (`key`), or given with that value (`key=value`)."""


def _q(key: str, text: str, codes: str, symptoms: str = "", *, both: bool = False, after: str = "") -> Question:
    of = frozenset(symptoms.split(",")) if symptoms else frozenset(SYMPTOMS)
    return Question(key, text, frozenset(codes.split()), of, both, after)


_QUEUE: Final = "SCHED_QUEUE_SATURATION SCHED_KV_PREEMPTION TUNE_NOT_SCALE GW_CONN_POOL_CAP LB_SKEW"
_PREFILL: Final = "SCHED_HOL_LONG_PREFILL SCHED_PREFILL_STEALS_DECODE MIX_CACHE_MISS MIX_STRUCTURED_OUTPUT"
_DECODE: Final = "FE_CPU_STARVED DECODE_SLOWDOWN COMPUTE_KERNEL_REGRESSION COMPUTE_QUANT_FALLBACK FE_EVENTLOOP_BLOCK"
_AB: Final = "AB_TAIL_REGRESSED AB_TAIL_IMPROVED SCALE_OUT_TOO_SLOW COMPUTE_KERNEL_REGRESSION"
_SLOW: Final = "first token,stream,all"

QUESTIONS: Final[tuple[Question, ...]] = (
    _q("compared", "Is there a time when it was fine, with numbers from it? (yes or no)", _AB, _SLOW + ",errors"),
    _q(
        "changed",
        "What was changed between then and now? (one thing, in words)",
        _AB + " " + _DECODE,
        after="compared=yes",
    ),
    _q("ttft_p50_ms", "TTFT p50", _QUEUE + " " + _PREFILL + " " + _AB, "first token,all", both=True),
    _q("ttft_p99_ms", "TTFT p99", _QUEUE + " " + _PREFILL + " " + _AB, "first token,all", both=True),
    _q("itl_mean_ms", "ITL (gap between tokens), mean", _DECODE + " " + _PREFILL, "stream,all", both=True),
    _q("itl_p99_ms", "ITL p99", _DECODE + " " + _PREFILL + " " + _AB, "stream,all", both=True),
    _q("n", "How many requests are these numbers from?", _AB, _SLOW, both=True),
    _q("concurrency", "How many requests at once?", "BENCH_CLIENT_QUEUE METRIC_UNIT " + _QUEUE, _SLOW + ",numbers"),
    _q("engine_waiting", "How many requests wait in the engine while it is slow?", _QUEUE, "first token,all,errors"),
    _q("running", "How many run?", _QUEUE + " ENGINE_STALL", "first token,all,errors"),
    _q("max_num_seqs", "What is the engine's limit of running requests (max_num_seqs)?", _QUEUE, "first token,all"),
    _q("kv_usage_pct", "How full is the KV cache, in percent?", "SCHED_KV_PREEMPTION ENGINE_STALL", _SLOW),
    _q("gpu_util_pct", "How busy is the GPU, in percent?", _DECODE + " MIX_STRUCTURED_OUTPUT COMPUTE_JIT", _SLOW),
    _q("structured_output", "Do slow requests ask for JSON or a grammar? (yes or no)", "MIX_STRUCTURED_OUTPUT", _SLOW),
    _q(
        "gap_s",
        "How long does the stream stand still, in seconds? (a range as 5..7)",
        _PREFILL + " FE_GC_PAUSE",
        "stream",
    ),
    _q("prompt_tokens", "How long is the longest prompt, in tokens?", _PREFILL, "first token,stream", after="gap_s"),
    _q(
        "max_num_batched_tokens",
        "What is max_num_batched_tokens?",
        "SCHED_PREFILL_STEALS_DECODE",
        "stream",
        after="gap_s",
    ),
    _q("prefill_tok_s", "How fast is prefill, in tokens/s?", "SCHED_PREFILL_STEALS_DECODE", "stream", after="gap_s"),
    _q(
        "failure_age_s",
        "How old are requests when they fail, in seconds?",
        "GW_IDLE_TIMEOUT GW_UPSTREAM_TIMEOUT",
        "errors",
    ),
    _q("probe_timeout_s", "What is the timeout of the liveness probe, in seconds?", "GW_PROBE_KILL", "errors"),
    _q("tok_s", "Output tokens/s", "METRIC_UNIT TUNE_NOT_SCALE", "numbers,all", both=True),
    _q("encoder_cache_usage_pct", "How full is the encoder cache, in percent?", "ASR_SILENT_HANG", "speech"),
    _q("transcription_delay_ms", "End of speech to final text, in ms", "ASR_FINAL_LATE METRIC_BUG", "speech"),
)


def settled(result: Diagnosis | None) -> bool:
    """Whether nothing that could be asked would change the first answer."""
    return bool(result and result.findings and result.findings[0].level in (Level.PROVEN, Level.CONSISTENT))


def next_question(
    asked: Collection[str], given: dict[str, str], symptom: str, result: Diagnosis | None
) -> Question | None:
    """The next question; `None` when none is left that could decide. `given` is what was answered so far."""
    if settled(result) or len(asked) >= MOST:
        return None
    suspected = {item.code for item in result.findings if item.level is Level.SUSPECTED} if result else set()
    open_ = [item for item in QUESTIONS if item.key not in asked and symptom in item.symptoms and _applies(item, given)]
    decisive = [item for item in open_ if item.codes & suspected]
    return next(iter(decisive or open_), None)


def _applies(question: Question, given: dict[str, str]) -> bool:
    key, sign, value = question.after.partition("=")
    if not key:
        return True
    said = given.get(key, "").lower()
    return said.startswith(value[:1]) if sign else bool(said)
