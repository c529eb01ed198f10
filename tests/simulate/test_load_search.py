"""The search for a rate on the simulated engine, in virtual time: its interval holds what a long run says is true."""

from __future__ import annotations

import math
from itertools import takewhile

import numpy as np
import pytest

from tailrace.analyze.rate_search import RateSearch, outcome_of
from tailrace.model.thresholds import S
from tailrace.simulate.engine import Engine
from tailrace.simulate.knobs import knobs_from
from tailrace.simulate.presets import preset
from tailrace.simulate.run import from_plan
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload, generators, plan

BOUND_MS, SHARE = 120.0, 0.9
WARM = 0.2


def ttfts_ms(rate: float, seconds: float, seed: int) -> np.ndarray:
    """TTFT of every request of one trial on an engine that runs four requests at once, its warm-up left out."""
    chosen = preset("a100-llama3-8b")
    engine = Engine(knobs_from(chosen.knobs, {"max_num_seqs": 4}), chosen.cost())
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=rate), mix=parse_mix("a=64/8~0.5"))
    end_ps = round(seconds * (1 + WARM) * S) * 1000
    requests = list(takewhile(lambda one: one.arrival < end_ps, from_plan(plan(workload, generators(seed)))))
    for request in requests:
        engine.submit(request)
    engine.advance()
    begin_ps = round(WARM * seconds * S) * 1000
    return np.array(
        [(one.first_at - one.arrival) / 1e9 for one in requests if one.arrival >= begin_ps and one.first_at is not None]
    )


@pytest.mark.tier("ci")
@pytest.mark.long("100 searches of some 6,000 simulated requests each", timeout=300)
def test_the_interval_holds_the_rate_that_a_long_run_calls_the_boundary():
    low, high = 15.0, 35.0
    for step in range(7):
        middle = (low + high) / 2
        if (ttfts_ms(middle, 1200, 1000 + step) <= BOUND_MS).mean() >= SHARE:
            low = middle
        else:
            high = middle
    found = []
    for seed in range(100):
        machine = RateSearch([SHARE], budget_s=300)
        while (trial := machine.next()) is not None:
            waits = ttfts_ms(trial.value, trial.seconds, seed * 100 + machine.trials)
            machine.take(trial, [outcome_of(waits, BOUND_MS, SHARE)], trial.seconds * (1 + WARM))
        found.append(machine.found())
    truth = (low + high) / 2
    holds = sum((one.low or 0) <= truth <= (one.high or math.inf) for one in found)
    closed = [one for one in found if one.low is not None and one.high is not None]
    widths = np.quantile([one.high / one.low for one in closed], [0.1, 0.5, 0.9])  # type: ignore[operator]
    said = f"truth {truth:.2f}, holds {holds}, closed {len(closed)}, widths {widths}, requests {found[0].requests}"
    assert holds >= 90, said
    assert len(closed) >= 60, said
    assert widths[1] < 2, said
