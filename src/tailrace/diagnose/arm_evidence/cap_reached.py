"""TUNE_NOT_SCALE from a sweep over clients: as many run as ever from some number on, whoever asks beyond it waits, and
tokens come as fast as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import CENTRAL, as_share, condition, figure, number_stated
from tailrace.diagnose.arms.limits import CAP
from tailrace.diagnose.arms.pairs import sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.kv_cache import KV_ROOM
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["cap_reached"]

LEAST: Final = 2
SAME: Final = 0.03
FOLLOWS: Final = 0.1
"""Below the cap as many run as clients ask."""
RISES: Final = 0.7
"""Of linear, throughput below the cap."""
FLAT: Final = 0.25
BUSY: Final = 0.9


def cap_reached(cause: Cause, observed: Observed) -> Finding | None:  # noqa: PLR0911, C901  (one disproof each)
    """Running follows the clients up to a number and stays there, with TPOT flat and room on the device."""
    points = sweep(
        observed, r"\bconcurrency\b|in flight|\busers\b|\bclients\b", lambda arm: figure(arm, "running") is not None
    )
    if len(points) < LEAST + 1:
        return None
    ran = [item for point in points if (item := figure(point.arm, "running")) is not None]
    top = ran[-1].value
    beyond = [n for n, point in enumerate(points) if point.x > (1 + FOLLOWS) * top]
    below = [n for n, point in enumerate(points) if point.x <= (1 + FOLLOWS) * top]
    if top < 1 or len(beyond) < LEAST or not below or any(abs(ran[n].value / top - 1) > SAME for n in beyond):
        return None
    if any(abs(ran[n].value / points[n].x - 1) > FOLLOWS for n in below):
        return None
    first, edge, last = points[below[0]], points[below[-1]], points[-1]
    paces = [figure(point.arm, "tpot", "itl", stats=CENTRAL) for point in (first, edge, last)]
    rates = [figure(point.arm, "output_tok_s", "req_s", "decode_tok_s") for point in (first, edge, last)]
    if paces[0] is None or paces[2] is None or paces[0].key != paces[2].key:
        return None
    if paces[2].value > (1 + FLAT) * paces[0].value:
        return None
    busy, kv = figure(last.arm, "gpu_util"), figure(last.arm, "kv_usage")
    if (busy is not None and as_share(busy.value, busy.unit) > BUSY) or (kv is not None and kv.value > KV_ROOM):
        return None
    if rates[0] is not None and rates[1] is not None and len(below) > 1:
        gain, growth = rates[1].value / max(rates[0].value, 1e-9), edge.x / first.x
        if gain < 1 + RISES * (growth - 1):
            return None
    told = condition(last.arm, CAP)
    stated = number_stated(observed, CAP)
    cap = told if told is not None else None if stated is None else stated.number
    late = [figure(point.arm, "ttft", "queue", stats=("p50", "mean", "p99", "")) for point in (edge, last)]
    configured = (
        ""
        if cap is None or abs(cap / top - 1) <= SAME
        else f", though {cap:g} is configured: the effective cap is {top:g}"
    )
    evidence = [evidence_of(point.arm, item) for point, item in zip(points, ran, strict=True)]
    for items, places in ((rates, (first, edge, last)), (paces, (first, edge, last)), (late, (edge, last))):
        evidence += [
            evidence_of(point.arm, item) for point, item in zip(places, items, strict=True) if item is not None
        ]
    if cap is not None:
        evidence.append(
            evidence_of_setting(stated)
            if told is None and stated is not None
            else Evidence(f"the configured cap is {cap:g}", str(last.arm.place) or "form", "cap", cap)
        )
    waits = (
        f" {quantity(late[1])} {number(late[1].value, 'ms')} is the wait for a slot."
        if late[1] is not None and late[0] is not None and late[1].value > 2 * late[0].value
        else ""
    )
    return cause.finding(
        action=Action.TUNE,
        statement=f"Running follows the clients up to {top:g} and stays at {top:g} with {last.x:g} of "
        f"them{configured}; "
        f"{quantity(paces[2])} is flat ({number(paces[0].value, 'ms')} -> {number(paces[2].value, 'ms')}): the cap on "
        f"running requests is the limit, not the engine's capacity.{waits}",
        evidence=evidence,
        explains_ms=late[1].value - late[0].value if late[0] is not None and late[1] is not None else None,
        relation=f"running {top:g} at {', '.join(f'{points[n].x:g}' for n in beyond)} clients; "
        f"{quantity(paces[2])} x {paces[2].value / paces[0].value:.3g}"
        + (
            f"; throughput x {rates[1].value / rates[0].value:.3g} at x {edge.x / first.x:.3g} up to the cap"
            if rates[0] is not None and rates[1] is not None and rates[0].value > 0
            else ""
        ),
        n=len(points),
        advice=f"Find what holds the batch at {top:g} (vLLM: --max-num-seqs; SGLang: --max-running-requests; "
        "llama.cpp: "
        "--parallel; Triton and LMDeploy: max_batch_size, instances; CUDA graph sizes), and raise that limit one step "
        "at a time until p99 TTFT or TPOT meets its target or throughput stops rising. Add replicas only when it is "
        "flat.",
        price="TPOT rises a little with the batch, and more requests share the KV cache (watch preemptions).",
        verify=again(last.arm),
        missing=["a sweep of the cap itself: throughput and TPOT at a higher one"],
        rivals=["SCHED_QUEUE_SATURATION"],
        disproof_checked=[
            f"{quantity(paces[2])} does not rise",
            *([f"GPU utilisation {number(busy.value, busy.unit)}"] if busy is not None else []),
            *([f"KV usage {number(kv.value, 'share')}"] if kv is not None else []),
        ],
        level=Level.SUSPECTED,
    )
