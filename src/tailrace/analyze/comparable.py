"""Which metrics two arms can be compared in at all, and from which moment latency is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tailrace.analyze.arms import FROM_SCHEDULE, METRICS, ArmData

__all__ = ["Origin", "not_comparable", "origin_of"]

_OF_GAPS: Final = ("chunk_gap_ms", "longest_gap_ms", "longest_wait_ms")
_AGREE: Final = 0.01
"""Two origins whose quantiles differ by less than this share, or by less than `_AGREE_MS`, tell the same."""
_AGREE_MS: Final = 1.0


def not_comparable(arms: Sequence[ArmData]) -> dict[str, str]:
    """Metric -> why it cannot be compared: an arm's source does not hold it, or defines it otherwise.

    An importer marks as absent what its tool defines in another way than we do, so that one name is one definition.
    """
    out: dict[str, str] = {}
    for arm in arms:
        for header in arm.headers:
            tool = "Tailrace" if header.source == "tailrace" else header.source
            for metric in METRICS:
                if metric in header.absent:
                    out.setdefault(metric, f"{tool} (arm {arm.name}) does not report it, or defines it otherwise")
            if header.granularity == "mean" or "chunk_gap_ms" in header.absent:
                for metric in _OF_GAPS:
                    out.setdefault(metric, f"{tool} (arm {arm.name}) keeps no time of each chunk")
    for metric in METRICS:
        if metric in out:
            continue
        known = [bool(arm.gaps.size) if metric == "chunk_gap_ms" else _any(arm, metric) for arm in arms]
        if any(known) and not all(known):
            lacking = " and ".join(arm.name for arm, has in zip(arms, known, strict=True) if not has)
            out[metric] = f"no request of arm {lacking} has it"
    return out


def _any(arm: ArmData, metric: str) -> bool:
    return bool((~np.isnan(arm.column(metric))).any())


class Origin(NamedTuple):
    """From when latency is counted."""

    intended: bool
    """From the intended time: both arms had a schedule, and it matters."""
    remarks: list[str]


def origin_of(arms: Sequence[ArmData]) -> Origin:
    """Open loops are compared from the intended time.

    Where every request of both arms left so punctually that it makes no difference (1 % or 1 ms at p50, p95, p99), the
    latency from the send is the latency from the schedule, and the familiar names stay. A closed loop has no schedule.
    """
    scheduled = [_scheduled(arm) for arm in arms]
    if not any(scheduled):
        return Origin(intended=False, remarks=[])
    late = [arm for arm, has in zip(arms, scheduled, strict=True) if has and _matters(arm)]
    if not late:
        return Origin(intended=False, remarks=[])
    waits = "; ".join(
        f"in {arm.name} one request in a hundred left {np.nanquantile(arm.late_ms(), 0.99):,.0f} ms or more too late"
        for arm in late
    )
    if not all(scheduled):
        without = " and ".join(arm.name for arm, has in zip(arms, scheduled, strict=True) if not has)
        remark = (
            f"Arm {without} has no schedule, so latency is counted from the send; {waits}: what a user who came "
            "at that time waited is hidden. Measure both with --rate."
        )
        return Origin(intended=False, remarks=[remark])
    return Origin(intended=True, remarks=[f"Latency is counted from the intended time ({waits})."])


def _scheduled(arm: ArmData) -> bool:
    return not arm.closed_loop and len(arm.done) > 0 and bool((~np.isnan(arm.late_ms())).all())


def _matters(arm: ArmData) -> bool:
    for sent, intended in FROM_SCHEDULE.items():
        one, two = arm.column(sent), arm.column(intended)
        known = ~np.isnan(one)
        if not known.any():
            continue
        for p in (0.5, 0.95, 0.99):
            before, after = (float(np.quantile(values[known], p)) for values in (one, two))
            if after - before > max(_AGREE_MS, _AGREE * before):
                return True
    return False
