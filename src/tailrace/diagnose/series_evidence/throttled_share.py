"""FE_CPU_STARVED from a gauge of throttling: the share of periods in which the CPU limit stopped the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.asked import USUAL_FIRST, as_share, figure, worded
from tailrace.diagnose.arms.moments import in_order
from tailrace.diagnose.commands import CPU_STAT_TWICE
from tailrace.diagnose.limits import THROTTLED
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["throttled_share"]

SLOWER: Final = 1.3
"""A token in the throttled readings against one in the others."""
SAME: Final = 0.2
"""By so much the batch of both may differ."""
_WORDS: Final = (
    r"^(?!.*(?:gpu|clock|therm|power|temperature|request|client|http|429|api\b))"
    r".*throttl(?!ed (?:s|sec|usec|us|ms|time|total|periods)\b)"
)
"""Of a processor's quota: a hot device and a gateway that refuses are throttled, too."""
_COUNTED: Final = ("count", "s", "us", "ms", "ns")


def throttled_share(cause: Cause, observed: Observed) -> Finding | None:
    """Readings with more than a tenth of the periods throttled, and tokens that are slower in them than in the rest."""
    told = [(arm, share) for arm in in_order(observed) if (share := _share(arm)) is not None]
    paced = [(arm, share, pace.value) for arm, share in told if (pace := _pace(arm)) is not None]
    high = [item for item in paced if item[1] > THROTTLED]
    low = [item for item in paced if item[1] <= THROTTLED]
    if not high or not low:
        return None
    slow, fast = float(np.median([item[2] for item in high])), float(np.median([item[2] for item in low]))
    if fast <= 0 or slow < SLOWER * fast:
        return None
    most = max(high, key=lambda item: item[1])
    batches = [[value.value for arm, *_ in side if (value := figure(arm, "running", "concurrency")) is not None]
               for side in (high, low)]  # fmt: skip
    known = all(batches)
    one, two = (float(np.median(side)) if side else 0.0 for side in batches)
    if known and abs(one - two) > SAME * max(one, two):
        return None  # another batch is slower for itself
    source = str(most[0].place) or "form"
    return cause.finding(
        statement=f"The CPU limit stops the engine's processes in up to {most[1]:.0%} of the periods, and a token then "
        f"takes {slow:.3g} ms instead of {fast:.3g} ms.",
        evidence=[
            Evidence(f"{most[0].name}: throttled {most[1]:.0%}", source, "throttled", round(most[1], 4)),
            Evidence(f"time per token {slow:.3g} ms in {len(high)} throttled readings", source, "itl", slow, "ms"),
            Evidence(f"time per token {fast:.3g} ms in {len(low)} others", str(low[0][0].place), "itl", fast, "ms"),
        ],
        explains_ms=slow - fast,
        relation=f"{slow:.3g} / {fast:.3g} = {slow / fast:.2f} x at {most[1]:.0%} > {THROTTLED:.0%} of the periods",
        n=len(paced),
        advice="Raise the CPU limit (or drop it and keep the request), or run fewer threads than the quota has "
        "(OMP_NUM_THREADS, tokenizer and API workers).",
        price="CPU that neighbours then do not have.",
        verify=CPU_STAT_TWICE,
        missing=[] if known else ["running requests of the same readings: a fuller batch is slower, too"],
        disproof_checked=[f"running {one:g} and {two:g}"] if known else [],
        action=Action.FIX,
    )


def _share(arm: Arm) -> float | None:
    found = worded(arm, _WORDS)
    if found is None or found.unit in _COUNTED or (found.unit != "%" and not 0 <= found.value <= 1):
        return None
    share = as_share(found.value, found.unit)
    return share if 0 <= share <= 1 else None


def _pace(arm: Arm) -> Quoted | None:
    return figure(arm, "itl", "tpot", stats=USUAL_FIRST)
