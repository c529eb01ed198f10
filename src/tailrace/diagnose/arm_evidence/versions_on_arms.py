"""COMPUTE_KERNEL_REGRESSION: tokens (or prompts) are computed more slowly since a version."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import USUAL_FIRST, figure, said, worded
from tailrace.diagnose.arms.pairs import Pair, changed, pairs, stated_same
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["versions_on_arms"]

SLOWER: Final = 0.08
"""Relative change from which it is more than a benchmark's scatter."""
_VERSION: Final = re.compile(
    r"\bv?\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+|\.dev\d+)?\b|version|upgrad|downgrad|nightly|build|commit|kernel|"
    r"backend|driver|"
    r"cuda|rocm|triton|flash ?attn|flashinfer|\bmoe\b|model (?:change|version|revision)|torch|release",
    re.IGNORECASE,
)
_OTHERS: Final = re.compile(
    r"server version|grammar|schema|rout|load balanc|\blb\b|proxy|nginx|gateway|cpu|watermark|max[ _-]num|"
    r"concurrency|"
    r"rollout|replica|stream",
    re.IGNORECASE,
)
_PACES: Final = (
    ("tpot", False),
    ("itl", False),
    ("decode_tok_s", True),
    ("output_tok_s", True),
    ("prompt_tok_s", True),
    ("prefill", False),
)
_BATCH: Final = re.compile(r"batch|concurren|running|load|rate", re.IGNORECASE)
_MIX: Final = re.compile(r"mix|length|prompt|isl|osl|trace|workload|dataset|tokens", re.IGNORECASE)


def versions_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Two versions at equal batch."""
    what = changed(observed)
    if what and not _VERSION.search(what):
        return None
    worst: tuple[float, Pair, Arm, Quoted, Arm, Quoted] | None = None
    for pair in pairs(observed.arms):
        if not _of_version(pair, what):
            continue
        found = _slower(pair)
        if found is not None and (worst is None or found[0] > worst[0]):
            worst = found[0], pair, *found[1:]
    return None if worst is None else _found(cause, observed, what, *worst)


def _found(
    cause: Cause,
    observed: Observed,
    what: str,
    loss: float,
    pair: Pair,
    bad: Arm,
    slow: Quoted,
    good: Arm,
    fast: Quoted,
) -> Finding:
    same = " ".join(
        [
            *stated_same(observed),
            *pair.same,
            *(
                str(item.name)
                for item in observed.settings
                if item.name in ("concurrency", "batch_size", "prompt_tokens", "output_tokens")
            ),
        ]
    )
    missing = []
    if not _BATCH.search(same):
        missing.append("that the batch (concurrency) was equal")
    if not _MIX.search(same):
        missing.append("that the mix (prompt and answer lengths) was equal")
    clocks = re.search(r"clock|power", same, re.IGNORECASE)
    checked = [f"equal: {same}"] if same else ["nothing is stated to be equal"]
    checked.append("clocks are stated to be equal" if clocks else "clocks are not stated: compare them too")
    parts = [
        item
        for item in observed.arms
        if item is not bad and item is not good and (value := _like(item, slow)) is not None and value.value
    ]
    evidence = [evidence_of(good, fast), evidence_of(bad, slow)]
    evidence += [evidence_of(item, value) for item in parts if (value := _like(item, slow)) is not None]
    evidence.append(Evidence(f"slower by {loss:.0%}", str(slow.place) or "form", "loss", round(loss, 4)))
    rest = [
        f"{item.name} is {number(value.value, value.unit)}"
        for item in parts
        if (value := _like(item, slow)) is not None
    ]
    return cause.finding(
        action=Action.ROLLBACK,
        statement=f"{bad.name} is slower than {good.name} at the same work: {quantity(slow)} "
        f"{number(fast.value, fast.unit)} -> {number(slow.value, slow.unit)} ({loss:.0%} slower)"
        + (f"; {'; '.join(rest[:3])}" if rest else "")
        + ". A kernel, or the choice of it, changed with the version.",
        evidence=[*evidence, *([Evidence(f"changed: {what}", "form")] if what else [])],
        explains_ms=slow.value - fast.value if slow.unit == "ms" else None,
        relation=f"{number(slow.value)} / {number(fast.value)} = {slow.value / fast.value:.3g}",
        n=2,
        advice="Pin the version that was fast, and bisect between the two (builds, then kernels: attention, MoE, "
        "quantisation backend); report it with the command and the GPU.",
        price="The old version lacks the new one's fixes.",
        verify=again(bad),
        missing=missing,
        rivals=["MIX_SHIFT"] if len(missing) > 1 else [],
        disproof_checked=checked,
    )


def _of_version(pair: Pair, what: str) -> bool:
    if what:
        return _OTHERS.search(what) is None
    devices = [figure(arm, "tensor_parallel") for arm in (pair.first, pair.second)]
    if None not in devices and len({item.value for item in devices if item is not None}) > 1:
        return False
    if not (_names_version(said(pair.first)) and _names_version(said(pair.second)) and _differs(pair)):
        return False
    # What names an arm, and the heading under which its name stands; a load is no name.
    headings = [name.replace("_", " ") for name, value in pair.first.keys.items() if isinstance(value, str)]
    return _OTHERS.search(" ".join([*headings, pair.first.label, pair.second.label])) is None


@lru_cache(maxsize=512)
def _names_version(text: str) -> bool:
    """Remembered: an arm stands in a hundred pairs."""
    return _VERSION.search(text) is not None


def _differs(pair: Pair) -> bool:
    return pair.first.label != pair.second.label or pair.first.name != pair.second.name


def _slower(pair: Pair) -> tuple[float, Arm, Quoted, Arm, Quoted] | None:
    """(loss, slow arm, its number, fast arm, its number). The later arm must be the slow one where roles say which."""
    for name, rate in _PACES:
        for stat in USUAL_FIRST:
            one, two = figure(pair.first, name, stats=(stat,)), figure(pair.second, name, stats=(stat,))
            if one is None or two is None or min(one.value, two.value) <= 0:
                continue
            loss = 1.0 - two.value / one.value if rate else 1.0 - one.value / two.value
            return (loss, pair.second, two, pair.first, one) if loss >= SLOWER else None
    relative = [
        worded(arm, r"rel(?:ative)? ?speed|speed ?(?:ratio|relative)|relative throughput")
        for arm in (pair.first, pair.second)
    ]
    if relative[0] is not None and relative[1] is not None and relative[0].value > 0:
        loss = 1.0 - relative[1].value / relative[0].value
        return (loss, pair.second, relative[1], pair.first, relative[0]) if loss >= SLOWER else None
    return None


def _like(arm: Arm, other: Quoted) -> Quoted | None:
    return arm.values.get(other.key)
