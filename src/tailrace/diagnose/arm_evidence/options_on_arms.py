"""MIX_DECODING_OPTIONS: requests ask for more work a token: several answers, beams, log-probabilities."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import TAIL_FIRST, figure, said
from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.pairs import changed, pairs
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["options_on_arms"]

WORSE: Final = 1.2
_OPTION: Final = re.compile(
    r"best[ _-]?of|\bbeams?\b|beam[ _-]?(?:width|search|size)|num[ _-]?(?:return|beams)|\bn ?[=>:]|\bn (?:samples|"
    r"completions)|"
    r"parallel sampl|log[ _-]?probs?|prompt_logprobs|penalt|\btop[ _-]?k\b|sampling (?:param|option)|decoding option|"
    r"samples? per",
    re.IGNORECASE,
)
_KEYS: Final = re.compile(
    r"^(?:(?:mean_|share_(?:with_|of_)?)?best_?of\w*|(?:mean_)?beam\w*|num_(?:return_sequences|beams)|"
    r"(?:mean_)?n_?(?:samples|completions|per_request|mean)|samples_per\w*|logprobs|top_k|"
    r"penalt\w*)$",
    re.IGNORECASE,
)


_HEADING: Final = re.compile(
    r"\b(?:mean|average|median) n\b|\bn per request|best[ _]of|\bbeams?\b|answers? per request|samples per request",
    re.IGNORECASE,
)
"""A heading that speaks of such an option."""


def options_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """An option that differs, and latency that follows it."""
    what = changed(observed)
    for pair in (*pairs(observed.arms), *pairs([_without_output(arm) for arm in observed.arms])):
        option = (
            _differs(pair.first, pair.second)
            or (what if _OPTION.search(what) else "")
            or _in_names(pair.first, pair.second)
        )
        if not option:
            continue
        found = _worse(pair.first, pair.second)
        if found is None:
            continue
        bad, slow, good, fast, ratio = found
        asked, less = _numbers(bad), _numbers(good)
        if asked is not None and less is not None and asked <= less:
            continue  # the one that does less is slower: not the option
        missing = [] if pair.same else ["that both arms had the same load (rate or concurrency, lengths)"]
        return cause.finding(
            statement=f"{quantity(slow)} is {number(slow.value, slow.unit)} with {bad.name} and "
            f"{number(fast.value, fast.unit)} "
            f"with {good.name} ({ratio:.3g} x): the decoding options differ ({option}), and each answer costs that "
            "much "
            "more work.",
            evidence=[
                evidence_of(bad, slow),
                evidence_of(good, fast),
                Evidence(f"options: {option}", str(bad.place) or "form", "options"),
            ],
            explains_ms=slow.value - fast.value if slow.unit == "ms" else None,
            relation=f"{number(slow.value)} / {number(fast.value)} = {slow.value / fast.value:.3g}",
            n=2,
            advice="Limit n, best_of, beams and logprobs at the gateway, or give requests that use them a lane of "
            "their own "
            "with a small running limit; count sequences, not requests, against max_num_seqs.",
            price="Requests with such options wait in their lane, or are refused.",
            verify=again(bad),
            missing=missing,
            disproof_checked=[f"equal load: {', '.join(pair.same)}" if pair.same else "the load is not stated"],
        )
    return None


def _without_output(arm: Arm) -> Arm:
    """More answers a request are more tokens a request: that is what the option does, no other work."""
    keys = {name: value for name, value in arm.keys.items() if name != "output_tokens"}
    values = {
        name: item
        for name, item in arm.values.items()
        if item.quantity not in {"output_tokens", "n"} or _HEADING.search(item.label)
    }
    return msgspec.structs.replace(
        arm,
        keys=keys,
        values={
            name: msgspec.structs.replace(item, quantity="mean_n") if item.quantity == "n" else item
            for name, item in values.items()
        },
    )


def _differs(one: Arm, two: Arm) -> str:
    for name in one.keys.keys() & two.keys.keys():
        if _KEYS.match(name) and one.keys[name] != two.keys[name]:
            return f"{name} {one.keys[name]} and {two.keys[name]}"
    for value in _options(one):
        other = next((item for item in two.values.values() if item.key == value.key), None)
        if other is not None and other.value != value.value:
            return f"{value.label or value.quantity} {value.value:g} and {other.value:g}"
    return ""


@asked_once
def _options(arm: Arm) -> list[Quoted]:
    """Its numbers whose heading names an option."""
    return [
        value
        for value in arm.values.values()
        if _KEYS.match(value.quantity) or _HEADING.search(value.label.replace("_", " "))
    ]


def _in_names(one: Arm, two: Arm) -> str:
    return f"{one.name}, {two.name}" if _names_option(said(one)) or _names_option(said(two)) else ""


@lru_cache(maxsize=512)
def _names_option(text: str) -> bool:
    """Remembered: an arm stands in a hundred pairs."""
    return _OPTION.search(text) is not None


def _numbers(arm: Arm) -> float | None:
    for name, value in arm.keys.items():
        if _KEYS.match(name) and isinstance(value, (int, float)):
            return float(value)
    for quoted in arm.values.values():
        if _KEYS.match(quoted.quantity) or _HEADING.search(quoted.label.replace("_", " ")):
            return quoted.value
    found = re.search(r"(?:best[ _-]?of|beams?|\bn)\D{0,8}(\d+)|(\d+)[ -]?beams?", said(arm), re.IGNORECASE)
    return float(next(group for group in found.groups() if group)) if found is not None else None


def _worse(one: Arm, two: Arm) -> tuple[Arm, Quoted, Arm, Quoted, float] | None:
    """(slow arm, its number, fast arm, its number, ratio) of the first latency or rate that both have."""
    for name, rate in (
        ("tpot", False),
        ("itl", False),
        ("e2e", False),
        ("ttft", False),
        ("output_tok_s", True),
        ("req_s", True),
    ):
        for stat in TAIL_FIRST:
            first, second = figure(one, name, stats=(stat,)), figure(two, name, stats=(stat,))
            if first is None or second is None or min(first.value, second.value) <= 0:
                continue
            ratio = max(first.value, second.value) / min(first.value, second.value)
            if ratio < WORSE:
                continue
            slow_first = (first.value > second.value) is not rate
            return (one, first, two, second, ratio) if slow_first else (two, second, one, first, ratio)
    return None
