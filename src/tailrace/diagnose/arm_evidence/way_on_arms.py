"""The way between client and engine, from tables and forms: the client sees more time than the server spends, or
opening connections and round trips got longer, and the engine's own stages did not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import TAIL_FIRST, USUAL_FIRST, figure, said
from tailrace.diagnose.arms.pairs import pairs
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted, Role
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["way_on_arms"]

GROWN: Final = 1.5
LEAST_MS: Final = 10.0
SHARE: Final = 0.2
UNMOVED: Final = 0.15
SLOWER: Final = 0.05
_CLIENT: Final = re.compile(r"\bclient|user|browser|caller|measured outside|end.?to.?end from", re.IGNORECASE)
_SERVER: Final = re.compile(r"\bserver|engine|upstream|backend|inside|vllm:", re.IGNORECASE)
_WAY: Final = re.compile(
    r"\bconnect|\brtt\b|round.?trip|handshake|\btls\b|\bdns\b|retransmi|network|packet loss|\bping\b", re.IGNORECASE
)
_OWN: Final = ("litellm.overhead", "litellm.callback")
_STAGES: Final = ("prefill", "queue", "decode", "itl", "tpot", "compute")


class Own(NamedTuple):
    """A proxy's own overhead (`x-litellm-overhead-duration-ms`, `x-litellm-callback-duration-ms`), median."""

    ms: float
    evidence: Evidence


class _Gap(NamedTuple):
    """Client's time minus the server's, of one arm."""

    arm: Arm
    client: Quoted
    server: Quoted
    own: Own | None = None
    """What a proxy between them says of its own time: it lies in the gap, and is no part of the way."""

    @property
    def ms(self) -> float:
        return self.client.value - self.server.value - (self.own.ms if self.own is not None else 0.0)

    @property
    def relation(self) -> str:
        own = f" - {number(self.own.ms)} (the proxy's own)" if self.own is not None else ""
        return f"{number(self.client.value)} - {number(self.server.value)}{own} = {number(self.ms, 'ms')}"


def way_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Between two arms, the client's time beyond the server's grew, or a time of the way itself did."""
    own = _overhead(observed)
    arms = [arm for arm in observed.arms if _gap(arm, own) is not None or _way(arm) is not None]
    for pair in pairs(arms):
        found = _of_gap(cause, pair.first, pair.second, own) or _of_way(cause, pair.first, pair.second)
        if found is not None:
            return found
    one = [(gap, arm) for arm in observed.arms if (gap := _gap(arm, own)) is not None]
    return _alone(cause, one[0][0]) if len(one) == 1 else None


def _overhead(observed: Observed) -> Own | None:
    """What LiteLLM says of its own time in the headers of its answers, or in its log."""
    parts = []
    for name in _OWN:
        told = [item for item in observed.settings if item.name == name and item.number is not None]
        if told:
            parts.append(
                (float(np.median([float(item.number or 0.0) for item in told])), len(told), str(told[0].place))
            )
    if not parts:
        for rows in observed.table("access"):
            known = rows.numbers("overhead")
            known = known[np.isfinite(known)]
            if known.size:
                parts.append((float(np.median(known)), int(known.size), str(rows.place)))
    if not parts:
        return None
    ms = sum(part[0] for part in parts)
    text = f"the proxy says that {number(ms, 'ms')} are its own (n = {max(part[1] for part in parts)})"
    return Own(ms, Evidence(text, parts[0][2], "proxy_overhead", round(ms, 3), "ms"))


def _gap(arm: Arm, own: Own | None) -> _Gap | None:
    timed = [value for value in arm.values.values() if value.unit == "ms" and not value.relative]
    for client in timed:
        if client.quantity not in ("ttft", "e2e") or not _CLIENT.search(f"{client.label} {client.qualifier}"):
            continue
        for server in timed:
            same = server is not client and server.quantity == client.quantity and server.stat == client.stat
            if same and _SERVER.search(f"{server.label} {server.qualifier}"):
                return _Gap(arm, client, server, own)
    return None


def _way(arm: Arm) -> Quoted | None:
    return next(
        (
            value
            for value in arm.values.values()
            if not value.relative
            and value.unit in ("ms", "share", "count", "")
            and _WAY.search(f"{value.label} {value.quantity}")
        ),
        None,
    )


def _stages(first: Arm, second: Arm) -> tuple[list[str], list[Evidence], bool]:
    """(what was checked, as evidence, whether a stage of the engine moved)."""
    checked, out, moved = [], [], False
    for name in _STAGES:
        one, two = figure(first, name, stats=USUAL_FIRST), figure(second, name, stats=USUAL_FIRST)
        if one is None or two is None or one.key != two.key or not one.value:
            continue
        ratio = two.value / one.value
        moved = moved or ratio > 1.0 + UNMOVED
        checked.append(f"the engine's {quantity(one)} {number(one.value, one.unit)} -> {number(two.value, two.unit)}")
        out += [evidence_of(first, one), evidence_of(second, two)]
    return checked, out, moved


def _of_gap(cause: Cause, first: Arm, second: Arm, own: Own | None) -> Finding | None:
    one, two = _gap(first, own), _gap(second, own)
    if one is None or two is None or one.client.key != two.client.key:
        return None
    if two.ms < one.ms:
        if second.role is Role.AFTER:
            return None  # since then the way takes less
        one, two, first, second = two, one, second, first
    if two.client.value <= one.client.value * (1 + SLOWER):
        return None  # nobody waits longer: what moved is what the server counts
    grown = two.ms - one.ms
    if grown < max(LEAST_MS, SHARE * (two.client.value - one.client.value)) or two.ms < GROWN * max(one.ms, 0.0):
        return None
    checked, evidence, moved = _stages(first, second)
    if moved or two.server.value > (1 + UNMOVED) * one.server.value:
        return None
    missing = [] if checked or two.server.value <= (1 + UNMOVED) * one.server.value else ["the engine's own stages"]
    return _finding(
        cause,
        f"Between {first.name} and {second.name}, the client's {quantity(two.client)} minus the server's grew from "
        f"{number(one.ms, 'ms')} to {number(two.ms, 'ms')}, while the server's own time did not: the way between "
        "them is "
        "slow.",
        [evidence_of(item.arm, value) for item in (one, two) for value in (item.client, item.server)]
        + [
            Evidence(
                f"client minus server: {number(one.ms, 'ms')} -> {number(two.ms, 'ms')}",
                str(second.place) or "form",
                "way_ms",
                round(two.ms, 3),
                "ms",
            )
        ]
        + ([own.evidence] if own is not None else [])
        + evidence,
        grown,
        f"{two.relation} against {one.relation}",
        missing,
        checked or ["the server's own time is unchanged"],
        second,
    )


def _of_way(cause: Cause, first: Arm, second: Arm) -> Finding | None:
    one, two = _way(first), _way(second)
    if one is None or two is None or one.key != two.key:
        return None
    if two.value < one.value:
        one, two, first, second = two, one, second, first
    if two.value < GROWN * max(one.value, 1e-9) or (two.unit == "ms" and two.value - one.value < LEAST_MS):
        return None
    checked, evidence, moved = _stages(first, second)
    if moved:
        return None
    slower = [figure(arm, "ttft", "e2e", stats=TAIL_FIRST) for arm in (first, second)]
    if slower[0] is None or slower[1] is None or slower[1].value <= (1 + UNMOVED) * slower[0].value:
        return None
    return _finding(
        cause,
        f"{quantity(two).capitalize()} went from {number(one.value, one.unit)} to {number(two.value, two.unit)} and "
        f"{quantity(slower[1])} from {number(slower[0].value, 'ms')} to {number(slower[1].value, 'ms')}: the way to "
        "the "
        "engine is slow.",
        [
            evidence_of(first, one),
            evidence_of(second, two),
            evidence_of(first, slower[0]),
            evidence_of(second, slower[1]),
            *evidence,
        ],
        slower[1].value - slower[0].value,
        f"{number(two.value)} / {number(one.value)} = {two.value / max(one.value, 1e-9):.3g}",
        [] if checked else ["the engine's own stages (queue, prefill, decode) in both arms"],
        checked,
        second,
    )


def _alone(cause: Cause, gap: _Gap) -> Finding | None:
    """One arm only: half of the client's time is not the server's, and nothing says where it is."""
    if gap.ms < max(LEAST_MS, 0.5 * gap.client.value):
        return None
    return _finding(
        cause,
        f"Of the client's {quantity(gap.client)} of {number(gap.client.value, 'ms')}, {number(gap.ms, 'ms')} are not "
        "the "
        f"server's ({number(gap.server.value, 'ms')}): the way to it, or what stands before it.",
        [
            evidence_of(gap.arm, gap.client),
            evidence_of(gap.arm, gap.server),
            Evidence(
                f"client minus server: {number(gap.ms, 'ms')}",
                str(gap.arm.place) or "form",
                "way_ms",
                round(gap.ms, 3),
                "ms",
            ),
            *([gap.own.evidence] if gap.own is not None else []),
        ],
        gap.ms,
        gap.relation,
        ["connect time and round trips, or a gateway's stamps on both sides: a queue before the server looks the same"],
        [],
        gap.arm,
        rivals=["GW_CONN_POOL_CAP", "FE_EVENTLOOP_BLOCK"],
    )


def _finding(
    cause: Cause,
    statement: str,
    evidence: list[Evidence],
    explains: float,
    relation: str,
    missing: list[str],
    checked: list[str],
    arm: Arm,
    rivals: list[str] | None = None,
) -> Finding:
    return cause.finding(
        statement=statement,
        evidence=evidence,
        explains_ms=explains,
        relation=relation,
        n=2,
        advice="Look at the route (distance, losses, a proxy or a tunnel between), and keep connections open: a pool "
        "that "
        "is large enough, keep-alive longer than the idle time between requests.",
        price="An idle connection costs both ends a socket.",
        verify=again(arm),
        missing=missing,
        rivals=rivals,
        disproof_checked=[*checked, *([f"arms: {said(arm)}"] if not checked else [])],
    )
