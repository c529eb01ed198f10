"""METRIC_BUG from two clocks on one stream: an inner hop cannot see the first token long after an outer one had it.

Whatever stands further in is passed first. If both agree on the end of the stream, the inner hop's time to the first
token is that of something later: of the first token that it parses as an answer, behind the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.again import MEASURE
from tailrace.diagnose.arms.asked import figure, told, worded
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.observed.vocabulary import TO_MS
from tailrace.diagnose.readers.heading import heading
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["clocks_disagree"]

LATER: Final = 2.0
LATER_MS: Final = 100.0
ALIKE: Final = 0.1
"""Both ends of the stream agree to so much, or the clocks are of two requests."""
_SIDES: Final = (
    r"client|browser|caller|curl|user|probe|load ?test|end ?user",
    r"edge|cdn|\blb\b|load balancer|ingress|outer|nginx|envoy|downstream|front",
    r"\bgw\b|gateway|prox(?:y|ied)|router|litellm|relay|middle|inner",
    r"engine|server|upstream|backend|vllm|sglang|\btgi\b|model|worker|internal",
)
"""From the outside inwards."""
_WHOLE: Final = re.compile(
    r"\btotal\b|\be2e\b|end to end|latency|duration|\bend\b|last|whole|\belapsed\b", re.IGNORECASE
)
_NO_WHOLE: Final = re.compile(r"tokens?\b|ttft|first|queue|itl|tpot|overhead", re.IGNORECASE)
_OTHER_REQUESTS: Final = re.compile(r"direct|\bvia\b|through|cold|warm|cached|without|bypass", re.IGNORECASE)
_REASONING: Final = r"reasoning|thinking"


class _Told(NamedTuple):
    """One time of one side."""

    side: int
    name: str
    what: str
    """`first` or `whole`."""
    stat: str
    ms: float
    place: str


class _Clash(NamedTuple):
    where: str
    outer: _Told
    inner: _Told
    ends: tuple[_Told, _Told] | None
    arm: Arm | None

    @property
    def ratio(self) -> float:
        return self.inner.ms / self.outer.ms


def clocks_disagree(cause: Cause, observed: Observed) -> Finding | None:
    """The inner hop's first token comes after the outer one's, in rows, in arms that are hops, or in a form."""
    groups = list(_groups(observed))
    clashes = [clash for where, arm, items in groups if (clash := _clash(where, arm, items)) is not None]
    if not clashes:
        return None
    worst = max(clashes, key=lambda clash: clash.inner.ms - clash.outer.ms)
    outer, inner = worst.outer, worst.inner
    evidence = [_shown(worst.where, item) for item in (outer, inner, *(worst.ends or ()))]
    statement = (
        f"The {inner.name} clock says {inner.ms:,.0f} ms to the first token where {outer.name}, further out, had it "
        f"after {outer.ms:,.0f} ms ({worst.ratio:.3g} x): what {inner.name} counts is not the first token"
    )
    relation = f"{inner.ms:,.0f} / {outer.ms:,.0f} ms = {worst.ratio:.3g}; an inner hop is passed first"
    if worst.ends is not None:
        relation += f"; ends agree: {worst.ends[1].ms:,.0f} and {worst.ends[0].ms:,.0f} ms"
    tokens = None if worst.arm is None else figure(worst.arm, "output_tokens")
    if tokens is not None and worst.ends is not None and worst.ends[1].ms > inner.ms:
        left = (worst.ends[1].ms - inner.ms) / 1e3
        spread = (worst.ends[0].ms - outer.ms) / 1e3
        text = (
            f"{tokens.value:,.0f} tokens in the {left:.2f} s after {inner.name}'s first token would be "
            f"{tokens.value / left:,.0f} tok/s, after {outer.name}'s {tokens.value / max(spread, 1e-9):,.0f} tok/s"
        )
        evidence.append(Evidence(text, inner.place, "tok_s", round(tokens.value / left, 2), "tok/s"))
        relation += f"; {text}"
    thought = None if worst.arm is None else worded(worst.arm, _REASONING)
    if thought is not None and thought.value > 0:
        of = f" of {tokens.value:,.0f}" if tokens is not None else ""
        evidence.append(
            Evidence(f"{thought.value:,.0f}{of} tokens are reasoning", inner.place, "reasoning_tokens", thought.value)
        )
        statement += ", but the first one behind the reasoning"
    calm = [where for where, _, items in groups if (pair := _pair(items)) is not None and _agree(*pair)]
    missing = [] if worst.ends is not None else ["the end of the same streams on both clocks: whether they agree there"]
    return cause.finding(
        statement=f"{statement}: the number is wrong, not the system.",
        evidence=evidence,
        explains_ms=None,
        relation=relation,
        n=len(clashes) + len(calm),
        advice=f"Stamp the first token at {inner.name} when the first event of the stream passes, reasoning and empty "
        "deltas too, or name the number what it is (time to the first content token). Alarm on the outer clock "
        "meanwhile.",
        price="None.",
        verify=MEASURE,
        missing=missing,
        disproof_checked=[
            f"{len(clashes)} of {len(clashes) + len(calm)} disagree"
            + (f"; both clocks agree for {', '.join(calm[:3])}" if calm else ""),
        ],
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _shown(where: str, item: _Told) -> Evidence:
    what = "first token" if item.what == "first" else "end"
    text = f"{where}: {what} at {item.name} after {item.ms:,.0f} ms".removeprefix(": ")
    return Evidence(text, item.place, f"{item.name}_{item.what}", round(item.ms, 3), "ms")


def _groups(observed: Observed) -> Iterator[tuple[str, Arm | None, list[_Told]]]:
    for arm in observed.arms:
        place = str(arm.place) or "form"
        items = [
            _told(value.label or value.key, value.qualifier, value.quantity, value.stat, value.value, value.unit, place)
            for value in arm.values.values()
            if not value.relative
        ]
        yield arm.name, arm, [item for item in items if item is not None]
    named = []
    for arm in observed.arms:
        side = _side(arm.label)
        for quantity, what in (("ttft", "first"), ("e2e", "whole")):
            found = figure(arm, quantity)
            if side is not None and found is not None and found.unit == "ms" and found.value > 0:
                place = str(found.place) or "form"
                named.append(_Told(side, _bare(arm.label), what, found.stat, found.value, place))
    yield "", None, named
    stated = []
    for item in told(observed):
        if item.number is not None:
            head = heading(item.name)
            place = str(item.place) or "form"
            unit = item.unit or head.unit
            stated.append(_told(item.name, head.qualifier, head.quantity, head.stat, item.number, unit, place))
    yield "stated", None, [item for item in stated if item is not None]


def _bare(label: str) -> str:
    """A side's name without what stands in brackets behind it."""
    return re.sub(r"\s*[(\[].*", "", label).strip() or label


