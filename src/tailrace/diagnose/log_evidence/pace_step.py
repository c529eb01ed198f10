"""DECODE_SLOWDOWN from an engine's log of finished requests: from one of them on, every token takes far longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["pace_step_in_served"]

Floats = NDArray[np.float64]
LEAST: Final = 5
"""Requests on either side."""
TIMES: Final = 2.0
EVEN: Final = 0.25
"""Spread of either side (distance of the quartiles by the median): a pace that drifts is no step."""
ALIKE: Final = 1.3
"""Lengths of the two sides, by their medians."""


def pace_step_in_served(cause: Cause, observed: Observed) -> Finding | None:
    """Logs that tell the time per token of each request, in their order, without stamps of the client's."""
    for rows in observed.table("requests"):
        if not rows.has("tpot") or rows.has("t_send_ms"):
            continue
        pace = rows.numbers("tpot")
        known = np.flatnonzero(np.isfinite(pace) & (pace > 0))
        at = _step(pace[known])
        if at is not None and _equal_lengths(rows, known, at):
            return _found(cause, rows, known, pace, at)
    return None


def _step(pace: Floats) -> int | None:
    """Where the second side begins; `None` where no place parts two even sides that do not overlap."""
    if pace.size < 2 * LEAST:
        return None
    jumps = np.diff(pace)
    at = int(np.argmax(jumps[LEAST - 1 : pace.size - LEAST])) + LEAST
    low, high = pace[:at], pace[at:]
    before, after = float(np.median(low)), float(np.median(high))
    spread = [float(np.quantile(side, 0.75) - np.quantile(side, 0.25)) for side in (low, high)]
    even = spread[0] <= EVEN * before and spread[1] <= EVEN * after
    return at if even and after >= TIMES * before and float(low.max()) < float(high.min()) else None


def _equal_lengths(rows: Rows, known: NDArray[np.int64], at: int) -> bool:
    for name in ("prompt_tokens", "output_tokens"):
        sides = [values[np.isfinite(values)] for values in np.split(rows.numbers(name)[known], [at])]
        if min(side.size for side in sides):
            low, high = sorted(float(np.median(side)) for side in sides)
            if high > ALIKE * max(low, 1.0):
                return False
    return True


def _found(cause: Cause, rows: Rows, known: NDArray[np.int64], pace: Floats, at: int) -> Finding:
    before, after = float(np.median(pace[known[:at]])), float(np.median(pace[known[at:]]))
    place = str(rows.line_of(int(known[at])))
    return cause.finding(
        statement=f"From one request on every token takes longer: {before:.1f} ms in the {at} before, {after:.1f} ms "
        f"in the {known.size - at} from there (median), at equal lengths.",
        evidence=[
            Evidence(f"{after:.1f} ms a token from here on (n = {known.size - at})", place, "tpot", after, "ms"),
            Evidence(f"{before:.1f} ms a token before (n = {at})", rows.place.source, "tpot_before", before, "ms"),
        ],
        explains_ms=None,
        relation=f"{after:.1f} / {before:.1f} = {after / before:.2f}, no request of one side among the other's",
        n=int(known.size),
        advice="Look for what changed at that moment on the machine: clocks and power, another process on its cores or "
        "its device, a CPU limit, a restart with other options.",
        price="None: it is a look.",
        verify="tailrace diagnose server.log  # after the change: one pace in all of it",
        missing=[
            "how many requests ran at once before and after: a fuller batch makes every token slower",
            "clocks, CPU use and other processes at that moment",
        ],
        rivals=["FE_CPU_STARVED", "COMPUTE_THERMAL"],
        disproof_checked=["the lengths are equal on both sides"],
        action=Action.COLLECT,
        level=Level.SUSPECTED,
    )
