"""Do the batch limits fit the lengths of the requests?"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.arms.asked import condition, number_stated, per_request
from tailrace.diagnose.arms.checks import Answer, Check
from tailrace.diagnose.observed import Observed

__all__ = ["CAP", "kv_holds", "limits_fit", "most_stated"]

CAP: Final = (
    r"\bmax[ _-]?num[ _-]?seqs\b|\bmax[ _-]?(?:running|concurrent)[ _-]?requests\b|\bmax[ _-]?batch(?:[ _-]?size)?\b|"
    r"\bbatch (?:limit|cap|size limit)\b|\bcap\b|\bnum[ _-]?slots\b|\bparallel slots\b|\bn[ _-]parallel\b|"
    r"\bmax[ _-]seqs\b|\bparallel\b(?! (?:requests|users|clients|streams))|\bslots\b|max[ _-]?active|"
    r"max[ _-]?running\b|"
    r"\bmax[ _-]?num[ _-]?sequences\b|"
    r"\bseqs\b"
)
"""What engines call the most requests in one step."""
LOW: Final = 0.5
"""A cap below half of what the KV cache carries leaves room."""
_LENGTHS: Final = ("p95", "p99", "p50", "mean", "")
_NAME: Final = "do the batch limits fit the lengths"


def most_stated(observed: Observed, words: str) -> float | None:
    """The largest number under that name, stated or as a condition of an arm."""
    found = [value for arm in observed.arms if (value := condition(arm, words)) is not None]
    stated = number_stated(observed, words)
    if stated is not None and stated.number is not None:
        found.append(stated.number)
    return max(found) if found else None


def kv_holds(observed: Observed) -> tuple[float, float, float] | None:
    """(requests that the KV cache holds, its tokens, tokens of one request)."""
    tokens = number_stated(observed, r"kv (?:capacity )?tokens|kv capacity|kv cache (?:size|tokens)")
    length = _length(observed)
    if tokens is None or not tokens.number or not length:
        return None
    return tokens.number / length, tokens.number, length


def _length(observed: Observed) -> float | None:
    """Prompt and answer together (tokens): the longest that an arm or a statement names."""
    sums = []
    for arm in observed.arms:
        prompt, answer = (per_request(arm, name, _LENGTHS) for name in ("prompt_tokens", "output_tokens"))
        if prompt is not None:
            sums.append(prompt[0] + (answer[0] if answer is not None else 0.0))
    if sums:
        return max(sums)
    each = number_stated(observed, r"tokens per (?:request|seq)|mean tokens|tokens a request|avg tokens")
    if each is not None:
        return each.number
    prompt_ = number_stated(observed, r"^(?:prompt tokens|isl|input (?:len|tokens)|random input len)")
    answer_ = number_stated(observed, r"^(?:output tokens|osl|output len|max tokens|random output len)")
    if prompt_ is None or prompt_.number is None:
        return None
    return prompt_.number + (answer_.number or 0.0 if answer_ is not None else 0.0)


def limits_fit(observed: Observed) -> Check:
    """The cap of the batch against the requests that the KV cache holds."""
    cap = most_stated(observed, CAP)
    held = kv_holds(observed)
    wanted = []
    if cap is None:
        wanted.append("max_num_seqs")
    if held is None:
        wanted.append("the KV cache's tokens and the lengths of prompts and answers")
    if cap is None or held is None:
        return Check(_NAME, Answer.UNKNOWN, f"{' and '.join(wanted)} (do the batch limits fit the lengths?)")
    room, tokens, length = held
    sums = f"{tokens:.0f} / {length:.0f} = {room:.0f} requests fit the KV cache, the cap is {cap:.0f}"
    if cap > 1.05 * room:
        return Check(
            _NAME,
            Answer.FAILS,
            f"the cap is above what the KV cache holds ({sums}): lower max_num_seqs to {max(int(room), 1)}",
        )
    if cap < LOW * room:
        return Check(_NAME, Answer.FAILS, f"the cap leaves room ({sums}): raise max_num_seqs")
    return Check(_NAME, Answer.HOLDS, sums)
