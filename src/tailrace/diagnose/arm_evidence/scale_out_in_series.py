"""SCALE_OUT_TOO_SLOW from a series of wanted and ready replicas beside a latency: what was asked for came too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import figure, stated
from tailrace.diagnose.arms.moments import in_order
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["scale_out_in_series"]

WORSE: Final = 1.5
"""The latency when replicas are asked for, against that at the beginning."""
HELPED: Final = 0.8
"""Of the worst latency, what is left at the end where the replicas helped."""
SAME_VOLUME: Final = 0.1
LEAST_MIN: Final = 3.0
"""Minutes between the wish and the replica; sooner, nobody waited for it."""
FEWEST: Final = 4
_STATS: Final = ("p99", "p95", "p90", "p50", "mean", "")
_ROLLOUT: Final = r"roll(?:ed)?[ -]?out|deploy|releas|upgrad|new (?:build|image|version|model)"


def scale_out_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """More replicas are wanted when the latency is up already, at an equal volume, and are ready minutes later."""
    arms = [arm for arm in in_order(observed) if figure(arm, "desired_replicas") and figure(arm, "ready_endpoints")]
    rows = [(arm, late, at) for arm in arms if (late := _latency(arm)) is not None and (at := _minute(arm)) is not None]
    if len(rows) < FEWEST or len({late.key for _, late, _ in rows}) > 1:
        return None
    wanted, ready = ([_count(arm, name) for arm, *_ in rows] for name in ("desired_replicas", "ready_endpoints"))
    asked = next((n for n in range(1, len(rows)) if wanted[n] > wanted[0]), None)
    if asked is None or rows[asked][1].value < WORSE * rows[0][1].value:
        return None
    came = next((n for n in range(asked, len(rows)) if ready[n] >= wanted[asked]), None)
    until = rows[-1] if came is None else rows[came]
    took = until[2] - rows[asked][2]
    volumes = [value.value for arm, *_ in rows if (value := figure(arm, "offered_rps", "req_s")) is not None]
    if took < LEAST_MIN or (volumes and max(volumes) > (1.0 + SAME_VOLUME) * min(volumes)):
        return None
    worst = max(rows[asked:], key=lambda row: row[1].value)
    last = rows[-1]
    helped = came is not None and last[1].value < HELPED * worst[1].value
    rollout = stated(observed, _ROLLOUT)
    name = quantity(worst[1])
    effect = (
        f"were ready {number(took)} min later; until then it stayed at up to {number(worst[1].value, worst[1].unit)}"
        if helped
        else f"were ready {number(took)} min later, and it is still {number(last[1].value, last[1].unit)}"
        if came is not None
        else f"are not {'all ' if ready[-1] > ready[asked] else ''}ready {number(took)} min later "
        f"({number(last[1].value, last[1].unit)})"
    )
    missing = [] if rollout is not None else ["what changed when the latency rose (a rollout?), and when"]
    if not volumes:
        missing.append("the request volume over the same time (it must be equal)")
    return cause.finding(
        statement=f"{name} rose from {number(rows[0][1].value, worst[1].unit)} to "
        f"{number(worst[1].value, worst[1].unit)}; {number(wanted[asked])} instead of {number(wanted[0])} replicas "
        f"were asked for, and {effect}. A scale-out is no action for an incident of minutes.",
        evidence=[
            evidence_of(rows[0][0], rows[0][1]),
            evidence_of(worst[0], worst[1]),
            evidence_of(last[0], last[1]),
            Evidence(
                f"wanted {number(wanted[0])} -> {number(wanted[asked])} replicas at {rows[asked][0].label}, ready "
                f"{number(ready[0])} -> {number(ready[-1])}, {number(took)} min later",
                str(rows[asked][0].place) or "form",
                "minutes",
                took,
                "min",
            ),
            *(
                [Evidence(f"volume {number(min(volumes))} to {number(max(volumes))}/s", str(last[0].place), "req_s")]
                if volumes
                else []
            ),
            *([evidence_of_setting(rollout)] if rollout is not None else []),
        ],
        explains_ms=worst[1].value - rows[0][1].value,
        relation=f"{number(worst[1].value, worst[1].unit)} / {number(rows[0][1].value, worst[1].unit)} = "
        f"{worst[1].value / rows[0][1].value:.3g} x; {number(took)} min from the request to ready",
        n=len(rows),
        advice="Roll back what came with the rise first; meanwhile shed load (429) or shorten outputs (max_tokens). "
        "Keep spare replicas warm, and images and weights on the nodes, if minutes matter.",
        price="Spare replicas cost while nobody needs them.",
        verify="tailrace diagnose http://127.0.0.1:9480 --before before.run  # after the rollback",
        missing=missing,
        rivals=["SCHED_QUEUE_SATURATION"] if helped else [],
        disproof_checked=[f"volume {number(min(volumes))} to {number(max(volumes))}/s"] if volumes else [],
        action=Action.ROLLBACK,
    )


def _latency(arm: Arm) -> Quoted | None:
    return figure(arm, "ttft", "e2e", "queue", stats=_STATS)


def _count(arm: Arm, name: str) -> float:
    found = figure(arm, name)
    return 0.0 if found is None else found.value


def _minute(arm: Arm) -> float | None:
    """Where a moment of a series stands (min)."""
    axis, _, at = arm.label.partition(" ")
    try:
        return float(at) / 60.0 if axis == "time" else None
    except ValueError:
        return None
