"""Figures of a governed run, lane by lane: who was served within the objectives, who was refused, what it was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from tailrace.govern.attainment import met_all
from tailrace.govern.lane import LanePolicy
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.simulate.free_slots import RefusedTry


class LaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One lane over a run. Times in ms, of completed requests; rates a second of the time in which requests came."""

    lane: str
    n: int
    completed: int
    reasons: dict[str, int]
    """Why the others did not complete."""
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    completed_per_s: float
    goodput_per_s: float
    """Completed within every objective of the lane; all others count as missed."""
    longest_queue_ms: float
    """The longest that anybody waited in the lane, whatever became of it."""


class RefusalFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What refusals said, against what would have been. Errors are shares of the actual wait."""

    n: int
    with_retry_after: int
    judged: int
    """Refusals with a prediction whose actual wait is known and above the floor."""
    median_error: float | None
    p90_error: float | None
    median_bias: float | None
    """Median of predicted / actual - 1: above 0 the prediction is too long."""


def lane_figures(
    records: Iterable[RequestRecord], policies: Sequence[LanePolicy], duration_s: float
) -> dict[str, LaneFigures]:
    """Figures by lane, in the order of `policies`; lanes that saw nobody are left out."""
    by_lane: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_lane.setdefault(record.lane, []).append(record)
    objectives = {policy.name: policy.objectives for policy in policies}
    out: dict[str, LaneFigures] = {}
    for name in [name for name in objectives if name in by_lane]:
        rows = by_lane[name]
        done = [row for row in rows if row.outcome is OutcomeKind.COMPLETED]
        ttft = [row.ttft_ns for row in done if row.ttft_ns is not None]
        tpot = [row.tpot_ns for row in done if row.tpot_ns is not None]
        out[name] = LaneFigures(
            lane=name,
            n=len(rows),
            completed=len(done),
            reasons=dict(Counter(row.reason.value for row in rows if row.reason)),
            ttft_p50_ms=_quantile_ms(ttft, 0.5),
            ttft_p99_ms=_quantile_ms(ttft, 0.99),
            tpot_p99_ms=_quantile_ms(tpot, 0.99),
            completed_per_s=len(done) / duration_s,
            goodput_per_s=sum(met_all(row, objectives[name]) for row in rows) / duration_s,
            longest_queue_ms=max((row.queue_gateway_ns or 0) for row in rows) / 1e6,
        )
    return out


def goodput(figures: Mapping[str, LaneFigures]) -> float:
    """Requests a second, over all lanes, that met every objective of their lane."""
    return sum(lane.goodput_per_s for lane in figures.values())


def refusal_figures(refusals: Sequence[RefusedTry], *, above_ns: int = S) -> RefusalFigures:
    """How well refusals predicted the wait, over those whose actual wait is longer than `above_ns`."""
    pairs = [
        (refusal.predicted_wait_ns, actual)
        for refusal in refusals
        if (actual := refusal.wait_ns) is not None and actual > above_ns and refusal.predicted_wait_ns is not None
    ]
    ratio = np.array([predicted / actual - 1 for predicted, actual in pairs])
    known = bool(pairs)
    return RefusalFigures(
        n=len(refusals),
        with_retry_after=sum(refusal.retry_after_s is not None for refusal in refusals),
        judged=len(pairs),
        median_error=float(np.median(np.abs(ratio))) if known else None,
        p90_error=float(np.quantile(np.abs(ratio), 0.9)) if known else None,
        median_bias=float(np.median(ratio)) if known else None,
    )


def _quantile_ms(values: list[int], q: float) -> float | None:
    return float(np.quantile(values, q)) / 1e6 if values else None
