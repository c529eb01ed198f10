"""Decoding that waits one prefill chunk for each token, and knobs that only let decoding in between prefills."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, number_stated, said
from tailrace.diagnose.arms.pairs import change_shown, changed, pairs
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.engine_settings import step_budget
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.diagnose.cause import Cause

__all__ = ["RATE", "steals_by_chunk"]

RATE: Final = (
    r"(?:prefill|prompt|input)(?: throughput| rate| speed)? tok s|(?:prefill|prompt|input) (?:rate|speed|throughput)"
)
FITS: Final = 0.2
"""Relative error of gap = chunk / prefill rate in a table, where the gap may be a median of many."""
LONG_MS: Final = 250.0
FREED: Final = 3.0
"""With decoding let in between, a token comes so many times sooner."""
_KNOB: Final = re.compile(
    r"disaggregat|chunked|interleav|mixed[ _-]?(?:chunk|batch)|decode[ _-]?(?:interval|rounds|first|priority|steps)|"
    r"partial[ _-]?prefill|long[ _-]?prefill|prefill[ _-]?(?:decode|interval|budget|limit|delay|chunk|lane|instance|"
    r"moved|separat|first)|separate[ _-]?prefill|batched[ _-]?tokens|token[ _-]?budget|"
    r"pd[ _-]?(?:separat|disagg|split)",
    re.IGNORECASE,
)
_OTHER: Final = re.compile(r"specul|quant|fp8|watermark|version|\bgpu type|replica", re.IGNORECASE)
_TAILS: Final = ("max", "p99", "p95", "mean", "", "p50")
ADVICE: Final = (
    "Let decoding in between prefill batches: lower the step's token budget (vLLM: --max-num-batched-tokens with "
    "--enable-chunked-prefill; SGLang: --chunked-prefill-size, --enable-mixed-chunk; llama.cpp: -b/-ub), bound the "
    "prefill batches in a row, give long prompts a lane of their own, or disaggregate prefill."
)
PRICE: Final = "The first token of long prompts comes later, because their prefill shares each step."


class _Weighed(NamedTuple):
    rivals: list[str]
    checked: list[str]
    missing: list[str]


def steals_by_chunk(
    cause: Cause, observed: Observed, kv: Callable[[Observed], tuple[list[str], list[str], list[str]]]
) -> Finding | None:
    """A gap of a table that is one chunk, or a change of such a knob; `kv` tells of a full cache (rivals, checked,
    missing).
    """
    weighed = _Weighed(*kv(observed))
    return surest([_one_chunk(cause, observed, weighed), _knob(cause, observed, weighed)])


def _gap(arm: Arm) -> Quoted | None:
    return figure(arm, "chunk_gap", stats=_TAILS) or figure(arm, "itl", stats=_TAILS)


def _chunk(observed: Observed) -> tuple[Setting, Setting, float] | None:
    budget, rate = step_budget(observed), number_stated(observed, RATE)
    if budget is None or rate is None or not budget.number or not rate.number:
        return None
    return budget, rate, 1e3 * budget.number / rate.number


def _one_chunk(cause: Cause, observed: Observed, weighed: _Weighed) -> Finding | None:
    """A gap, or a time per token, of a table is as long as one stated chunk at the stated rate."""
    stated = _chunk(observed)
    if stated is None or stated[2] < LONG_MS:
        return None
    budget, rate, expected = stated
    fitting = []
    for arm in observed.arms:
        for item in arm.values.values():
            if (
                item.quantity in ("chunk_gap", "itl", "tpot")
                and item.unit == "ms"
                and not item.relative
                and abs(item.value / expected - 1.0) <= FITS
            ):
                fitting.append((arm, item))
                break
    if not fitting:
        return None
    arm, seen = fitting[0]
    freed = _freed(observed, arm, seen)
    prompt = number_stated(observed, r"^(?:long )?prompt tokens|isl|input tokens")
    words = "" if freed is None else (
        f" With {freed[0].name} {quantity(freed[1])} is {number(freed[1].value, 'ms')} "
        f"({seen.value / freed[1].value:.3g} x less)."
    )  # fmt: skip
    shown = _beside(arm, freed)
    return cause.finding(
        statement=f"A token waits for one prefill chunk: {budget.number:g} tokens at {rate.number:g} tok/s take "
        f"{number(expected, 'ms')}, and {quantity(seen)} is {number(seen.value, 'ms')} ({arm.name}).{words}",
        evidence=[
            evidence_of_setting(budget),
            evidence_of_setting(rate),
            *(evidence_of(one, item) for one, item in fitting[:4]),
            *([evidence_of(*freed)] if freed is not None else []),
            *shown,
            Evidence(
                f"{budget.number:g} / {rate.number:g} = {number(expected, 'ms')} ({expected / 1e3:.3f} s) a chunk",
                "computed", "chunk_ms", round(expected, 1), "ms",
            ),
        ],
        explains_ms=seen.value - (freed[1].value if freed is not None else 0.0),
        relation=f"{budget.number:g} / {rate.number:g} = {expected / 1e3:.3f} s; seen {seen.value / 1e3:.3f} s"
        + (f"; {number(seen.value)} / {number(freed[1].value)} = {seen.value / freed[1].value:.3g}" if freed else ""),
        n=len(fitting),
        advice=f"{ADVICE} {shorter_prompts(tokens=prompt.number if prompt else None, rate=rate.number)}",
        price=_price(arm, freed),
        verify=again(arm),
        missing=weighed.missing,
        rivals=weighed.rivals,
        disproof_checked=weighed.checked,
    )  # fmt: skip


def _freed(observed: Observed, slow: Arm, seen: Quoted) -> tuple[Arm, Quoted] | None:
    """The arm of the same table in which a token comes soonest, if it is far sooner."""
    others = [
        (arm, item)
        for arm in observed.arms
        if arm is not slow
        and arm.place.source == slow.place.source
        and (item := arm.values.get(seen.key)) is not None
        and 0 < item.value <= seen.value / FREED
    ]
    return min(others, key=lambda pair: pair[1].value, default=None)


def _beside(slow: Arm, freed: tuple[Arm, Quoted] | None) -> list[Evidence]:
    """TTFT and throughput of both: what it cost."""
    out = []
    for name in ("ttft", "output_tok_s"):
        one = figure(slow, name, stats=_TAILS)
        two = None if freed is None or one is None else figure(freed[0], name, stats=(one.stat,))
        if one is not None and two is not None and freed is not None:
            out += [evidence_of(slow, one), evidence_of(freed[0], two)]
    return out


def _price(slow: Arm, freed: tuple[Arm, Quoted] | None) -> str:
    one = figure(slow, "ttft", stats=_TAILS)
    two = None if freed is None or one is None else figure(freed[0], "ttft", stats=(one.stat,))
    if one is None or two is None or one.value <= 0:
        return PRICE
    return (
        f"{quantity(one)} {number(one.value, 'ms')} -> {number(two.value, 'ms')} ({two.value / one.value - 1:+.1%}). "
        f"{PRICE}"
    )


def _knob(cause: Cause, observed: Observed, weighed: _Weighed) -> Finding | None:
    """One change that only decides how prefill and decode share the steps, and the longest gap falls."""
    what = changed(observed)
    best: tuple[float, Arm, Quoted, Arm, Quoted] | None = None
    if _OTHER.search(what):
        return None
    for pair in pairs(observed.arms):
        if pair.first.place.source != pair.second.place.source:
            continue
        one, two = _gap(pair.first) or _mean(pair.first), _gap(pair.second) or _mean(pair.second)
        if one is None or two is None or one.key != two.key or min(one.value, two.value) <= 0:
            continue
        (slow, high), (fast, low) = sorted(((pair.first, one), (pair.second, two)), key=lambda item: -item[1].value)
        ratio = high.value / low.value
        if ratio < FREED or high.value < LONG_MS or (best is not None and ratio <= best[0]):
            continue
        # Last, because it takes longest: a table of a hundred arms has five thousand pairs.
        headings = " ".join([*pair.first.keys, *(pair.first.label, pair.second.label)]).replace("_", " ")
        if _KNOB.search(f"{what} {said(pair.first)} {said(pair.second)} {headings}"):
            best = ratio, slow, high, fast, low
    if best is None:
        return None
    ratio, slow, high, fast, low = best
    freed = (fast, low)
    usual = [figure(arm, "itl", "tpot", stats=("p50",)) for arm in (slow, fast)]
    expected = _chunk(observed)
    prompt = number_stated(observed, r"^(?:long )?prompt tokens|isl|input tokens")
    missing = list(weighed.missing)
    if not what and not expected:
        missing.append("that nothing else was changed between the two")
    return cause.finding(
        statement=f"Prefill takes the steps of streams that decode: {quantity(high)} is {number(high.value, 'ms')} "
        f"with {slow.name} and {number(low.value, 'ms')} with {fast.name} ({ratio:.3g} x), and the change only decides "
        "how prefill and decode share the steps.",
        evidence=[
            evidence_of(slow, high),
            evidence_of(fast, low),
            *(evidence_of(arm, item) for arm, item in zip((slow, fast), usual, strict=True) if item is not None),
            *_beside(slow, freed),
            *change_shown(observed),
        ],
        explains_ms=high.value - low.value,
        relation=f"{number(high.value)} / {number(low.value)} = {ratio:.3g} ({low.value / high.value - 1:+.1%})",
        n=2,
        advice=f"{ADVICE} {shorter_prompts(tokens=prompt.number if prompt else None)}",
        price=_price(slow, freed),
        verify=again(slow),
        missing=missing,
        rivals=weighed.rivals,
        disproof_checked=weighed.checked,
        level=Level.SUSPECTED if missing or weighed.rivals else Level.CONSISTENT,
    )


def _mean(arm: Arm) -> Quoted | None:
    return figure(arm, "tpot", stats=_TAILS)
