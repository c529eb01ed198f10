"""LB_CACHE_AFFINITY_LOST: a change of routing scatters the turns of one conversation, and their prefix is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arm_evidence.hits_by_window import hits_by_window, hits_in_series
from tailrace.diagnose.arm_evidence.routing_words import of_routing
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, number_stated, said
from tailrace.diagnose.arms.pairs import changed, pairs, stated_same
from tailrace.diagnose.arms.shown import compared, evidence_of, evidence_of_setting, number
from tailrace.diagnose.observed import Arm, Observed, Quoted, Role
from tailrace.model.finding import Action, Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["affinity_on_arms", "fell"]

FELL: Final = 0.2
"""Relative fall of the hit rate from which it matters."""
_EQUAL_MIX: Final = (
    *("mix", "trace", "prompt", "client", "workload", "session", "conversation", "replay", "traffic", "dataset"),
    *("requests", "load"),
)


def hit_rate(arm: Arm) -> Quoted | None:
    """The hit rate of an arm: as it says, or from its tokens hit and asked for."""
    rate = figure(arm, "prefix_hit")
    hits, asked = figure(arm, "prefix_hit_tokens"), figure(arm, "prefix_query_tokens", "prompt_tokens")
    if rate is not None or hits is None or asked is None or not 0 <= hits.value <= asked.value or not asked.value:
        return rate
    label = f"{hits.label} / {asked.label}"
    return Quoted(quantity="prefix_hit", value=hits.value / asked.value, unit="share", label=label, place=hits.place)


def fell(observed: Observed) -> tuple[Arm, Quoted, Arm, Quoted] | None:
    """(the arm with the high hit rate, its rate, the one with the low rate, its rate) of two that had the same work."""
    worst = None
    for pair in pairs([arm for arm in observed.arms if hit_rate(arm) is not None]):
        one, two = hit_rate(pair.first), hit_rate(pair.second)
        if one is None or two is None:
            continue
        (high, up), (low, down) = sorted(((one, pair.first), (two, pair.second)), key=lambda item: -item[0].value)
        if high.value > 0 and 1.0 - low.value / high.value >= FELL and (worst is None or low.value < worst[3].value):
            worst = up, high, down, low
    return worst


def _between_windows(observed: Observed) -> tuple[Arm, Quoted, Arm, Quoted] | None:
    """The same of two windows between three scrapes, or of two readings of a series, the earlier one first."""
    windows = [arm for arm in (*hits_by_window(observed), *hits_in_series(observed)) if hit_rate(arm) is not None]
    if len(windows) < 2:
        return None
    first, last = windows[0], windows[-1]
    high, low = hit_rate(first), hit_rate(last)
    if high is None or low is None or high.value <= 0 or 1.0 - low.value / high.value < FELL:
        return None
    return first, high, last, low


def affinity_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """A hit rate that fell between two arms, and routing as what differs."""
    what = changed(observed)
    found = fell(observed)
    windows = None if found is not None else _between_windows(observed)
    found = found or windows
    if found is None:
        return None
    up, high, down, low = found
    words = f"{what} {said(up)} {said(down)}"
    if not of_routing(words):
        return None
    same = stated_same(observed)
    equal_mix = any(word in " ".join(same).lower() for word in _EQUAL_MIX)
    by_session = any("session" in f"{item.qualifier} {item.label}".lower() for item in (high, low))
    offered = number_stated(observed, r"designed reuse|repeat ratio|reuse (?:pct|share)|offered reuse")
    missing = []
    if not equal_mix and not by_session:
        missing.append("that both arms had the same prompts (one trace, sent again)")
    if not what and not missing:
        missing.append("what else changed between the arms")
    times = [
        (one, two)
        for quantity in ("ttft", "e2e", "prefill")
        if (one := figure(up, quantity)) is not None and (two := figure(down, quantity)) is not None
    ]
    slower = times[0] if times and times[0][1].value > times[0][0].value else None
    # Where the better arm is the later one, nothing was broken: somebody repaired it.
    repaired = up.role is Role.AFTER and down.role is not Role.AFTER
    # Two windows of one run may differ in more than what was changed between them.
    proven = bool(what) and equal_mix and slower is not None and windows is None
    return cause.finding(
        action=Action.FIX if repaired else Action.ROLLBACK,
        statement=(
            f"Prefix hits are {number(low.value, low.unit)} with {down.name} and {number(high.value, high.unit)} with "
            f"{up.name}: what differs is the routing, and with {down.name} the turns of one session do not come to the "
            "replica that holds their prefix."
            if repaired
            else f"Prefix hits fell from {number(high.value, high.unit)} to {number(low.value, low.unit)} where the "
            f"routing changed ({what or f'{up.name} -> {down.name}'}): the turns of one session no longer come to the "
            "replica that holds their prefix."
        ),
        evidence=[
            evidence_of(up, high),
            evidence_of(down, low),
            *(() if slower is None else (evidence_of(up, slower[0]), evidence_of(down, slower[1]))),
            *(() if offered is None else (evidence_of_setting(offered),)),
            *([Evidence(text=f"changed: {what}", source="form")] if what else []),
        ],
        explains_ms=None if slower is None else slower[1].value - slower[0].value,
        relation=f"1 - {number(low.value, low.unit)} / {number(high.value, high.unit)} = "
        f"{1 - low.value / high.value:.0%} of the hits lost"
        + ("" if slower is None else f"; {compared('TTFT', *slower)}"),
        n=2,
        advice="Restore stickiness (the old tie-break, consistent hashing on the session id), bounded by load; "
        "compare the hit rate by session id before and after.",
        price="A sticky session may wait for its replica while another is idle.",
        verify=again(down),
        missing=missing,
        rivals=["MIX_CACHE_MISS"] if missing else [],
        disproof_checked=["hit rate is counted by session" if by_session else "hit rate is not split by session"],
        level=Level.PROVEN if proven and not missing else None,
        proof=Proof.ONE_CHANGE,
    )