def _told(label: str, qualifier: str, quantity: str, stat: str, value: float, unit: str, place: str) -> _Told | None:
    words = label.replace("_", " ")
    side = _side(qualifier or words)
    if _OTHER_REQUESTS.search(words):
        return None
    if side is None or unit not in TO_MS or value <= 0:
        return None
    if quantity == "ttft":
        what = "first"
    elif quantity == "e2e" or (_WHOLE.search(words) and not _NO_WHOLE.search(words)):
        what = "whole"
    else:
        return None
    found = re.search(_SIDES[side], words, re.IGNORECASE)
    return _Told(side, found[0].strip() if found else qualifier, what, stat, value * TO_MS[unit], place)


def _side(words: str) -> int | None:
    """0 is outermost; `None` where words name no side, or two."""
    found = [side for side, pattern in enumerate(_SIDES) if re.search(pattern, words.replace("_", " "), re.IGNORECASE)]
    return found[0] if len(found) == 1 else None


def _pair(items: list[_Told]) -> tuple[_Told, _Told] | None:
    """First tokens of two sides in one statistic: the outermost and the innermost."""
    firsts = [item for item in items if item.what == "first"]
    for outer in sorted(firsts, key=lambda item: item.side):
        inner = [item for item in firsts if item.side > outer.side and item.stat == outer.stat]
        if inner:
            return outer, max(inner, key=lambda item: item.ms)
    return None


def _agree(outer: _Told, inner: _Told) -> bool:
    return inner.ms <= (1 + ALIKE) * outer.ms + LATER_MS


def _clash(where: str, arm: Arm | None, items: list[_Told]) -> _Clash | None:
    pair = _pair(items)
    if pair is None or pair[1].ms <= LATER * pair[0].ms or pair[1].ms - pair[0].ms < LATER_MS:
        return None
    ends = [
        next((item for item in items if item.what == "whole" and (item.side, item.stat) == (one.side, one.stat)), None)
        for one in pair
    ]
    if ends[0] is None or ends[1] is None:
        # Rows without their ends may be means of other requests each.
        return None if not where else _Clash(where, *pair, None, arm)
    if abs(ends[1].ms - ends[0].ms) > ALIKE * max(ends[0].ms, ends[1].ms):
        return None
    return _Clash(where, *pair, (ends[0], ends[1]), arm)
