"""COMPUTE_JIT, suspected, from a table: the first request after a start is slow and those after it are not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["first_of_several"]

SLOWER: Final = 1.5
LEAST_MS: Final = 200.0
_FIRST: Final = re.compile(
    r"^\W*(?:the )?(?:first|1st|initial)"
    r"(?:[\s_-]+(?:requests?|runs?|prompts?|calls?|inferences?|quer(?:y|ies)|pass|attempts?|use)\b"
    r"|(?:[\s_-]+(?:gen\w*|messages?|times?|responses?|ttft|latency|time))?(?:\W|$)"
    r"(?!.*\b(?:token|byte|chunk|event|word)\b))",
    re.IGNORECASE,
)
_LATER: Final = re.compile(
    r"^\W*(?:the )?(?:second|2nd|third|3rd|later|next|following|subsequent|settled|steady|warmed|after warm|other|rest)"
    r"\b",
    re.IGNORECASE,
)


class _Row(NamedTuple):
    arm: Arm
    first: Quoted
    later: Quoted
    first_ms: float
    later_ms: float


def first_of_several(cause: Cause, observed: Observed) -> Finding | None:
    """Columns `first …` and `second …` or `later …`: in most rows the first takes much longer."""
    rows = [row for arm in observed.arms if (row := _row(arm)) is not None]
    slow = [row for row in rows if row.first_ms >= SLOWER * row.later_ms and row.first_ms - row.later_ms >= LEAST_MS]
    if not slow or len(slow) < 0.5 * len(rows):
        return None
    worst = max(slow, key=lambda row: row.first_ms - row.later_ms)
    ratio = worst.first_ms / worst.later_ms
    return cause.finding(
        statement=f"Only the first is slow: {worst.arm.name} takes {number(worst.first_ms, 'ms')} for “"
        f"{worst.first.label}” and {number(worst.later_ms, 'ms')} for “{worst.later.label}” ({ratio:.3g} x; "
        f"{len(slow)} of {len(rows)} rows are so). That is work done once after a start: kernels compiled or tuned for "
        "a new shape, weights read in, caches filled; it is no load.",
        evidence=[
            Evidence(
                f"{row.arm.name}: {number(row.first_ms, 'ms')} for {row.first.label}, {number(row.later_ms, 'ms')} for "
                f"{row.later.label}",
                str(row.first.place) or "form",
                "first",
                row.first_ms,
                "ms",
            )
            for row in (worst, *(other for other in slow[:4] if other is not worst))
        ],
        explains_ms=worst.first_ms - worst.later_ms,
        relation=f"{number(worst.first_ms)} / {number(worst.later_ms)} = {ratio:.3g} in {len(slow)} of {len(rows)} "
        "rows",
        n=len(rows),
        advice="Warm up before traffic comes: after the health check is green and before the replica joins, send one "
        "request of each shape that will come (short and long prompts, each batch size, grammar, image), and leave the "
        "first request out of every benchmark. Keep the compile cache between starts.",
        price="The start takes longer by what the first request takes now.",
        verify="tailrace bench http://localhost:8000 --concurrency 1 --requests 20  "
        "# twice after a start: only the first run is slow",
        missing=[
            "a log or a stack dump of the first request: whether it compiles, reads weights or fills a cache",
            "whether it is slow again after a pause, or at the first use of a shape",
        ],
        rivals=["COMPUTE_IDLE_RAMP", "MIX_CACHE_MISS"],
        level=Level.SUSPECTED,
        action=Action.FIX,
    )  # fmt: skip


def _row(arm: Arm) -> _Row | None:
    timed = [
        (value, ms)
        for value in arm.values.values()
        if not value.relative and (ms := in_unit(value.value, value.unit, "ms")) is not None and value.unit
    ]
    # The least of a range that says "first" against the most of one that says "later".
    first = next(((value, ms) for value, ms in timed if _FIRST.match(value.label)), None)
    later = [(value, in_unit(value.high or value.value, value.unit, "ms") or ms) for value, ms in timed
             if _LATER.match(value.label)]  # fmt: skip
    if first is None or not later or first[1] <= 0:
        return None
    last = max(later, key=lambda item: item[1])
    return _Row(arm, first[0], last[0], first[1], last[1]) if last[1] > 0 else None
