"""GW_SELF_BOTTLENECK from what a gateway says of its own time: response headers, a form, a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arm_evidence.paths import is_direct, is_via
from tailrace.diagnose.arms.asked import USUAL_FIRST, figure, said, told
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["overhead_stated"]

LEAST_MS: Final = 50.0
SHARE: Final = 0.10
_OVERHEAD: Final = re.compile(
    r"^(?:litellm|proxy|gateway|router|kong|bifrost|portkey|x litellm)?[ .]*(?:self |own |internal )?"
    r"(?:overhead|proxy latency|callback)(?: duration| time| latency)?(?: (?:mean|avg|p50|p95|p99|max))?$|"
    r"^time (?:spent )?in (?:the )?(?:proxy|gateway)$",
    re.IGNORECASE,
)
_REST: Final = re.compile(r"upstream|provider|llm api|backend|engine|model", re.IGNORECASE)
_WHOLE: Final = re.compile(
    r"^(?:litellm|proxy|gateway|kong|client|x litellm)?[ .]*(?:response|total|request|e2e|end to end|latency)"
    r"(?: duration| time| latency)?(?: (?:mean|avg|p50|p95|p99|max))?$",
    re.IGNORECASE,
)


class _Told(NamedTuple):
    own: float
    whole: float
    evidence: list[Evidence]


def overhead_stated(cause: Cause, observed: Observed) -> Finding | None:
    """Its own time is a tenth of the whole and more, by its own word."""
    found = [one for one in (*_in_settings(observed), *_in_arms(observed)) if _counts(one)]
    if not found:
        return None
    worst = max(found, key=lambda one: one.own)
    share = worst.own / worst.whole
    rest = worst.whole - worst.own
    direct, via = _paths(observed)
    compared = [evidence_of(*item) for item in (direct, via) if item is not None]
    fits = ""
    if direct is not None and direct[1].unit == "ms" and 0.5 <= rest / max(direct[1].value, 1e-9) <= 2.0:
        fits = f" What is left, {number(round(rest), 'ms')}, is what the direct path takes "
        fits += f"({number(direct[1].value, 'ms')})."
    return cause.finding(
        statement=f"The gateway itself is slow, by its own word: {number(round(worst.own, 1), 'ms')} of "
        f"{number(round(worst.whole, 1), 'ms')} are its overhead ({share:.0%}), not the engine's.{fits}",
        evidence=[
            *worst.evidence,
            Evidence(
                f"{round(worst.own):d} of {round(worst.whole):d} ms are the gateway's own time ({share:.1%}), "
                f"{round(rest):d} ms are not",
                worst.evidence[0].source, "overhead_share", round(share, 4),
            ),
            *compared,
        ],
        explains_ms=worst.own,
        relation=f"{worst.own:.1f} / {worst.whole:.1f} ms = {share:.1%}; {worst.whole:.1f} - {worst.own:.1f} = "
        f"{rest:.1f} ms for all behind it",
        n=len(found),
        advice="Find what it does in that time: callbacks and logging on the request's path, guardrails, "
        "authentication against a slow store, images and long bodies parsed on its event loop, one full process. Take "
        "them off the path, or run more of its processes. Tuning or adding engines changes nothing.",
        price="What runs off the path may be lost when the process dies.",
        verify="tailrace diagnose headers.txt  # curl -sD headers.txt URL after the change: its own time is small",
        missing=["CPU use of its process, or a profile: what it does in that time"],
        rivals=["FE_EVENTLOOP_BLOCK"],
        disproof_checked=[
            f"the direct path takes {number(direct[1].value, 'ms')}" if direct is not None else "no direct path given"
        ],
        action=Action.FIX,
        level=Level.SUSPECTED,
    )  # fmt: skip


def _counts(one: _Told) -> bool:
    return LEAST_MS <= one.own <= one.whole and one.own >= SHARE * one.whole


def _plain(name: str) -> str:
    words = re.sub(r"[_\-]+", " ", name)
    return re.sub(r"\s(?:ms|s|us)$|^x\s", "", words).strip()


def _ms(item: Setting) -> float | None:
    return None if item.number is None or not item.unit else in_unit(item.number, item.unit, "ms")


def _in_settings(observed: Observed) -> list[_Told]:
    """Headers of one response, or statements of one form."""
    scopes: dict[str, list[tuple[Setting, float]]] = {}
    for item in told(observed):
        ms = _ms(item)
        if ms is not None and ms >= 0:
            scopes.setdefault(item.scope, []).append((item, ms))
    out = []
    for items in scopes.values():
        own = next((pair for pair in items if _OVERHEAD.search(_plain(pair[0].name))), None)
        if own is None:
            continue
        rest = next((pair for pair in items if pair is not own and _REST.search(_plain(pair[0].name))), None)
        whole = next((pair for pair in items if pair is not own and _WHOLE.search(_plain(pair[0].name))), None)
        if whole is None and rest is None:
            continue
        total = whole[1] if whole is not None else own[1] + (rest[1] if rest is not None else 0.0)
        shown = [pair for pair in (own, whole or rest) if pair is not None]
        out.append(_Told(own[1], total, [_shown(*pair) for pair in shown]))
    return out


def _shown(item: Setting, ms: float) -> Evidence:
    return Evidence(f"{item.name}: {item.number:g} {item.unit}", str(item.place) or "form", item.name, ms, "ms")


def _in_arms(observed: Observed) -> list[_Told]:
    out = []
    for arm in observed.arms:
        own = next((v for v in arm.values.values() if _is_own(v)), None)
        whole = figure(arm, "e2e", stats=USUAL_FIRST)
        if own is None or whole is None or own is whole:
            continue
        value = in_unit(own.value, own.unit, "ms")
        if value is not None and whole.unit == "ms":
            out.append(_Told(value, whole.value, [evidence_of(arm, own), evidence_of(arm, whole)]))
    return out


def _is_own(value: Quoted) -> bool:
    words = re.sub(r"\s*[(\[][^)\]]*[)\]]", "", value.label)
    return bool(value.unit) and not value.relative and _OVERHEAD.search(_plain(words)) is not None


def _paths(observed: Observed) -> tuple[tuple[Arm, Quoted] | None, tuple[Arm, Quoted] | None]:
    """The slowest arm of each path."""
    sides: list[tuple[Arm, Quoted] | None] = []
    for belongs in (is_direct, is_via):
        mine = [(arm, e2e) for arm in observed.arms if belongs(said(arm)) and (e2e := figure(arm, "e2e"))]
        sides.append(max(mine, key=lambda pair: pair[1].value, default=None))
    return sides[0], sides[1]
