"""A short interview: which question comes next, by what would decide among the causes that are still possible.

Nothing is asked that cannot change the answer, nothing twice, and never more than `MOST` questions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from tailrace.model.finding import Diagnosis, Level

__all__ = ["MOST", "QUESTIONS", "SYMPTOMS", "SYMPTOM_WORDS", "Question", "next_question", "settled", "unit_of_key"]

MOST: Final = 14
SYMPTOMS: Final = ("first token", "stream", "all", "errors", "numbers", "speech")
"""What may be wrong: slow first tokens, stuttering streams, everything slow, failures, numbers that look wrong."""
SYMPTOM_WORDS: Final = {
    "first token": "the first token comes late",
    "stream": "the stream stutters or is slow",
    "all": "everything is slow",
    "errors": "requests fail or time out",
    "numbers": "the numbers themselves look wrong",
    "speech": "speech: the text, or its end, comes late",
}


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
    why: str = ""
    """Why it is asked: what the answer tells apart."""

    @property
    def unit(self) -> str:
        """What a bare number counts in; empty where it is a count, or no number is asked for."""
        return unit_of_key(self.key)

    @property
    def words_wanted(self) -> bool:
        """Whether the answer is words or a yes, and no number."""
        return self.key in _WORDS_WANTED


_WHY: Final = {
    "compared": "two times side by side tell a change from a state",
    "changed": "one change with all else equal is what makes a cause certain",
    "ttft_p50_ms": "a middle that is slow too is load; a fast middle with a slow tail is scheduling",
    "ttft_p99_ms": "what the slowest one in a hundred waits is what users complain of",
    "itl_mean_ms": "whether tokens are slow as a rule, or only stop now and then",
    "itl_p99_ms": "stops that the mean hides: long prompts, collections, compiles",
    "n": "a p99 rests on n/100 requests: below 500 it is hardly more than the maximum",
    "concurrency": "Little's law: requests at once / throughput must be the time a request takes",
    "engine_waiting": "a queue inside the engine (limits, KV cache) or before it (pool, router, tokenising)",
    "running": "whether the engine works on many, on few, or on none",
    "max_num_seqs": "running at this limit with others waiting: the limit holds them back, not the device",
    "kv_usage_pct": "a full cache preempts; a low one with waiting requests points elsewhere",
    "gpu_util_pct": "an idle device while requests wait: something before it is slow",
    "structured_output": "grammars are compiled before the first token, off the device",
    "gap_s": "the length of a stop tells a prefill from a collection, a compile, a timer",
    "prompt_tokens": "tokens / prefill rate must be as long as the stop, if a long prompt makes it",
    "max_num_batched_tokens": "how much of a prompt one step computes: its length is the gap of all streams",
    "prefill_tok_s": "with the tokens of a step it gives the length of a stop",
    "failure_age_s": "failures of one age are a timer's; spread ages are not",
    "probe_timeout_s": "a probe that is shorter than a busy pause kills a working server",
    "tok_s": "tokens/s and the gap must agree; that they do not is a unit error",
    "encoder_cache_usage_pct": "a full encoder cache lets sessions hang with nothing in the log",
    "transcription_delay_ms": "whether the end of a turn waits for the text or for the endpoint timer",
}
"""Key -> what its answer tells apart."""
_WORDS_WANTED: Final = frozenset({"compared", "changed", "structured_output"})
_UNITS: Final = (
    ("_ms", "ms"),
    ("_tok_s", "tok/s"),
    ("tok_s", "tok/s"),
    ("_s", "s"),
    ("_pct", "%"),
    ("_tokens", "tokens"),
)


def unit_of_key(key: str) -> str:
    """`ttft_p99_ms` -> `ms`; empty for a key that names none."""
    return next((unit for ending, unit in _UNITS if key.endswith(ending)), "")


def _q(key: str, text: str, codes: str, symptoms: str = "", *, both: bool = False, after: str = "") -> Question:
    of = frozenset(symptoms.split(",")) if symptoms else frozenset(SYMPTOMS)
    return Question(key, text, frozenset(codes.split()), of, both, after, _WHY[key])


_QUEUE: Final = "SCHED_QUEUE_SATURATION SCHED_KV_PREEMPTION TUNE_NOT_SCALE GW_CONN_POOL_CAP LB_SKEW"
_PREFILL: Final = "SCHED_HOL_LONG_PREFILL SCHED_PREFILL_STEALS_DECODE MIX_CACHE_MISS MIX_STRUCTURED_OUTPUT"
_DECODE: Final = "FE_CPU_STARVED DECODE_SLOWDOWN COMPUTE_KERNEL_REGRESSION COMPUTE_QUANT_FALLBACK FE_EVENTLOOP_BLOCK"
_AB: Final = "AB_TAIL_REGRESSED AB_TAIL_IMPROVED SCALE_OUT_TOO_SLOW COMPUTE_KERNEL_REGRESSION"
_SLOW: Final = "first token,stream,all"

QUESTIONS: Final[tuple[Question, ...]] = (
    _q("compared", "Is there a time when it was fine, with numbers from it?", _AB, _SLOW + ",errors"),
    _q(
        "changed",
        "What was changed between then and now (one thing, in words)?",
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
    _q("kv_usage_pct", "How full is the KV cache?", "SCHED_KV_PREEMPTION ENGINE_STALL", _SLOW),
    _q("gpu_util_pct", "How busy is the GPU?", _DECODE + " MIX_STRUCTURED_OUTPUT COMPUTE_JIT", _SLOW),
    _q("structured_output", "Do slow requests ask for JSON or a grammar?", "MIX_STRUCTURED_OUTPUT", _SLOW),
    _q(
        "gap_s",
        "How long does the stream stand still (a range as 5..7)?",
        _PREFILL + " FE_GC_PAUSE",
        "stream",
    ),
    _q("prompt_tokens", "How long is the longest prompt?", _PREFILL, "first token,stream", after="gap_s"),
    _q(
        "max_num_batched_tokens",
        "What is max_num_batched_tokens?",
        "SCHED_PREFILL_STEALS_DECODE",
        "stream",
        after="gap_s",
    ),
    _q("prefill_tok_s", "How fast is prefill?", "SCHED_PREFILL_STEALS_DECODE", "stream", after="gap_s"),
    _q(
        "failure_age_s",
        "How old are requests when they fail?",
        "GW_IDLE_TIMEOUT GW_UPSTREAM_TIMEOUT",
        "errors",
    ),
    _q("probe_timeout_s", "What is the timeout of the liveness probe?", "GW_PROBE_KILL", "errors"),
    _q("tok_s", "Output tokens/s", "METRIC_UNIT TUNE_NOT_SCALE", "numbers,all", both=True),
    _q("encoder_cache_usage_pct", "How full is the encoder cache?", "ASR_SILENT_HANG", "speech"),
    _q("transcription_delay_ms", "End of speech to final text", "ASR_FINAL_LATE METRIC_BUG", "speech"),
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
