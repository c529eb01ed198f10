"""Governance under overload, governed and not, in one table: `scripts/bench govern [--virtual] [--only NAME,…]`.

Everything here is simulated in so far as the engine is: its step times are a model's. By default the engine stands
behind HTTP, with the gateway and load generators on real sockets and in real time (about nine minutes): the overload
arms and a burst (`overload`), upstreams that fail (`storm`), an engine that is killed (`killed`), one that is slower
(`canary`), and two tenants (`shares`). `--virtual` runs the scene of overload in virtual time, ten simulated minutes an
arm, with the searches for the sustainable load and for the best static lanes (about three minutes of CPU).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import canary
import killed
import scene
import shares
import sockets
import storm
import virtual

ARMS = ("overload", "storm", "killed", "canary", "shares")


FEWEST_JUDGED = 20
"""Refusals whose wait is known, below which their median says nothing."""


def on_sockets(wanted: list[str], seconds: float, scale: float, storm_seconds: float) -> int:
    """What is wanted, on real sockets. 1 when a promise is broken."""
    arms: dict[str, Callable[[], list[str]]] = {
        "overload": lambda: overload(seconds, scale),
        "storm": lambda: storm.run(storm_seconds),
        "killed": killed.run,
        "canary": canary.run,
        "shares": shares.run,
    }
    broken = [what for name in wanted for what in arms[name]()]
    for what in broken:
        print(f"BROKEN: {what}")
    return int(bool(broken))


def overload(seconds: float, scale: float) -> list[str]:
    """The four arms and the burst: prints them, and returns what is broken of the promise."""
    half, twice = scale * scene.SUSTAINABLE / 2, scale * scene.SUSTAINABLE * 2
    arms = []
    with sockets.engine() as (upstream, model, _):
        with sockets.gateway(upstream) as (url, admin):
            arms.append(sockets.play("governed, half load", url, model, half, seconds, admin=admin))
            show(arms[-1])
        with sockets.gateway(upstream) as (url, admin):
            arms.append(sockets.play("governed, twice", url, model, twice, seconds, admin=admin))
            show(arms[-1])
    with sockets.engine() as (upstream, model, _):
        arms.append(sockets.play("engine alone, twice", upstream, model, twice, seconds))
        show(arms[-1])
    with sockets.engine("priority") as (upstream, model, _):
        arms.append(sockets.play("engine's priority, twice", upstream, model, twice, seconds, priority=True))
        show(arms[-1])
    burst = sockets.burst()
    print(
        f"burst of 40 at 4 + 4: {burst.served} served, {burst.refused} refused "
        f"({burst.with_retry_after} with Retry-After, the slowest after {burst.slowest_refusal_ms:.1f} ms, "
        f"seen after {burst.seen_ms:.0f} ms), at most {burst.most_at_work} at work"
    )
    governed_half, governed = arms[0], arms[1]
    broken = []
    if governed.ttft_p99_ms > 500:
        broken.append("interactive p99 TTFT at twice the load is over its objective of 500 ms")
    if governed.refused != governed.with_retry_after:
        broken.append("a refusal had no Retry-After")
    told = governed.refusals
    if told is not None and told.judged >= FEWEST_JUDGED and (told.median_error or 0) > 0.3:
        broken.append("the predicted wait of refusals is off by more than 30 % in the median")
    if (burst.served, burst.refused, burst.most_at_work) != (8, 32, 4):
        broken.append("the burst was not 8 served, 32 refused, 4 at work")
    if burst.slowest_refusal_ms > 50:
        broken.append("a refusal of the burst took longer than 50 ms")
    print(f"p99 TTFT at twice / half load: {governed.ttft_p99_ms / governed_half.ttft_p99_ms:.2f}")
    for late in (arm for arm in arms if arm.late):
        print(f"{late.name}: the load generator was the limit ({late.late})")
    return broken


def show(arm: sockets.Arm) -> None:
    """One line of the table."""
    told = ""
    if arm.refusals is not None:
        error = arm.refusals.median_error
        known = "-" if error is None else f"{100 * error:.0f} % in the median of {arm.refusals.judged}"
        told = f", {arm.with_retry_after} with Retry-After, predicted wait off by {known}"
    print(
        f"{arm.name:26} {arm.rate:5.1f}/s  chat {arm.chat:5} ({arm.chat_failed} failed)  "
        f"TTFT p50 {arm.ttft_p50_ms:8.0f}  p99 {arm.ttft_p99_ms:8.0f} ms  in time {arm.chat_good:5.1f}/s  "
        f"documents {arm.served}/{arm.documents} served, {arm.refused} refused{told}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench govern", description=__doc__)
    parser.add_argument("--virtual", action="store_true", help="in virtual time, with the searches")
    parser.add_argument("--seconds", type=float, help="length of an arm [45; --virtual: 600]")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of the load on real sockets, where the machine is too small for it",
    )
    parser.add_argument("--only", default=",".join(ARMS), help=f"of {', '.join(ARMS)}, with commas between [all]")
    parser.add_argument("--storm-seconds", type=float, default=storm.SECONDS, help="length of a storm [10]")
    given = parser.parse_args()
    wanted = given.only.split(",")
    if unknown := [name for name in wanted if name not in ARMS]:
        parser.error(f"--only: no {', '.join(unknown)}; there are {', '.join(ARMS)}")
    if given.virtual:
        return virtual.show_all(given.seconds or scene.SECONDS)
    print(f"simulated engine {scene.PRESET} on real sockets; mix {scene.MIX}; 1x = {scene.SUSTAINABLE:g} requests/s")
    return on_sockets(wanted, given.seconds or 45.0, given.scale, given.storm_seconds)


if __name__ == "__main__":
    raise SystemExit(main())
