"""Requests that a timer ended, in a summary: the slow end of a distribution is one number, and a hop has that timer.

A load generator prints percentiles and status codes, a person writes a row a status: neither holds ages one by one, but
a maximum, a p99 and a p95 that are one number are a timer's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace.diagnose.arms.asked import figure, said
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.configured.timers import Timer, alike, timers
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["timer_on_arms"]

ALIKE: Final = 0.01
LEAST_MS: Final = 1000.0
ABOVE: Final = 1.3
"""The pile lies so far above the usual request, or everything is equally slow and no timer's."""
_TOP: Final = ("max", "p999", "p99", "p95", "p90", "p50", "min", "mean", "")
_STATUS: Final = re.compile(r"\b(?:408|504|524)\b|timed? ?out|gateway time", re.IGNORECASE)


class _Pile(NamedTuple):
    arm: Arm
    at: list[Quoted]
    """Statistics that are one number, the highest first."""
    share: float | None
    """Of the requests that failed."""

    @property
    def deep(self) -> bool:
        """More than the few at the very end have it: a maximum and a p99 of few requests are one number anyhow."""
        return any(item.stat in {"p95", "p90", "p50", "min"} for item in self.at)

    @property
    def ms(self) -> float:
        return self.at[-1].value


def timer_on_arms(cause: Cause, observed: Observed, *, kinds: tuple[str, ...]) -> Finding | None:
    """The surest pile whose timer is one of `kinds`; where no timer is known, `total` answers for it."""
    for arm in observed.arms:
        pile = _pile(arm)
        if pile is None:
            continue
        near = alike(observed, pile.ms, owner="gateway")
        if near and near[0].kind in kinds:
            return _found(cause, observed, pile, near[0])
        if not near and "total" in kinds and pile.deep:
            return _found(cause, observed, pile, None)
    return None


def _pile(arm: Arm) -> _Pile | None:
    failing = _STATUS.search(said(arm)) is not None
    # In a row of failures `duration` is theirs; in a run's summary it is the run's.
    names = ("e2e", "duration") if failing else ("e2e",)
    times = [item for stat in _TOP if (item := figure(arm, *names, stats=(stat,))) is not None]
    times = [item for item in times if item.unit in {"ms", "s"}]
    times = [item if item.unit == "ms" else _ms(item) for item in times]
    if not times or times[0].value < LEAST_MS:
        return None
    top = times[0].value
    at = [item for item in times if item.value >= (1 - ALIKE) * top]
    codes = [value for value in arm.values.values() if _STATUS.search(value.label) and value.unit == "count"]
    share = figure(arm, "failed_share")
    failed = failing or any(code.value > 0 for code in codes) or (share is not None and share.value > 0)
    usual = figure(arm, "e2e", stats=("p50", "mean"))
    if not failed or (not failing and (usual is None or top < ABOVE * usual.value)):
        return None
    return _Pile(arm, at, None if share is None else share.value)


def _ms(item: Quoted) -> Quoted:
    return msgspec.structs.replace(item, value=item.value * 1e3, unit="ms")


def _found(cause: Cause, observed: Observed, pile: _Pile, timer: Timer | None) -> Finding:
    names = ", ".join(item.stat or "duration" for item in pile.at)
    seconds = f"{pile.ms / 1e3:.2f} s"
    whose = f"{timer.name} is {timer.ms / 1e3:g} s" if timer is not None else "that is a timer's number"
    evidence = [evidence_of(pile.arm, item) for item in pile.at]
    codes = [value for value in pile.arm.values.values() if value.quantity.startswith("status_")]
    evidence += [evidence_of(pile.arm, code) for code in codes]
    if timer is not None:
        evidence.append(Evidence(f"{timer.name} is {timer.ms / 1e3:g} s", timer.place, timer.name, timer.ms, "ms"))
    missing = []
    if timer is None:
        missing.append("the timers of every hop (idle, read and route timeouts)" if not timers(observed) else
                       "the timer of this value: none that is known has it")  # fmt: skip
    missing += [] if pile.deep else ["the ages of the failed requests one by one: they must be one number"]
    failed = f", and {number(pile.share, 'share')} of the requests fail" if pile.share is not None else ""
    return cause.finding(
        statement=f"{pile.arm.name}: the slow end is one number, {seconds} ({names}){failed}: {whose}, and it ends "
        "requests that the engine still works on.",
        evidence=evidence,
        explains_ms=pile.ms,
        relation=f"{names} = {seconds}" + (f" = {timer.ms / 1e3:g} s of {timer.name}" if timer is not None else ""),
        n=int(n.value) if (n := figure(pile.arm, "n")) is not None else 1,
        advice="Align the proxy's timers with the budgets of the stages (above the p99 of TTFT for streams, of the "
        "whole answer for the rest), or send SSE heartbeats where it is an idle timer; answers that take longer "
        "unstreamed belong into asynchronous jobs; stop retrying on 504.",
        price="A longer timer keeps dead connections longer.",
        verify="tailrace bench http://localhost:8080 --rate 2 --duration 120 --out after.run",
        missing=missing,
        disproof_checked=[f"{len(pile.at)} statistics lie within 1 % of {seconds}"],
        action=Action.TUNE,
    )
