"""How often `tailrace compare` is right, on pairs of simulated runs whose difference is known.

The simulated engine (A100 preset, continuous batching) serves chat with 3 % documents at 14 requests a second, in
virtual time: bursts share a queue and a batch, so neighbours are alike as they are in a real run. An arm is one run of
so many requests. An *effect* is put on the waits of arm B above their median, by a monotone map that moves the true
p99 by exactly what is said (the truth is one run of 200,000 requests) and leaves every shorter wait as it is: the
dependence between requests stays, and the effect is known. Arms replay the same arrivals and prompts with other
answer lengths (as an engine that samples would), or have nothing in common but their distributions.

Power is predicted from the formula of the smallest detectable effect, with the standard error that a few pilot pairs
without an effect have, before the pairs are judged.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
# One thread a worker: several that each take all cores for a matrix product are slower than one after the other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from tailrace.analyze.compare import compare
from tailrace.model.measurement import Comparison
from tailrace.simulate.presets import preset
from tailrace.simulate.run import VirtualRun, from_plan
from tailrace.stats.bootstrap import POWER_FACTOR
from tailrace.store.table import RecordTable
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import PlannedRequest, Workload, generators, plan

RATE = 14.0
MIX = "chat=300~0.6/60~0.5:0.97,document=6000/60:0.03"
MORE_DOCUMENTS = "chat=300~0.6/60~0.5:0.94,document=6000/60:0.06"
TRUTH_REQUESTS, TRUTH_SEED = 200_000, 999_983
FALSE_ALARMS = 0.05


class Scenario(NamedTuple):
    """What differs between the arms, and what may be said of it."""

    name: str
    effect: float
    """Change of the true p99."""
    same_arrivals: bool
    requests: int
    """An arm."""
    mix: str = MIX
    answer: str = ""
    """The verdict whose share is the power; empty where there is nothing to find."""


SCENARIOS = (
    Scenario("none, same arrivals", 0.0, same_arrivals=True, requests=4000),
    Scenario("none, other arrivals", 0.0, same_arrivals=False, requests=4000),
    Scenario("-30 % p99, same arrivals", -0.30, same_arrivals=True, requests=4000, answer="improved"),
    Scenario("-30 % p99, other arrivals", -0.30, same_arrivals=False, requests=4000, answer="improved"),
    Scenario("+10 % p99, same arrivals", 0.10, same_arrivals=True, requests=4000, answer="regressed"),
    Scenario("+10 % p99, other arrivals", 0.10, same_arrivals=False, requests=4000, answer="regressed"),
    Scenario("mix shift: documents 3 % to 6 %", 0.0, same_arrivals=False, requests=4000, mix=MORE_DOCUMENTS),
)


def planned(seed: int, requests: int, mix: str, answers: int | None) -> Iterator[PlannedRequest]:
    """The requests of a seed; with `answers`, the lengths of the answers are those of another seed."""
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=RATE), mix=parse_mix(mix))
    first = islice(plan(workload, generators(seed)), requests)
    if answers is None:
        yield from first
        return
    rng = np.random.default_rng([answers, 7])
    for one in first:
        drawn = (
            one.output_tokens if one.name == "document" else max(1, round(60 * math.exp(0.5 * rng.standard_normal())))
        )
        yield one._replace(output_tokens=drawn)


def simulated(seed: int, requests: int, *, mix: str = MIX, answers: int | None = None) -> RecordTable:
    """One run on the engine in virtual time."""
    chosen = preset("a100-llama3-8b")
    run = VirtualRun(chosen.knobs, chosen.cost(), keep_timelines="none")
    table = RecordTable.from_records(run.records(from_plan(planned(seed, requests, mix, answers))))
    starts = table.column("start_unix_ns")
    table.columns["run_offset_ns"] = (starts - starts.min()).astype(np.float64)
    return table


COLUMNS = ("ttft_ns", "chunk_gap_max_ns", "e2e_ns")


class Truth(NamedTuple):
    """Of each column: median and p99 (ns)."""

    median: dict[str, float]
    p99: dict[str, float]


def truth() -> Truth:
    """From one long run."""
    table = simulated(TRUTH_SEED, TRUTH_REQUESTS)
    values = {name: table.column(name).astype(np.float64) for name in COLUMNS}
    # TTFT and longest gap make the longest wait: one map for both keeps it a map of the wait.
    wait = np.fmax(values["ttft_ns"], values["chunk_gap_max_ns"])
    values |= {"ttft_ns": wait, "chunk_gap_max_ns": wait}
    return Truth(
        {name: float(np.nanquantile(value, 0.5)) for name, value in values.items()},
        {name: float(np.nanquantile(value, 0.99)) for name, value in values.items()},
    )


def affected(table: RecordTable, effect: float, known: Truth) -> RecordTable:
    """The table with what lies above the median stretched so that the true p99 changes by `effect`."""
    if not effect:
        return table
    columns = dict(table.columns)
    for name in COLUMNS:
        middle, p99 = known.median[name], known.p99[name]
        stretch = (p99 * (1 + effect) - middle) / (p99 - middle)
        column = columns[name].astype(np.float64)
        columns[name] = np.where(column > middle, middle + (column - middle) * stretch, column)
    return RecordTable(columns, table.timelines)


def pair(scenario: Scenario, number: int, known: Truth) -> Comparison:
    """The verdict on one pair."""
    seed = 10 * number + 1
    other = seed if scenario.same_arrivals else seed + 1
    a = simulated(seed, scenario.requests, answers=2 * number)
    b = simulated(other, scenario.requests, mix=scenario.mix, answers=2 * number + 1)
    return compare(a, affected(b, scenario.effect, known))


class Outcome(NamedTuple):
    """What is kept of a pair's verdict."""

    verdict: str
    detectable: float
    """Of the first headline, as a share."""
    decided_by: str


