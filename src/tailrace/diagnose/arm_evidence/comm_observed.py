"""COMPUTE_COMM: devices that share one model wait for each other's results more than they compute."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import as_share, figure, number_stated, told, worded
from tailrace.diagnose.arms.pairs import sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.observed import Observed, Quoted
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["comm_observed"]

SHARE: Final = 0.3
"""Of a step, spent on moving results."""
LINK: Final = 0.8
SPEEDUP: Final = 1.15
"""More devices for one model that gain less than this move more than they compute."""
_COMM: Final = re.compile(r"all[ _-]?reduce|all[ _-]?gather|nccl|rccl|\bcomm(?:unication)?\b|collective", re.IGNORECASE)
_STEP: Final = r"^(?:whole |decode |total )?(?:step|iteration|layer)\b|^total"
_LINK: Final = re.compile(
    r"(?:nvlink|pcie|link|interconnect|xgmi)[ _](?:util|busy|usage|load)|(?:util|usage).*(?:nvlink|pcie|link)",
    re.IGNORECASE,
)


def comm_observed(cause: Cause, observed: Observed) -> Finding | None:
    """A share, a link, or a sweep of tensor parallelism."""
    return surest([_share(cause, observed), _sweep(cause, observed)])


def _share(cause: Cause, observed: Observed) -> Finding | None:
    found = _share_of_step(observed) or _link(observed)
    if found is None:
        return None
    share, words, evidence = found
    late = number_stated(observed, r"(?:cumulative )?skew|late rank")
    step = number_stated(observed, r"^step(?: ms| time)?")
    skewed = None
    if late is not None and step is not None and late.number and step.number:
        one, two = in_unit(late.number, late.unit or "ms", "ms"), in_unit(step.number, step.unit or "ms", "ms")
        skewed = one / two if one is not None and two else None
    if skewed is not None and skewed > 0.2:
        return None  # the wait is for a late rank
    missing = [] if skewed is not None else ["the skew between ranks (how long each waits for the last to arrive)"]
    return cause.finding(
        action=Action.TUNE,
        statement=f"{words}: the devices of one model wait for each other's results.",
        evidence=[*evidence, *([evidence_of_setting(late)] if late is not None else [])],
        explains_ms=None,
        relation=f"{words} > {LINK if 'link' in words else SHARE:.0%}",
        n=1,
        advice="Fewer devices per copy of the model (lower tensor parallelism, more replicas), a topology with faster "
        "links (NVLink within a node), custom all-reduce, or larger batches per step.",
        price="Fewer devices per copy leave less memory for KV cache.",
        verify=again(),
        missing=missing,
        rivals=["COMPUTE_RANK_SKEW"] if missing else [],
        disproof_checked=[
            f"skew {skewed:.0%} of a step" if skewed is not None else "skew unknown",
            f"share {share:.0%}",
        ],
    )


def _sweep(cause: Cause, observed: Observed) -> Finding | None:
    points = sweep(
        observed,
        r"tensor[ _-]?parallel|\btp\b|\btp[ _-]?size\b",
        lambda arm: figure(arm, "tpot", "itl", "decode_tok_s") is not None,
    )
    if len(points) < 2 or points[0].x < 1:
        return None
    few, many = points[0], points[-1]
    one = figure(few.arm, "tpot", "itl", "decode_tok_s")
    two: Quoted | None = None if one is None else figure(many.arm, one.quantity, stats=(one.stat,))
    if one is None or two is None or min(one.value, two.value) <= 0 or many.x < 2 * few.x:
        return None
    gain = one.value / two.value if one.unit == "ms" else two.value / one.value
    if gain > SPEEDUP:
        return None
    return cause.finding(
        action=Action.TUNE,
        statement=f"Tensor parallelism {few.x:g} -> {many.x:g} makes {quantity(one)} {number(one.value, one.unit)} -> "
        f"{number(two.value, two.unit)}, x {gain:.2f} for {many.x / few.x:g} x the devices: what is gained by "
        "computing in "
        "parallel is spent on communication.",
        evidence=[evidence_of(few.arm, one), evidence_of(many.arm, two)],
        explains_ms=None,
        relation=f"gain {gain:.2f} at {many.x / few.x:g} x the devices",
        n=len(points),
        advice=f"Use tensor parallelism {few.x:g} and more replicas, or a topology with faster links.",
        price="Fewer devices per copy leave less memory for KV cache.",
        verify=again(few.arm),
        missing=["the share of collectives in a step (a profile): small models gain little for other reasons too"],
    )


def _share_of_step(observed: Observed) -> tuple[float, str, list[Evidence]] | None:
    shares = [(arm, value) for arm in observed.arms if (value := worded(arm, _COMM.pattern)) is not None]
    for arm, value in sorted(shares, key=lambda item: -item[1].value):
        if value.unit in ("share", "%") or "%" in value.label or "share" in value.label.lower():
            share = as_share(value.value, value.unit)
            if share > SHARE:
                return (
                    share,
                    f"Communication takes {share:.0%} of a step",
                    [
                        Evidence(
                            f"{arm.name}: {value.label} {number(share, 'share')}",
                            str(value.place) or "form",
                            value.key,
                            share,
                            "share",
                        )
                    ],
                )
    timed = [
        (spent / whole, arm, value, total)
        for arm, value in shares
        if (spent := in_unit(value.value, value.unit, "ms") if value.unit else None) is not None
        and (total := worded(arm, _STEP) or figure(arm, "tpot", "itl")) is not None
        and total is not value
        and (whole := in_unit(total.value, total.unit, "ms") if total.unit else None)
    ]
    if timed and (most := max(timed, key=lambda item: item[0]))[0] > SHARE:
        share, arm, value, total = most
        return (
            share,
            f"Communication takes {share:.0%} of a step",
            [
                *(evidence_of(one, item) for _, one, first, second in timed for item in (first, second)),
                Evidence(
                    f"{arm.name}: {number(value.value)} / {number(total.value)} = {share:.0%}",
                    str(value.place) or "form",
                    "comm_share",
                    round(share, 4),
                ),
            ],
        )
    for item in told(observed):
        name = item.name.replace("_", " ")
        if item.number is None or not _COMM.search(name):
            continue
        if item.unit == "%" or "share" in name:
            share = as_share(item.number, item.unit)
        else:
            spent = in_unit(item.number, item.unit, "ms") if item.unit else None
            step = number_stated(observed, r"^step(?: ms| time)?")
            whole = None if step is None or step.number is None else in_unit(step.number, step.unit or "ms", "ms")
            if spent is None or not whole:
                continue
            share = spent / whole
        if share > SHARE:
            return (
                share,
                f"Communication takes {share:.0%} of a step",
                [
                    evidence_of_setting(item),
                    Evidence(f"share {share:.0%}", str(item.place) or "form", "comm_share", round(share, 4)),
                ],
            )
    return None


def _link(observed: Observed) -> tuple[float, str, list[Evidence]] | None:
    for item in told(observed):
        if item.number is not None and _LINK.search(item.name.replace("_", " ")):
            share = as_share(item.number, item.unit)
            if share > LINK:
                return (
                    share,
                    f"The link between the devices is {share:.0%} busy",
                    [
                        Evidence(
                            f"{item.name.replace('_', ' ')}: {share:.0%}",
                            str(item.place) or "form",
                            item.name,
                            share,
                            "share",
                        )
                    ],
                )
    return None
