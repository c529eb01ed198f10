"""GW_SELF_BOTTLENECK from tables and forms: what a hop says of its own time, against the slow requests' whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import ANY, figure, number_stated, worded
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number
from tailrace.diagnose.arms.whole_tables import tables_by_load, with_whole_tables
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["overhead_on_arms", "own_overhead"]

SHARE: Final = 0.1
LEAST_MS: Final = 50.0
FULL: Final = 90.0
_OWN: Final = (
    r"\boverhead\b(?!.*(?:pct|%|share))|"
    r"(?:gateway|proxy|router|middleware|callback|plugin|auth)s?.*(?:own|self)[ -]?time|"
    r"(?:time )?(?:spent )?(?:in|inside) (?:the )?(?:gateway|proxy|router)"
)
_LAG: Final = r"loop (?:lag|delay)"
_CPU: Final = r"(?:gateway|proxy|router|litellm|process).*cpu|cpu.*(?:gateway|proxy|router|litellm|process)"
_STATS: Final = ("p99", "p95", "max", "p90", "p50", "mean", "")


def own_overhead(arm: Arm) -> Quoted | None:
    """The time that a hop says it took itself (ms)."""
    found = worded(arm, _OWN)
    return found if found is not None and found.unit in {"ms", "s"} else None


def overhead_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The own overhead is a tenth of the slow requests' time, or of what they take more than the others."""
    told = [
        (own, whole, arm)
        for arm in (*with_whole_tables(observed), *tables_by_load(observed))
        if (own := own_overhead(arm)) and (whole := _whole(arm, own))
    ]
    if not told:
        return None
    own, whole, arm = max(told, key=lambda item: _ms(item[0]))
    calm = min(told, key=lambda item: _ms(item[0]))
    excess, more = _ms(whole), _ms(own)
    if calm[2] is not arm and _ms(calm[1]) < excess:
        excess, more = excess - _ms(calm[1]), more - _ms(calm[0])
    share = more / excess
    if share <= SHARE or more < LEAST_MS:
        return None
    lag, cpu = worded(arm, _LAG), worded(arm, _CPU) or number_stated(observed, _CPU)
    full = cpu is not None and (
        (isinstance(cpu, Quoted) and cpu.value >= (FULL if cpu.value > 1 else FULL / 100))
        or (not isinstance(cpu, Quoted) and (cpu.number or 0.0) >= FULL)
    )
    missing = []
    if not full and lag is None:
        missing.append("CPU use and loop lag of the gateway's process, or a profile: what it does in that time")
    against = f"of what {arm.name} takes more than {calm[2].name}" if calm[2] is not arm else "of it"
    return cause.finding(
        statement=f"The gateway itself is slow, by its own word: {number(_ms(own), 'ms')} of "
        f"{number(_ms(whole), 'ms')} are its overhead in {arm.name}, {share:.0%} {against}.",
        evidence=[
            evidence_of(arm, own),
            evidence_of(arm, whole),
            *([evidence_of(calm[2], calm[0]), evidence_of(calm[2], calm[1])] if calm[2] is not arm else []),
            *([evidence_of(arm, lag)] if lag is not None else []),
            *([] if cpu is None else [evidence_of(arm, cpu) if isinstance(cpu, Quoted) else evidence_of_setting(cpu)]),
        ],
        explains_ms=more,
        relation=f"{more:,.4g} / {excess:,.4g} ms = {share:.0%} > {SHARE:.0%}",
        n=len(told),
        advice="Run more workers of the gateway, and name what is on the request's path: callbacks and logging, "
        "guardrails, authentication or rate limits in a remote store, plugins. Tuning the engine changes nothing.",
        price="What runs off the path may be lost when the process dies.",
        verify=again(arm),
        missing=missing,
        disproof_checked=[f"the rest of the time is {1 - min(share, 1.0):.0%}"],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _whole(arm: Arm, own: Quoted) -> Quoted | None:
    """Of the same statistic where there is one, and longer than the overhead in it."""
    for stat in (own.stat, *_STATS, *ANY):
        for name in ("e2e", "ttft"):
            found = figure(arm, name, stats=(stat,))
            if found is not None and found is not own and _ms(found) >= _ms(own):
                return found
    return None


def _ms(item: Quoted) -> float:
    return item.value * 1e3 if item.unit == "s" else item.value
