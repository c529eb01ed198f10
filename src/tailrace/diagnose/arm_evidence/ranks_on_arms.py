"""COMPUTE_RANK_SKEW from a row a rank: all wait in the collective but the one that comes late."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.asked import condition, worded
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["ranks_on_arms"]

SHARE: Final = 0.2
_WAIT: Final = r"wait|all.?reduce|collective|barrier|nccl|sync"
_STEP: Final = r"^(?:whole |total )?(?:step|iteration)\b|^total"


def ranks_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The median rank waits for a fifth of the step, the late one for (nearly) nothing."""
    rows = [
        (rank, wait, step, arm)
        for arm in observed.arms
        if (rank := condition(arm, r"\brank\b|\bgpu\b|\bdevice\b|\bworker\b")) is not None
        and (wait := worded(arm, _WAIT)) is not None
        and (step := next((v for v in arm.values.values() if v is not wait and _is_step(v.label)), None)) is not None
        and step.value > 0
    ]
    if len(rows) < 2:
        return None
    waits = np.array([wait.value / step.value for _, wait, step, _ in rows])
    late = int(np.argmin(waits))
    rest = np.delete(waits, late)
    if float(np.median(rest)) <= SHARE or waits[late] > 0.5 * float(rest.min()):
        return None
    rank, wait, step, arm = rows[late]
    _, longest, whole, other = rows[int(np.argmax(waits))]
    share = float(np.median(rest))
    return cause.finding(
        statement=f"Rank {rank:g} comes late and the others wait for it: {number(longest.value)} of "
        f"{number(whole.value)} a step in {other.name}, {number(wait.value)} in {arm.name} ({share:.0%} of a step, "
        "median).",
        evidence=[
            *(evidence_of(one, value) for _, value, _, one in rows[:16]),
            Evidence(
                f"{share:.0%} of a step (median of the ranks that wait)", str(arm.place) or "form", "share", share
            ),
        ],
        explains_ms=longest.value if longest.unit == "ms" else None,
        relation=f"{number(longest.value)} / {number(whole.value)} = {longest.value / whole.value:.0%} > {SHARE:.0%}",
        n=len(rows),
        advice="Pin each rank's process to cores near its device, look at what delays the late rank (a busy core, "
        "garbage collection, logging, a slower link or clock of that device), and capture graphs so that launches are "
        "few. The network is not at fault while the transfer itself is short.",
        price="Pinned cores are lost to others.",
        verify="tailrace diagnose ranks.md  # the waits of all ranks after the change: alike, and below 20 % of a step",
        disproof_checked=[f"{arm.name} waits {number(wait.value)}: the transfer itself is short"],
    )


def _is_step(label: str) -> bool:
    return re.search(_STEP, label.lower()) is not None and re.search(_WAIT, label.lower()) is None