_known: Truth | None = None


def _begin(known: Truth) -> None:
    global _known  # noqa: PLW0603  (a worker's copy of the truth, set once)
    _known = known


def _judge(job: tuple[Scenario, int]) -> Outcome:
    assert _known is not None
    found = pair(*job, _known)
    return Outcome(str(found.verdict), (found.min_detectable_pct or 0.0) / 100, found.summary)


def predicted_power(effect: float, detectable: float) -> float:
    """Power at 5 % two-sided: the detectable effect is 2.80 standard errors of log(q_B / q_A)."""
    from scipy.special import ndtr

    error = math.log1p(detectable) / POWER_FACTOR
    return float(ndtr(abs(math.log1p(effect)) / error - 1.959964))


def measure(
    scenarios: tuple[Scenario, ...], pairs: int, pilots: int, workers: int, known: Truth
) -> list[dict[str, Any]]:
    """A row a scenario."""
    rows = []
    with multiprocessing.get_context("spawn").Pool(workers, _begin, (known,)) as pool:
        for scenario in scenarios:
            power = None
            if scenario.answer:
                quiet = scenario._replace(effect=0.0)
                pilot = pool.map(_judge, [(quiet, 100_000 + i) for i in range(pilots)], chunksize=2)
                power = predicted_power(scenario.effect, float(np.median([one.detectable for one in pilot])))
            found = pool.map(_judge, [(scenario, i) for i in range(pairs)], chunksize=4)
            counts = Counter(one.verdict for one in found)
            row = {
                "scenario": scenario.name,
                "requests": scenario.requests,
                "pairs": pairs,
                "detectable": round(float(np.median([one.detectable for one in found])), 4),
                "predicted_power": power if power is None else round(power, 3),
                "power": counts[scenario.answer] / pairs if scenario.answer else None,
                "false_regressed": None if scenario.answer == "regressed" else counts["regressed"] / pairs,
                "false_improved": None if scenario.answer == "improved" else counts["improved"] / pairs,
                "verdicts": dict(counts),
            }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench verdicts", description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--pilots", type=int, default=20)
    parser.add_argument("--only", default="", help="scenarios whose name holds this")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    given = parser.parse_args()
    chosen = tuple(one for one in SCENARIOS if given.only in one.name)
    measure(chosen, given.pairs, given.pilots, given.workers, truth())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
