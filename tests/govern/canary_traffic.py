"""Traffic of two routes whose latencies depend on each other in time, as rows that a canary hears."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from tailrace.govern.canary import Canary, CanaryEvent
from tailrace.govern.canary_policy import CanaryPolicy
from tailrace.model.thresholds import S

LOOK_S = 2


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Poisson arrivals at a rate that wanders, lognormal latencies that follow the load and each route's own state.

    Both wanderings are first-order autoregressions: `load_sd` of ln(latency) with a time constant of `load_tau` s is
    common to the routes (arrivals rise with it), `own_sd` and `own_tau` are each route's own. `slower` multiplies the
    canary's latencies, `tail_slower` only its slowest 2 %, `longer` its prompts and answers.
    """

    rate: float = 20.0
    spread: float = 0.4
    load_sd: float = 0.25
    load_tau: float = 20.0
    own_sd: float = 0.05
    own_tau: float = 8.0
    failing: float = 0.005
    slower: float = 1.0
    tail_slower: float = 1.0
    longer: float = 1.0
    canary_failing: float | None = None
    sessions: int = 0
    """So many sessions, each with its own speed (sd 0.2 of ln), dealt out whole; 0: every request for itself."""


def autoregression(rng: np.random.Generator, n: int, tau: float, sd: float) -> np.ndarray:
    """A stationary AR(1) at steps of 1 s."""
    a = float(np.exp(-1.0 / tau))
    noise = rng.normal(size=n) * np.sqrt(1.0 - a * a)
    noise[0] = rng.normal()
    return sd * lfilter([1.0], [1.0, -a], noise)


def drive(canary: Canary, traffic: Traffic, seconds: int, seed: int, *, start_ns: int = 0) -> list[CanaryEvent]:
    """`seconds` of traffic through `canary`, which deals it out itself; ends early at a rollback. What it told."""
    rng = np.random.default_rng(seed)
    load = autoregression(rng, seconds, traffic.load_tau, traffic.load_sd)
    own = np.stack([autoregression(rng, seconds, traffic.own_tau, traffic.own_sd) for _ in (0, 1)])
    counts = rng.poisson(traffic.rate * np.exp(load - traffic.load_sd**2 / 2))
    second = np.repeat(np.arange(seconds), counts)
    n = second.size
    group = np.zeros(n, dtype=np.int64)
    if traffic.sessions:
        session = rng.integers(traffic.sessions, size=n)
        where = rng.random(traffic.sessions)[session]
        speed = 0.2 * rng.normal(size=traffic.sessions)[session]
        group = 1 + session
    else:
        where, speed = rng.random(n), np.zeros(n)
    prompt, output = rng.normal(6.0, 1.0, n), rng.normal(4.8, 0.7, n)
    deviates = rng.normal(size=(2, n))
    luck = rng.random(n)
    events: list[CanaryEvent] = []
    edges = np.searchsorted(second, np.arange(0, seconds + 1, LOOK_S))
    for look in range(len(edges) - 1):
        now = start_ns + (look + 1) * LOOK_S * S
        part = slice(edges[look], edges[look + 1])
        arm = (where[part] < canary.share).astype(np.int64)
        canaries = arm == 1
        tokens = np.round(np.exp(prompt[part] + np.log(traffic.longer) * canaries))
        answer = np.round(np.exp(output[part] + np.log(traffic.longer) * canaries)) + 2.0
        common = load[second[part]] + own[arm, second[part]] + speed[part] + np.log(traffic.slower) * canaries
        latency = []
        for base, deviate, spread in (
            (np.log(0.02 + 2e-4 * tokens), deviates[0, part], traffic.spread),
            (np.full(tokens.size, np.log(0.02)), deviates[1, part], 0.6 * traffic.spread),
        ):
            slowest = canaries & (deviate > 2.0537)
            latency.append(np.exp(base + common + spread * deviate + np.log(traffic.tail_slower) * slowest))
        ttft, tpot = latency
        failing = np.where(
            canaries, traffic.failing if traffic.canary_failing is None else traffic.canary_failing, traffic.failing
        )
        failed = luck[part] < failing
        fine = ~failed
        rows = np.column_stack(
            (
                arm,
                tokens,
                answer,
                ttft * S * fine,
                tpot * S * fine,
                (ttft + tpot * answer) * S * fine,
                failed,
                group[part],
                4 * tokens,
            )
        )
        if len(rows):
            canary.hear_rows(rows, now - 1)
        told = canary.look(now)
        events.extend(told)
        if any(event.kind == "rolled_back" for event in told):
            break
    return events


def rolled_back_at(events: list[CanaryEvent]) -> float | None:
    """Seconds from the start to the rollback."""
    return next((event.at_ns / S for event in events if event.kind == "rolled_back"), None)


SHORT = CanaryPolicy(hold_ns=160 * S, recent_ns=80 * S, min_requests=200, declared_rate=20.0)
"""All steps within ten minutes, with windows of their own in each."""


def end_of_life(seed: int) -> str:
    """Why one canary whose engine is the stable one's equal was rolled back; empty where it was not."""
    canary = Canary(SHORT, 0)
    return canary.decision if rolled_back_at(drive(canary, Traffic(), 600, seed)) is not None else ""
