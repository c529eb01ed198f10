"""A CPU limit that stops the engine, as cgroup's own counters say."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.arm_evidence.threads_given import over_quota
from tailrace.diagnose.arms.asked import figure, said
from tailrace.diagnose.arms.pairs import pairs
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.commands import CPU_STAT_TWICE
from tailrace.diagnose.limits import THROTTLED
from tailrace.diagnose.observed import Counter, Observed
from tailrace.diagnose.readers.cpu_stat import deltas_of
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["throttled"]

LEAST_PERIODS: Final = 20
SLOWER: Final = 1.3
_FREE: Final = re.compile(r"\b(?:no|without|un)[ -]?(?:cpu )?(?:quota|limit)|unlimited", re.IGNORECASE)


def _counted(observed: Observed, name: str) -> Counter | None:
    found = deltas_of(observed.of_counter(name))
    return found[-1] if found else None


def _with_and_without(observed: Observed) -> bool:
    """Whether tokens are told with the quota and without it: then it was not counted in some other time."""
    for pair in pairs(observed.arms):
        free = [_FREE.search(said(arm)) is not None for arm in (pair.first, pair.second)]
        gaps = [figure(arm, "itl", "tpot") for arm in (pair.first, pair.second)]
        if free[0] == free[1] or gaps[0] is None or gaps[1] is None:
            continue
        bound, loose = (gaps[1], gaps[0]) if free[0] else (gaps[0], gaps[1])
        if bound.value >= SLOWER * loose.value:
            return True
    return False


def throttled(cause: Cause, observed: Observed) -> Finding | None:
    """More than a tenth of the enforcement periods were throttled."""
    periods, stopped = _counted(observed, "nr_periods"), _counted(observed, "nr_throttled")
    if periods is None or stopped is None:
        return None
    whole, count = periods.last - periods.first, stopped.last - stopped.first
    if whole < LEAST_PERIODS or count < 0 or count / whole <= THROTTLED:
        return None
    share = f"{count / whole:.0%}"
    missing, checked = [], ["all zero would not have cleared the CPU: without a quota nothing is counted"]
    above = over_quota(observed)
    if periods.lifetime and above is None and not _with_and_without(observed):
        # However large the share is: most of a container's life need not be the slow minutes of it.
        missing.append(
            "a second cpu.stat from the end of the slow window: one cpu.stat counts since the container's start"
        )
    slow = any(
        arm.quoted(name, "mean", "p50", "") is not None for arm in observed.arms for name in ("itl", "tpot")
    ) or any(observed.of_histogram(name) or observed.of_series(name) for name in ("itl", "tpot"))
    if not slow and above is None:
        missing.append("ITL or TPOT of the same window, to see that tokens are late by it")
    held = _counted(observed, "throttled")
    evidence = [
        Evidence(
            text=f"the CPU limit stopped it in {count:.0f} of {whole:.0f} periods",
            source=str(stopped.place),
            name="nr_throttled",
            value=count,
        )
    ]
    each = ""
    if held is not None and held.last > held.first:
        lost = held.last - held.first
        each = f"; {lost / 1e3:.3g} s in all, {lost / count:.3g} ms each time"
        evidence.append(
            Evidence(
                text=f"stopped for {lost / 1e3:.3g} s in all, {lost / count:.3g} ms each time",
                source=str(held.place),
                name="throttled",
                value=lost,
                unit="ms",
            )
        )
    if above is not None:
        evidence.append(Evidence(above.words, str(above.above.arm.place) or "form", "ratio", round(above.ratio, 3)))
        each += f"; {above.above.x:g} threads > {above.quota:g} cores: {above.ratio:.3g} x slower"
    quota = observed.number("cpu_quota", "cpu_limit", "resources.limits.cpu")
    return cause.finding(
        statement=f"The CPU limit stops the engine's processes in {share} of its periods ({count:.0f} of "
        f"{whole:.0f}): steps "
        "wait for the next period, whatever the accelerator does." + (f" {above.words}." if above is not None else ""),
        evidence=[*evidence, Evidence(text=f"{share} of the periods", source=str(stopped.place), name="share")],
        explains_ms=None,
        relation=f"{count:.0f}/{whole:.0f} = {share} > {THROTTLED:.0%}{each}",
        n=int(whole),
        advice="Raise the CPU limit (or drop it and keep the request), or run fewer threads than the quota"
        + (f" of {quota:g} cores" if quota else "")
        + " has (OMP_NUM_THREADS, tokenizer and API workers).",
        price="CPU that neighbours then do not have.",
        verify=CPU_STAT_TWICE,
        missing=missing,
        disproof_checked=checked,
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )
