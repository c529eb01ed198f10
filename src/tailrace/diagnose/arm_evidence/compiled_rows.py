"""COMPUTE_JIT from a table that says of each request whether something was compiled (or captured) in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import TAIL_FIRST, figure, named, worded
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["compiled_rows"]

SLOWER: Final = 3.0
LEAST_MS: Final = 200.0
LEAST: Final = 3
_COLUMN: Final = r"compil|\bjit\b|autotun|graph captur|kernel build|codegen|first use|new shape"
_COUNTED: Final = (
    r"kernels? (?:compiled|built)|compil(?:es|ed|ations?)\b(?!.*(?:time|ms|tim))|jit (?:count|events|kernels)|"
    r"recompil\w+"
)
_YES: Final = re.compile(
    r"^(?:y|yes|true|1|x|✓|✅)\b|\b(?:jit|compil|autotun|captur|triton|deep_?gemm|cutlass|inductor)", re.IGNORECASE
)
_NO: Final = re.compile(r"^(?:n|no|none|false|0|-|—|)$", re.IGNORECASE)


def compiled_rows(cause: Cause, observed: Observed) -> Finding | None:
    """Requests in which it compiled are slow, all others are fast."""
    yes: list[Arm] = []
    no: list[Arm] = []
    for arm in observed.arms:
        found = named(arm, _COLUMN)
        count = None if found is not None else worded(arm, _COUNTED)
        if count is not None:
            found = count.label, "yes" if count.value > 0 else "no"
        text = "" if found is None else str(found[1]).strip()
        if figure(arm, "ttft", "e2e", stats=TAIL_FIRST) is None or found is None:
            continue
        (no if _NO.match(text) else yes if _YES.search(text) else []).append(arm)
    if not yes or not no or len(yes) + len(no) < LEAST:
        return None
    slow = [(arm, item) for arm in yes if (item := figure(arm, "ttft", "e2e", stats=TAIL_FIRST)) is not None]
    fast = [(arm, item) for arm in no if (item := figure(arm, "ttft", "e2e", stats=TAIL_FIRST)) is not None]
    low, high = min(item.value for _, item in slow), max(item.value for _, item in fast)
    if low < SLOWER * high or low - high < LEAST_MS:
        return None
    worst = max(slow, key=lambda pair: pair[1].value)
    return cause.finding(
        action=Action.FIX,
        statement=f"Kernels are compiled while requests wait: the {len(slow)} requests in which it compiled take "
        f"{number(low, 'ms')} to {number(worst[1].value, 'ms')} ({quantity(worst[1])}), the {len(fast)} others at most "
        f"{number(high, 'ms')}.",
        evidence=[
            *(evidence_of(arm, item) for arm, item in (*slow[:4], *fast[:4])),
            Evidence(
                f"{len(slow)} of {len(slow) + len(fast)} requests compiled; at least {number(low, 'ms')} with it, at "
                f"most {number(high, 'ms')} without",
                str(worst[0].place) or "form", "compiled", float(len(slow)),
            ),
        ],
        explains_ms=worst[1].value - high,
        relation=f"{number(low)} / {number(high)} = {low / high:.3g} at least",
        n=len(slow) + len(fast),
        advice="Add these shapes to the warm-up before the replica takes traffic, keep the compile cache between "
        "starts, and count compile seconds at start.",
        price="The start takes longer by what these requests take now.",
        verify="tailrace bench http://localhost:8000 --concurrency 1 --requests 20  "
        "# twice after a start: only the first run is slow",
        disproof_checked=["no request without compiling is slow"],
    )  # fmt: skip
