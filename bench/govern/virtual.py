"""The overload scene in virtual time: the load that is sustained, the arms beside each other, the best static lanes."""

from __future__ import annotations

import msgspec
import scene

from tailrace.govern.lane import LanePolicy
from tailrace.simulate.clients import ClientPolicy
from tailrace.simulate.search import Best, best_of_grid, highest

SEEDS = (1, 2, 3, 5)
PLACES = (1, 2, 4, 8, 16)
DOCUMENTS, CHATS = (1, 2, 3, 4, 6, 8, 12, 16, 24), (8, 16, 32, 64, 200)


def sustained(mix: str = scene.MIX, seconds: float = 1800, low: float = 8, high: float = 20) -> list[float]:
    """The highest rate that the engine alone keeps up with, by seed."""
    return [
        highest(lambda rate: scene.keeps_up(rate, seconds=seconds, mix=mix, seeds=(seed,)), low, high)  # noqa: B023
        for seed in SEEDS
    ]


def static_lanes(documents: int, chat: int) -> list[LanePolicy]:
    """Lanes with fixed running limits and nothing else that governs the engine."""
    fixed = {"document": documents, "interactive": chat}
    return [
        msgspec.structs.replace(one, running=fixed.get(one.name, one.running), prefill_requests=None)
        for one in scene.lanes()
    ]


def best_static(seconds: float) -> Best:
    """The running limits with the highest goodput at twice the sustainable load."""
    return best_of_grid(
        lambda point: scene.measure(2 * scene.SUSTAINABLE, seconds=seconds, policies=static_lanes(*point)).goodput,
        (DOCUMENTS, CHATS),
        starts=((4, 64), (16, 16)),
    )


def show_all(seconds: float) -> int:
    """Print every table; 1 when a promise is broken."""
    once = scene.SUSTAINABLE
    rates = sustained()
    print(f"kept up with, by seed {SEEDS}: {', '.join(f'{rate:.1f}' for rate in rates)} requests/s; 1x = {once:g}")
    alone = sustained(mix=scene.CHAT, seconds=120, low=40, high=130)
    share = 0.9 * 2 * once / min(alone)
    print(f"interactive alone: up to {min(alone):.0f} requests/s, so that at twice the load it is {100 * share:.0f} %")
    half, twice = scene.measure(once / 2, seconds=seconds), scene.measure(2 * once, seconds=seconds)
    arms = {
        "governed, 0.5x": half,
        "governed, 1x": scene.measure(once, seconds=seconds),
        "governed, 2x": twice,
        "governed, 2x, clients come back": scene.measure(2 * once, seconds=seconds, client=ClientPolicy(retries=3)),
        "engine alone, 0.5x": scene.measure(once / 2, seconds=seconds, governed=False),
        "engine alone, 2x": scene.measure(2 * once, seconds=seconds, governed=False),
        "engine's priority, 2x": scene.measure(2 * once, seconds=seconds, governed=False, policy="priority"),
    }
    for name, arm in arms.items():
        show(name, arm)
    best = best_static(seconds)
    print(
        f"best static lanes of {len(best.tried)} tried: documents {best.point[0]}, chat {best.point[1]}: goodput "
        f"{best.value:.2f}/s; governed {twice.goodput:.2f}/s ({100 * twice.goodput / best.value:.0f} %)"
    )
    ratio = twice.ttft_p99_ms / half.ttft_p99_ms
    others = [_ratio(seconds, seed) for seed in SEEDS[:3]]
    print(f"interactive p99 TTFT at 2x / 0.5x: {ratio:.2f}; seeds {SEEDS[:3]}: {', '.join(f'{x:.2f}' for x in others)}")
    for places in PLACES:
        show_places(places, seconds)
    kept = twice.ttft_p99_ms <= 500 and ratio <= 1.3 and twice.goodput >= 0.9 * best.value and share <= 0.6
    kept &= (twice.refusals.median_error or 0) < 0.3 and twice.refusals.with_retry_after == twice.refusals.n
    print("every promise is kept" if kept else "BROKEN")
    return int(not kept)


def _ratio(seconds: float, seed: int) -> float:
    half, twice = (scene.measure(scene.SUSTAINABLE * load, seconds=seconds, seed=seed) for load in (0.5, 2))
    return twice.ttft_p99_ms / half.ttft_p99_ms


def show_places(documents: int, seconds: float) -> None:
    """What so many places for documents cost chat, and bring documents, at half, once and twice the load."""
    arms = [
        scene.measure(scene.SUSTAINABLE * load, seconds=seconds, policies=scene.lanes(running=documents))
        for load in (0.5, 1, 2)
    ]
    chat = " / ".join(f"{arm.ttft_p99_ms:.0f}" for arm in arms)
    good = " / ".join(f"{arm.lanes['document'].goodput_per_s:.2f}" for arm in arms)
    print(f"documents at work {documents}: chat p99 TTFT {chat} ms, documents in time {good} /s at 0.5x / 1x / 2x")


def show(name: str, arm: scene.Measured) -> None:
    """One arm, a line a lane."""
    refusals = arm.refusals
    print(f"{name}: goodput {arm.goodput:.2f}/s, {arm.cpu_s:.1f} s of CPU", flush=True)
    for lane in arm.lanes.values():
        print(
            f"    {lane.lane:12} {lane.n:6} tries {lane.completed:6} completed  goodput {lane.goodput_per_s:6.2f}/s  "
            f"TTFT p50 {lane.ttft_p50_ms or 0:9.0f} p99 {lane.ttft_p99_ms or 0:9.0f}  TPOT p99 "
            f"{lane.tpot_p99_ms or 0:5.0f} ms  longest queue {lane.longest_queue_ms:6.0f} ms  {lane.reasons or ''}"
        )
    if refusals.n:
        print(
            f"    {refusals.n} refused, {refusals.with_retry_after} with Retry-After, wait off by "
            f"{100 * (refusals.median_error or 0):.0f} % in the median of {refusals.judged}"
        )
