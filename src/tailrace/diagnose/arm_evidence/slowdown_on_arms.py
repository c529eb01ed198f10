"""DECODE_SLOWDOWN: a token takes longer in every class of requests, at equal batch and KV usage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure
from tailrace.diagnose.arms.pairs import changed, stated_same
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.arms.sides import sides
from tailrace.diagnose.observed import Arm, Observed, Quoted, Role
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["slowdown_on_arms"]

SLOWER: Final = 0.1
SPREAD: Final = 0.5
"""Of the mean slowdown, by which single classes may differ: uniform, or it is a matter of their lengths."""
ALIKE: Final = 0.05
_BATCH: Final = re.compile(r"batch|running|concurren", re.IGNORECASE)
_KV: Final = re.compile(r"\bkv\b|cache usage", re.IGNORECASE)
_LENGTH: Final = re.compile(r"length|mix|prompt|isl|osl|tokens|bucket", re.IGNORECASE)


def slowdown_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Each arm from before with the one from after of the same class."""
    if changed(observed):
        return None  # whatever is known to have changed has a rule of its own
    pairs = _pairs(sides(observed.arms))
    found = [(one, two, fast, slow) for one, two in pairs if (paced := _paced(one, two)) for fast, slow in [paced]]
    if not found or len(found) < len(pairs):
        return None
    losses = [slow.value / fast.value - 1.0 for _, _, fast, slow in found]
    mean = sum(losses) / len(losses)
    if min(losses) < SLOWER or max(losses) - min(losses) > SPREAD * mean:
        return None
    unlike, known = _equal([(one, two) for one, two, _, _ in found], " ".join(stated_same(observed)))
    if unlike:
        return None
    missing = []
    if "batch" not in known:
        missing.append("running requests (the batch) of both windows")
    if "kv" not in known:
        missing.append("KV usage of both windows")
    if "length" not in known and len(found) < 2:
        missing.append("prompt and answer lengths, or classes by length: every class must be slower")
    missing.append("SM clock and power, other processes on the device, and the build of both windows: what slowed it")
    words = "; ".join(
        f"{two.name}: {number(fast.value, 'ms')} -> {number(slow.value, 'ms')}" for _, two, fast, slow in found
    )
    n = [figure(two, "n") for _, two, _, _ in found]
    return cause.finding(
        action=Action.COLLECT,
        statement=f"A token takes {mean:.0%} longer in every class at equal work ({quantity(found[0][3])}: {words}): "
        "the engine's steps themselves are slower.",
        evidence=[
            *(item for one, two, fast, slow in found for item in (evidence_of(one, fast), evidence_of(two, slow))),
            Evidence(f"{mean:.0%} longer (mean of the classes)", "computed", "slower", round(mean, 4)),
        ],
        explains_ms=max(slow.value - fast.value for _, _, fast, slow in found),
        relation="; ".join(
            f"{number(slow.value)} / {number(fast.value)} = {slow.value / fast.value:.3g}" for _, _, fast, slow in found
        ),
        n=int(sum(value.value for value in n if value is not None)) or len(found),
        advice="Look at what the steps run on: clock and power of the device (nvidia-smi), neighbours on it or on the "
        "host, a new build, driver or kernel; then at the front end's CPU.",
        price="None.",
        verify=again(found[0][1]),
        missing=missing,
        rivals=["COMPUTE_POWER_CAP", "COMPUTE_GPU_SHARED", "FE_CPU_STARVED", "COMPUTE_KERNEL_REGRESSION"],
        disproof_checked=[f"equal: {', '.join(sorted(known))}"] if known else [],
    )


def _pairs(arms: list[Arm]) -> list[tuple[Arm, Arm]]:
    before = [arm for arm in arms if arm.role is Role.BEFORE]
    after = [arm for arm in arms if arm.role is Role.AFTER]
    out = []
    for one in before:
        rest = _rest(one)
        alone = len(before) == len(after) == 1  # each in a file of its own: two printed runs
        match = [two for two in after if _rest(two) == rest and (alone or two.place.source == one.place.source)]
        if len(match) == 1:
            out.append((one, match[0]))
    return out if len(out) == len(before) == len(after) else []


def _rest(arm: Arm) -> tuple[str, ...]:
    """The arm's class: its conditions that are text, but for the one that says before or after."""
    texts = {name: str(value) for name, value in arm.keys.items() if isinstance(value, str)}
    return tuple(sorted(f"{name}={value}" for name, value in texts.items() if value != arm.label))


def _paced(one: Arm, two: Arm) -> tuple[Quoted, Quoted] | None:
    for name in ("tpot", "itl"):
        for stat in ("p50", "mean", ""):
            fast, slow = figure(one, name, stats=(stat,)), figure(two, name, stats=(stat,))
            if fast is not None and slow is not None and fast.value > 0:
                return fast, slow
    return None


def _equal(pairs: list[tuple[Arm, Arm]], same: str) -> tuple[bool, set[str]]:
    """(whether the work differs, what of it is known to be equal)."""
    known = {name for name, words in (("batch", _BATCH), ("kv", _KV), ("length", _LENGTH)) if words.search(same)}
    for kind, names in (
        ("batch", ("running", "concurrency", "max_num_seqs", "batch", "batch_size", "bs")),
        ("kv", ("kv_usage",)),
        ("length", ("prompt_tokens", "output_tokens")),
    ):
        for name in names:
            for one, two in pairs:
                here, there = _number(one, name), _number(two, name)
                if here is None or there is None:
                    continue
                if abs(here - there) > ALIKE * max(abs(here), abs(there), 1e-9):
                    return True, known
                known.add(kind)
    return False, known


def _number(arm: Arm, name: str) -> float | None:
    value = arm.keys.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = figure(arm, name, stats=("", "mean", "p50"))
    return None if found is None else found.value
