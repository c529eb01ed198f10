"""GW_CHUNK_COALESCING: a hop gathers chunks for a fixed time before it sends the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arm_evidence.paths import Hop, hops
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, worded
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["coalescing_on_arms"]

LEAST_MS: Final = 5.0
"""A hop without a timer costs less (a well-built one about 1 ms)."""
SHARE: Final = 0.2
ALONE: Final = 2.0
E2E: Final = 0.05
"""The whole request gets so much longer at most: a timer delays the first drain, not the stream."""
CONSTANT: Final = 0.25
"""Of the add-on: so far may p95's lie from p50's."""
FASTER: Final = 0.7
"""An ITL through the hop below this share of the direct one: chunks come in clumps, which is buffering, not a timer."""


class _AddOn(NamedTuple):
    hop: Hop
    direct: Quoted
    via: Quoted

    @property
    def ms(self) -> float:
        return self.via.value - self.direct.value


def coalescing_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """TTFT through the hop minus TTFT without it, at the lowest concurrency."""
    found = [item for hop in hops(observed) if (item := _add_on(hop, ("p50", "mean", ""))) is not None]
    if not found:
        return None
    first = found[0]
    if first.ms < max(LEAST_MS, SHARE * first.direct.value) or _clumps(first.hop):
        return None
    if first.hop.concurrency is not None and first.hop.concurrency > ALONE and len(found) > 1 and _grows(found):
        return None
    whole = _longer(first.hop)
    if whole is not None and whole > E2E:
        return None
    tail = _add_on(first.hop, ("p95", "p99", "p90"))
    if tail is not None and abs(tail.ms / first.ms - 1.0) > CONSTANT:
        return None
    return _found(cause, found, whole, tail)


def _found(cause: Cause, found: list[_AddOn], whole: float | None, tail: _AddOn | None) -> Finding:
    first = found[0]
    alone = first.hop.concurrency is not None and first.hop.concurrency <= ALONE
    missing = []
    if not alone:
        missing.append("TTFT on both paths at concurrency 1, where nothing queues")
    if whole is None:
        missing.append("E2E or ITL on both paths: a timer leaves them as they are")
    if tail is None:
        missing.append("TTFT p95 on both paths at the same concurrency: a timer adds the same to it")
    at = f" at concurrency {first.hop.concurrency:g}" if first.hop.concurrency is not None else ""
    statement = (
        f"{first.hop.via.label or first.hop.via.name} adds {number(first.ms, 'ms')} to the first token{at} "
        f"({number(first.direct.value, 'ms')} -> {number(first.via.value, 'ms')})"
    )
    if whole is not None:
        statement += f" and {whole:+.0%} to the whole request" if whole else " and nothing to the whole request"
    statement += (
        ": a fixed time before the first chunk goes out, as of a batching timer (a flush interval) in the "
        "response path."
    )
    evidence = [evidence_of(first.hop.direct, first.direct), evidence_of(first.hop.via, first.via)]
    evidence += [_evidence(item) for item in (found if tail is None else [found[0], tail, *found[1:]])]
    if whole is not None:
        evidence.append(
            Evidence(
                text=f"the whole request is {whole:+.1%} longer through it"
                if whole
                else "the whole request is as long",
                source=str(first.hop.via.place) or "form",
                name="e2e_change",
                value=round(whole, 4),
            )
        )
    return cause.finding(
        action=Action.FIX,
        statement=statement,
        evidence=evidence,
        explains_ms=first.ms,
        relation=f"{number(first.via.value)} - {number(first.direct.value)} = {number(first.ms, 'ms')}{at}"
        + (
            ""
            if tail is None
            else f"; {tail.via.stat}: {number(tail.via.value)} - {number(tail.direct.value)} = "
            f"{number(tail.ms, 'ms')}, so it is constant"
        ),
        n=2 * len(found),
        advice="Flush the first chunk at once, and shorten the batching interval of the hop's response path (or set "
        "it to 0); find the timer whose period is about "
        f"{number(_round(first.ms), 'ms')}.",
        price="More and smaller writes: a little more CPU in the hop at high rates.",
        verify=again(first.hop.via),
        missing=missing,
        disproof_checked=[*_by_load(found)],
    )


def _by_load(found: list[_AddOn]) -> list[str]:
    out = [
        f"add-on at concurrency {item.hop.concurrency:g}: {number(item.ms, 'ms')}"
        for item in found
        if item.hop.concurrency is not None
    ]
    if _grows(found):
        out.append("what comes on top at high concurrency is queueing in the hop; it starts from the fixed part")
    return out or ["the add-on at other concurrencies is not known"]


def _round(ms: float) -> float:
    """The round number nearest to it: timers are set to such."""
    step = 5.0 if ms < 100 else 50.0
    return max(step, step * round(ms / step))


def _add_on(hop: Hop, stats: tuple[str, ...]) -> _AddOn | None:
    for stat in stats:
        direct, via = (figure(arm, "ttft", stats=(stat,)) for arm in (hop.direct, hop.via))
        if direct is not None and via is not None:
            return _AddOn(hop, direct, via)
    return None


def _evidence(item: _AddOn) -> Evidence:
    at = f" at concurrency {item.hop.concurrency:g}" if item.hop.concurrency is not None else ""
    stat = item.via.stat or "value"
    return Evidence(
        text=f"TTFT {stat}{at}: {number(item.direct.value, 'ms')} -> {number(item.via.value, 'ms')}, "
        f"{number(item.ms, 'ms')} more",
        source=str(item.hop.via.place) or "form",
        name=f"add_on_{stat}",
        value=round(item.ms, 3),
        unit="ms",
    )


def _grows(found: list[_AddOn]) -> bool:
    return len(found) > 1 and found[-1].ms > 1.3 * found[0].ms


def _clumps(hop: Hop) -> bool:
    """Tokens come faster through the hop than from the engine: buffering, another cause."""
    direct, via = figure(hop.direct, "itl", "chunk_gap", "tpot"), figure(hop.via, "itl", "chunk_gap", "tpot")
    return direct is not None and via is not None and via.value < FASTER * direct.value


def _longer(hop: Hop) -> float | None:
    """How much longer the whole request is (a share): from both E2E, from a column of changes, or from equal ITL."""
    for stat in ("p50", "mean", ""):
        direct, via = (figure(arm, "e2e", stats=(stat,)) for arm in (hop.direct, hop.via))
        if direct is not None and via is not None and direct.value > 0:
            return via.value / direct.value - 1.0
    change = _change(hop.via)
    if change is not None:
        return change.value / 100.0
    for quantity in ("itl", "tpot"):
        direct, via = figure(hop.direct, quantity), figure(hop.via, quantity)
        if direct is not None and via is not None and direct.value > 0 and abs(via.value / direct.value - 1.0) <= E2E:
            return 0.0
    return None


def _change(arm: Arm) -> Quoted | None:
    """A column of changes of the whole request, in percent."""
    words = r"e2e|end.to.end|total|latency"
    found = worded(
        arm,
        rf"(?:{words}).*(?:change|delta|vs|diff|overhead)|(?:change|delta|diff|overhead).*(?:{words})",
        relative=True,
    )
    if found is not None:
        return found
    plain = worded(arm, rf"(?:{words}).*(?:change|delta|overhead)")
    if plain is None:
        return None
    # A level that is called a change: in percent as written, or as a share.
    return (
        plain if plain.unit != "share" else Quoted(quantity=plain.quantity, value=100 * plain.value, place=plain.place)
    )
