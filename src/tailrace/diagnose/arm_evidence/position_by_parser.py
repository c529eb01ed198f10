"""STREAM_GAP_AT_POSITION from tables: rows that name the text after which a stream stopped, and arms in which only what
handles the text was exchanged (a tool parser, a grammar, a detokeniser) and the longest silence goes with it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, named, said
from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.pairs import change_shown, changed, pairs, stated_same
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["position_by_parser"]

LEAST: Final = 3
SHARE: Final = 0.8
LEAST_MS: Final = 1000.0
FREED: Final = 5.0
EQUAL: Final = 0.15
_HANDLES: Final = re.compile(
    r"pars(?:er|ing)|tool[ _-]?call|grammar|structured|detoken|chat[ _-]?template|stop[ _-]?string|specul|draft|"
    r"reasoning[ _-]?(?:parser|content)|stream[ _-]?handler|formatter",
    re.IGNORECASE,
)
_GAP: Final = re.compile(r"silence|gap|pause|stall|freeze|stop", re.IGNORECASE)
_TEXT: Final = r"after|text|position|where|token at|marker|place in"
ADVICE: Final = (
    "Test what handles that text piece by piece (tool-call parser, grammar, speculation, stop strings, detokeniser) on "
    "the same prompts, and let it hand on what it has: a parser that waits for the closing bracket keeps tokens that "
    "were made."
)
PRICE: Final = "A feature switched off, or a parser that streams partial arguments, changes what clients receive."


class _Freed(NamedTuple):
    slow: Arm
    high: Quoted
    fast: Arm
    low: Quoted
    high_ms: float
    low_ms: float


def position_by_parser(cause: Cause, observed: Observed) -> Finding | None:
    """Rows at one text, or a pair of arms."""
    return surest([_at_text(cause, observed), _exchanged(cause, observed)])


@asked_once
def _silence(arm: Arm) -> tuple[Quoted, float] | None:
    """The longest gap of an arm, and its length (ms)."""
    found = [
        (item, ms)
        for item in arm.values.values()
        if not item.relative
        and (item.quantity == "chunk_gap" or _GAP.search(item.label))
        and item.unit
        and (ms := in_unit(item.value, item.unit, "ms")) is not None
    ]
    return max(found, key=lambda pair: pair[1], default=None)


def _at_text(cause: Cause, observed: Observed) -> Finding | None:
    """Four fifths of the gaps come after the same words."""
    rows = [
        (arm, gap, str(place[1]).strip())
        for arm in observed.arms
        if (gap := _silence(arm)) is not None
        and gap[1] >= LEAST_MS / 2
        and (place := named(arm, _TEXT)) is not None
        and isinstance(place[1], str)
    ]
    if len(rows) < LEAST:
        return None
    text, n = Counter(place for *_, place in rows).most_common(1)[0]
    if n < max(LEAST, SHARE * len(rows)):
        return None
    worst = max(rows, key=lambda row: row[1][1])
    return cause.finding(
        action=Action.COLLECT,
        statement=f"{n} of {len(rows)} streams stop at the same place of the text ({text}) for up to "
        f"{number(worst[1][1], 'ms')}: what happens there, not the load, stops them.",
        evidence=[
            *(evidence_of(arm, gap[0]) for arm, gap, _ in rows[:8]),
            Evidence(f"{n} of {len(rows)} gaps come after {text}", str(rows[0][0].place) or "form", "position"),
            Evidence(
                f"longest gap {number(worst[1][1], 'ms')}",
                str(worst[0].place) or "form", "gap_ms", worst[1][1], "ms",
            ),
        ],
        explains_ms=worst[1][1],
        relation=f"{n} of {len(rows)} at one text, gap up to {number(worst[1][1], 'ms')}",
        n=len(rows),
        advice=ADVICE,
        price=PRICE,
        verify=again(),
        missing=["how many streams had no gap there", "the same prompts with each feature switched off by itself"],
        disproof_checked=[f"{n} of {len(rows)} at one place"],
    )  # fmt: skip


def _exchanged(cause: Cause, observed: Observed) -> Finding | None:
    """The longest silence falls to a fifth with another parser, and decoding is as fast as before."""
    what = changed(observed)
    freed = []
    for pair in pairs(observed.arms):
        one, two = _silence(pair.first), _silence(pair.second)
        of_one = pair.first.place.source == pair.second.place.source
        if not of_one or one is None or two is None or one[0].key != two[0].key:
            continue
        words = " ".join([what, said(pair.first), said(pair.second), *pair.first.keys]).replace("_", " ")
        if not _HANDLES.search(words) or not _one_apart(pair.first, pair.second):
            continue
        first, second = (pair.first, *one), (pair.second, *two)
        (slow, high, high_ms), (fast, low, low_ms) = (first, second) if one[1] >= two[1] else (second, first)
        if high_ms >= max(LEAST_MS, FREED * low_ms) and _equal_pace(slow, fast):
            freed.append(_Freed(slow, high, fast, low, high_ms, low_ms))
    if not freed:
        return None
    worst = max(freed, key=lambda item: item.high_ms)
    rates = [figure(arm, "decode_tok_s", "output_tok_s", "tpot", "itl") for arm in (worst.slow, worst.fast)]
    counts = [
        next(
            (item for item in arm.values.values() if re.search(r"deltas?|chunks?|events?", item.label, re.IGNORECASE)),
            None,
        )
        for arm in (worst.slow, worst.fast)
    ]
    same = stated_same(observed)
    pace = held = ""
    if rates[0] is not None and rates[1] is not None:
        pace = (
            f", while decoding is as fast ({quantity(rates[0])} {number(rates[0].value, rates[0].unit)} and "
            f"{number(rates[1].value, rates[1].unit)}): tokens are made and held back"
        )
    if counts[0] is not None and counts[1] is not None:
        held = f" It comes in {counts[0].value:g} instead of {counts[1].value:g} ({counts[0].label})."
    shown = [
        evidence_of(arm, item)
        for pair in (rates, counts)
        for arm, item in zip((worst.slow, worst.fast), pair, strict=True)
        if item is not None
    ]
    missing = ["chunk stamps with text offsets: at which place of the text each stream stops"]
    if rates[0] is None:
        missing.append("the decode rate of both arms: whether the tokens were made meanwhile")
    if not what:
        missing.append("that nothing else was changed")
    return cause.finding(
        action=Action.FIX,
        statement=f"The stream is silent for {number(worst.high_ms, 'ms')} with {worst.slow.name} and "
        f"{number(worst.low_ms, 'ms')} with {worst.fast.name}{pace}.{held} What handles that text (parser, tool "
        "arguments, grammar) keeps it, not the load.",
        evidence=[
            *(
                Evidence(
                    f"{arm.name}: {item.label} {number(item.value, item.unit)}",
                    str(item.place) or "form", item.key, item.value, item.unit,
                )
                for one in sorted(freed, key=lambda item: -item.high_ms)[:4]
                for arm, item in ((one.slow, one.high), (one.fast, one.low))
            ),
            Evidence(
                f"longest: {number(worst.high_ms, 'ms')} and {number(worst.low_ms, 'ms')}",
                str(worst.high.place) or "form", "silence_ms", worst.high_ms, "ms",
            ),
            *shown,
            *change_shown(observed),
        ],
        explains_ms=worst.high_ms - worst.low_ms,
        relation=f"{worst.high_ms:.4g} / {worst.low_ms:.4g} ms = {worst.high_ms / worst.low_ms:.3g} in {len(freed)} "
        f"pair{'s' if len(freed) > 1 else ''} of arms",
        n=len(freed),
        advice=ADVICE,
        price=PRICE,
        verify=again(worst.slow),
        missing=missing,
        rivals=["POSTPROCESS_SLOW", "GW_CHUNK_COALESCING"],
        disproof_checked=[f"equal: {', '.join(same)}"] if same else [],
        level=Level.SUSPECTED,
    )  # fmt: skip


def _one_apart(one: Arm, two: Arm) -> bool:
    """They differ in one condition that is text: the same case with another parser."""
    texts = [{name: value for name, value in arm.keys.items() if isinstance(value, str)} for arm in (one, two)]
    names = texts[0].keys() | texts[1].keys()
    return sum(texts[0].get(name) != texts[1].get(name) for name in names) <= 1


def _equal_pace(one: Arm, two: Arm) -> bool:
    for name in ("decode_tok_s", "output_tok_s", "tpot", "itl"):
        a, b = figure(one, name), figure(two, name)
        if a is not None and b is not None and max(a.value, b.value) > 0:
            return abs(a.value - b.value) <= EQUAL * max(a.value, b.value)
    return True
