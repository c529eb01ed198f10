"""LB_HOTSPOT: routing by prefix sends one group of prompts to one replica, and its queue costs more than it saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arm_evidence.routing_words import affine, spreading
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, number_stated, said
from tailrace.diagnose.arms.pairs import pairs
from tailrace.diagnose.arms.replicas import spreads
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["hotspot_on_arms"]

SLOWER: Final = 1.2
UNEVEN: Final = 0.6
"""Skew of the busiest against the number of replicas: all in flight on one gives 1."""
GROUPS_PER_REPLICA: Final = 4
"""So many prefix groups a replica spread evenly by chance; fewer need not."""


class _Prefixes(NamedTuple):
    """What the benchmark's command line says of shared prefixes."""

    groups: Setting | None
    shared: Setting | None
    own: Setting | None

    @property
    def saved(self) -> float | None:
        """The share of a prompt that a hit saves."""
        if self.shared is None or self.own is None or not self.shared.number or self.own.number is None:
            return None
        return self.shared.number / (self.shared.number + self.own.number)


def hotspot_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """TTFT by policy against the share of the prompt that a hit saves."""
    prefixes = _Prefixes(
        number_stated(observed, r"(?:num|number of|prefix) ?(?:prefix )?groups?|groups$"),
        number_stated(observed, r"(?:system prompt|shared prefix|prefix) (?:len|length|tokens)|shared tokens"),
        number_stated(observed, r"(?:question|suffix|unique|random input|user prompt) (?:len|length|tokens)"),
    )
    found = _policies(observed)
    if found is None:
        return _by_gauges(cause, observed, prefixes)
    (sticky, slow), (even, fast) = found
    replicas = number_stated(observed, r"replicas|workers|data parallel|dp size|instances")
    groups = prefixes.groups.number if prefixes.groups is not None else None
    spread_evenly = GROUPS_PER_REPLICA * (replicas.number or 2 if replicas is not None else 2)
    if groups is not None and groups >= spread_evenly:
        return None
    per_replica = spreads(observed)
    missing = (
        []
        if any(item.skew > SLOWER for item in per_replica)
        else ["per-replica requests in flight (per-worker running and waiting) under both policies"]
    )
    if groups is None:
        missing.append("the number of prefix groups (--gsp-num-groups, or distinct system prompts)")
    ratio = slow.value / fast.value
    return cause.finding(
        statement=_statement(sticky, slow, even, fast, prefixes),
        evidence=[
            evidence_of(even, fast),
            evidence_of(sticky, slow),
            *(evidence_of_setting(item) for item in prefixes if item is not None),
            *_saved(prefixes),
        ],
        explains_ms=slow.value - fast.value,
        relation=f"{number(slow.value, slow.unit)} / {number(fast.value, fast.unit)} = {ratio:.3g} x"
        + (
            f", while a prefix hit saves {_tokens(prefixes)} = {prefixes.saved:.0%} of the prefill"
            if prefixes.saved is not None
            else ""
        ),
        n=2,
        advice="Bound affinity by load: follow the prefix only while that replica has no more in flight than the "
        "others plus a margin (a threshold of the router's balance), else go to the least loaded one; replicate "
        "the hot prefix by sending its first requests to every replica.",
        price="Each replica computes and keeps the prefix once: some prefill and KV cache on each.",
        verify=again(sticky),
        missing=missing,
        rivals=["LB_SKEW"] if missing else [],
        disproof_checked=[
            f"{groups:g} prefix group{'s' if groups != 1 else ''}, fewer than {spread_evenly:g}"
            if groups is not None
            else "the number of prefix groups is not known",
        ],
    )


