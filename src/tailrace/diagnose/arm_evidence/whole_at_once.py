"""GW_PROXY_BUFFERING from two arms: in one all of the answer comes at its end, in the other as it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import USUAL_FIRST, figure
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.configured.buffering import ADVICE, PRICE, VERIFY
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["whole_at_once"]

ALL: Final = 0.95
"""First over last: from here on the whole answer came at once."""
STREAMED: Final = 0.5
LEAST_MS: Final = 300.0
ALIKE: Final = 0.25
"""The answer takes as long in both, relatively."""


def whole_at_once(cause: Cause, observed: Observed) -> Finding | None:
    """First = last in one arm, first much earlier than last in another, and the same time to the end."""
    timed = [(arm, pair) for arm in observed.arms if (pair := _first_and_last(arm)) is not None]
    for held, (first, last) in timed:
        if last.value < LEAST_MS or first.value < ALL * last.value:
            continue
        for free, (start, end) in timed:
            alike = abs(end.value / last.value - 1.0) <= ALIKE
            if free is held or not alike or start.value > STREAMED * end.value or start.stat != first.stat:
                continue
            return _found(cause, held, (first, last), free, (start, end))
    return None


def _first_and_last(arm: Arm) -> tuple[Quoted, Quoted] | None:
    for stat in USUAL_FIRST:
        first, last = figure(arm, "ttft", stats=(stat,)), figure(arm, "e2e", stats=(stat,))
        if (
            first is not None
            and last is not None
            and first.unit == last.unit == "ms"
            and 0 < first.value <= (1.0 + 1.0 - ALL) * last.value
        ):
            return first, last
    return None


def _found(cause: Cause, held: Arm, one: tuple[Quoted, Quoted], free: Arm, two: tuple[Quoted, Quoted]) -> Finding:
    first, last = one
    start, end = two
    spread = last.value - first.value
    return cause.finding(
        statement=f"With {held.name} the first of the stream comes with the last, at {number(first.value, 'ms')} of "
        f"{number(last.value, 'ms')}; with {free.name} it comes at {number(start.value, 'ms')} of "
        f"{number(end.value, 'ms')}. The answer takes as long: something between gathers all of it and lets it go in "
        "one burst at the end.",
        evidence=[
            evidence_of(held, first),
            evidence_of(held, last),
            evidence_of(free, start),
            evidence_of(free, end),
            Evidence(
                f"from first to last {number(spread, 'ms')} against {number(end.value - start.value, 'ms')}",
                str(first.place) or "form",
                "spread",
                round(spread, 3),
                "ms",
            ),
        ],
        explains_ms=first.value - start.value,
        relation=f"{number(first.value)} / {number(last.value)} = {first.value / last.value:.0%} against "
        f"{number(start.value)} / {number(end.value)} = {start.value / end.value:.0%}",
        n=2,
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        disproof_checked=[
            f"the whole answer takes as long in both ({number(last.value, 'ms')} and {number(end.value, 'ms')})"
        ],
    )