def _by_gauges(cause: Cause, observed: Observed, prefixes: _Prefixes) -> Finding | None:
    """Fewer prefix groups than replicas, and one replica that has most of what is in flight."""
    groups = prefixes.groups.number if prefixes.groups is not None else None
    spread = max(spreads(observed), key=lambda item: item.skew, default=None)
    if groups is None or spread is None or groups >= len(spread.values) or spread.skew < UNEVEN * len(spread.values):
        return None
    busiest = max(range(len(spread.values)), key=lambda place: spread.values[place])
    saved = prefixes.saved
    words = "one prefix group" if groups == 1 else f"{groups:g} prefix groups"
    return cause.finding(
        statement=f"There is {words} for {len(spread.values)} replicas, and {spread.names[busiest]} has "
        f"{number(spread.values[busiest])} of {number(sum(spread.values))} {spread.what}: affinity sends (almost) "
        "every request to the same replica"
        + (f"; a hit saves {saved:.0%} of the prefill." if saved is not None else "."),
        evidence=[
            *(
                Evidence(f"{name}: {number(value)} {spread.what}", place or "gauges", spread.quantity, value)
                for name, value, place in zip(spread.names, spread.values, spread.places, strict=False)
            ),
            *(evidence_of_setting(item) for item in prefixes if item is not None),
            *_saved(prefixes),
        ],
        explains_ms=None,
        relation=f"busiest / mean per replica = {number(spread.values[busiest])} / {number(spread.mean)} = "
        f"{spread.skew:.3g} with {words}",
        n=spread.times,
        advice="Bound affinity by load: follow the prefix only while that replica has no more in flight than the "
        "others plus a margin, else go to the least loaded one; replicate the hot prefix by sending its first "
        "requests to every replica.",
        price="Each replica computes and keeps the prefix once: some prefill and KV cache on each.",
        verify=again(),
        missing=["the routing policy, and TTFT under it and under an even one (round robin) for the same load"],
        rivals=["LB_SKEW"],
        disproof_checked=[f"{words}, fewer than the {len(spread.values)} replicas"],
    )


def _statement(sticky: Arm, slow: Quoted, even: Arm, fast: Quoted, prefixes: _Prefixes) -> str:
    words = (
        f"Routing by prefix ({sticky.name}) makes {quantity(slow)} {number(slow.value, slow.unit)}, "
        f"{slow.value / fast.value:.3g} x the {number(fast.value, fast.unit)} of {even.name}"
    )
    groups = prefixes.groups.number if prefixes.groups is not None else None
    if groups == 1:
        words += ": there is one prefix group, so affinity sends every request to the same replica"
    elif groups is not None:
        words += f": with {groups:g} prefix groups, affinity can load single replicas"
    if prefixes.saved is not None:
        words += f"; a hit saves {prefixes.saved:.0%} of the prefill, less than the queue adds"
    return words + "."


def _saved(prefixes: _Prefixes) -> list[Evidence]:
    out = []
    if prefixes.groups is not None and prefixes.groups.number == 1:
        out.append(Evidence(text="one prefix group only", source=str(prefixes.groups.place) or "form"))
    if prefixes.saved is not None and prefixes.shared is not None:
        out.append(
            Evidence(
                text=f"a hit saves {_tokens(prefixes)} = {prefixes.saved:.0%} of the prefill",
                source=str(prefixes.shared.place) or "form",
                name="saved_share",
                value=round(prefixes.saved, 4),
            )
        )
    return out


def _tokens(prefixes: _Prefixes) -> str:
    shared = prefixes.shared.number if prefixes.shared is not None else 0.0
    own = prefixes.own.number if prefixes.own is not None else 0.0
    return f"{shared:.0f} / ({shared:.0f} + {own:.0f})"


def _policies(observed: Observed) -> tuple[tuple[Arm, Quoted], tuple[Arm, Quoted]] | None:
    """((the affine arm, its TTFT), (the spreading arm, its TTFT)) where the first is slower, in one statistic."""
    arms = [arm for arm in observed.arms if figure(arm, "ttft", "e2e", stats=_STATS) is not None]
    worst = None
    for pair in pairs(arms):
        for sticky, even in ((pair.first, pair.second), (pair.second, pair.first)):
            if not affine(said(sticky)) or affine(said(even)) or not spreading(said(even)):
                continue
            for stat in _STATS:
                slow, fast = (figure(arm, "ttft", "e2e", stats=(stat,)) for arm in (sticky, even))
                if slow is None or fast is None or slow.quantity != fast.quantity or fast.value <= 0:
                    continue
                ratio = slow.value / fast.value
                if ratio >= SLOWER and (worst is None or ratio > worst[0]):
                    worst = ratio, (sticky, slow), (even, fast)
                break
    return None if worst is None else (worst[1], worst[2])


_STATS: Final = ("p50", "mean", "", "p99", "p95", "p90")
