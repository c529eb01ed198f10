"""How often `tailrace compare` is right on simulated pairs whose difference is known: `scripts/bench verdicts`.

The simulated engine (A100 preset, continuous batching) serves chat with 3 % documents at 14 requests a second, in
virtual time: bursts share a queue and a batch, so neighbours are alike as they are in a real run. An *effect* is put on
the waits of arm B above their median, by a monotone map that moves the true p99 by exactly what is said (the truth is
one run of 80,000 requests) and leaves every shorter wait as it is: the dependence between requests stays, and the
effect is known. Arms replay the same arrivals and prompts with other answer lengths, as an engine that samples would
give, or have nothing in common but their distributions.

Power is stated before the pairs are judged: by the formula of the smallest detectable effect, with the standard error
that pilot pairs without an effect show. `kept` also holds no false `regressed` in more than 5 % of the pairs.
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
from tailrace.analyze.verdict import TOLERANCE
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.simulate.presets import preset
from tailrace.simulate.run import VirtualRun, from_plan
from tailrace.stats.bootstrap import POWER_FACTOR
from tailrace.store.run_file import Arrival, Run, RunHeader, RunTrailer
from tailrace.store.table import RecordTable
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import PlannedRequest, Workload, generators, plan

RATE = 14.0
MIX = "chat=300~0.6/60~0.5:0.97,document=6000/60:0.03"
MORE_DOCUMENTS = "chat=300~0.6/60~0.5:0.94,document=6000/60:0.06"
TRUTH_REQUESTS, TRUTH_SEED = 80_000, 999_983
FALSE_ALARMS = 0.05
Z = 1.959964


QUIET = "chat=300~0.6/60~0.5:1"
"""Without documents: a tail that is no cliff, in which 10 % can be seen between runs of other arrivals."""


class Scenario(NamedTuple):
    """What differs between the arms, and what may be said of it."""

    name: str
    effect: float
    """Change of the true p99."""
    answer: str = ""
    """The verdict whose share is the power; empty where there is nothing to find."""


class Pairs(NamedTuple):
    """Pairs of runs, and the effects that are put on arm B of each."""

    name: str
    same_arrivals: bool
    requests: int
    """An arm."""
    scenarios: tuple[Scenario, ...]
    mix: str = MIX
    mix_b: str = MIX
    share: float = 1.0
    """Of the pairs that are asked for: long runs take their time."""


NONE, BETTER, WORSE = (
    Scenario("none", 0.0),
    Scenario("p99 -30 %", -0.30, "improved"),
    Scenario("p99 +10 %", 0.10, "regressed"),
)
GROUPS = (
    Pairs("same arrivals, other answers", same_arrivals=True, requests=4000, scenarios=(NONE, BETTER, WORSE)),
    Pairs("other arrivals", same_arrivals=False, requests=4000, scenarios=(NONE, BETTER)),
    Pairs(
        "mix shift only (documents 3 % to 6 %)",
        same_arrivals=False,
        requests=4000,
        scenarios=(NONE,),
        mix_b=MORE_DOCUMENTS,
    ),
    Pairs(
        "chat alone, other arrivals",
        same_arrivals=False,
        requests=20_000,
        scenarios=(NONE, WORSE),
        mix=QUIET,
        mix_b=QUIET,
        share=0.3,
    ),
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


def truth(mix: str, requests: int = TRUTH_REQUESTS) -> Truth:
    """From one long run."""
    table = simulated(TRUTH_SEED, requests, mix=mix)
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


class Outcome(NamedTuple):
    """What is kept of a verdict."""

    scenario: str
    verdict: str
    detectable: float
    """Of the first headline, as a share."""


def judge(job: tuple[Pairs, int, Truth]) -> list[Outcome]:
    """The verdicts on one pair, one a scenario."""
    group, number, known = job
    seed = 10 * number + 1
    a = simulated(seed, group.requests, mix=group.mix, answers=2 * number)
    b = simulated(seed if group.same_arrivals else seed + 1, group.requests, mix=group.mix_b, answers=2 * number + 1)
    out = []
    for one in group.scenarios:
        found = compare(a, affected(b, one.effect, known))
        out.append(Outcome(one.name, str(found.verdict), (found.min_detectable_pct or 0.0) / 100))
    return out


def predicted_power(effect: float, detectable: float) -> float:
    """Power at 5 % two-sided of one quantile: the detectable effect is 2.80 standard errors of log(q_B / q_A)."""
    from scipy.special import ndtr

    error = math.log1p(detectable) / POWER_FACTOR
    # A rise counts from the tolerance on, however sure it is.
    least = max(Z * error, math.log1p(TOLERANCE) if effect > 0 else 0.0)
    return float(ndtr((abs(math.log1p(effect)) - least) / error))


def measure(groups: tuple[Pairs, ...], pairs: int, pilots: int, workers: int) -> Iterator[dict[str, Any]]:
    """A row a scenario."""
    known = {mix: truth(mix) for mix in {group.mix for group in groups}}
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for group in groups:
            count = max(1, round(pairs * group.share))
            quiet = group._replace(scenarios=(NONE,))
            jobs = [(quiet, 100_000 + i, known[group.mix]) for i in range(pilots)]
            pilot = [one for found in pool.imap(judge, jobs) for one in found]
            detectable = float(np.median([one.detectable for one in pilot]))
            stated = {one.name: predicted_power(one.effect, detectable) for one in group.scenarios if one.answer}
            told = ", ".join(f"{name}: power {power:.0%}" for name, power in stated.items())
            print(
                f"{group.name}, n = {group.requests}: can see {detectable:.0%} of the p99. Stated: {told or '-'}",
                flush=True,
            )
            found = [
                one for each in pool.imap(judge, [(group, i, known[group.mix]) for i in range(count)]) for one in each
            ]
            for scenario in group.scenarios:
                yield row_of(group, scenario, [one for one in found if one.scenario == scenario.name], stated)


def row_of(group: Pairs, scenario: Scenario, found: list[Outcome], stated: dict[str, float]) -> dict[str, Any]:
    """The rates of one scenario, and whether they keep what was promised."""
    count = len(found)
    counts = Counter(one.verdict for one in found)
    power = counts[scenario.answer] / count if scenario.answer else None
    wrong = {answer: counts[answer] / count for answer in ("regressed", "improved") if answer != scenario.answer}
    kept = wrong.get("regressed", 0.0) <= FALSE_ALARMS
    if power is not None:
        # The stated power is a probability: what was measured may lie below it by chance (one-sided, 5 %).
        aim = stated[scenario.name]
        kept = kept and power >= aim - 1.645 * math.sqrt(aim * (1 - aim) / count)
    return {
        "pairs": group.name,
        "effect": scenario.name,
        "n": group.requests,
        "count": count,
        "stated": stated.get(scenario.name),
        "power": power,
        "false_regressed": wrong.get("regressed"),
        "false_improved": wrong.get("improved"),
        "verdicts": dict(counts),
        "kept": kept,
    }


# -- a queue that the load generator hides


def stalled(seed: int, *, stall_s: float, closed: bool, seconds: float = 300.0) -> Run:
    """A server with eight places that stands still for `stall_s` once a minute, under 20 requests a second.

    `closed`: eight workers that each send when their last answer has ended. Otherwise an open loop, which the load
    generator caps at eight in flight: a request that waits for a place waits in the client.
    """
    rng = np.random.default_rng(seed)
    free = [0.0] * 8
    arrivals = np.cumsum(rng.exponential(1 / 20.0, int(seconds * 20)))
    records = []
    number = 0
    while number < arrivals.size or closed:
        place = int(np.argmin(free))
        sent = free[place] if closed else max(float(arrivals[number]), free[place])
        if sent > seconds:
            break
        end = sent + float(rng.lognormal(math.log(0.25), 0.3))
        standing = (sent // 60 + 1) * 60 - 30
        if stall_s and sent <= standing + stall_s and end > standing:
            end += standing + stall_s - max(sent, standing)
        free[place] = end
        took, due = round((end - sent) * 1e9), sent if closed else float(arrivals[number])
        records.append(
            RequestRecord(
                request_id=f"r{number}",
                vantage="client",
                prompt_tokens=200,
                output_tokens=1,
                start_unix_ns=round(sent * 1e9),
                unattributed_ns=took,
                stage_sources={"unattributed": "measured"},
                e2e_ns=took,
                ttft_ns=took,
                run_offset_ns=None if closed else round(due * 1e9),
                intended_to_sent_ns=None if closed else round((sent - due) * 1e9),
                outcome=OutcomeKind.COMPLETED,
            )
        )
        number += 1
    arrival = Arrival(kind="closed", concurrency=8) if closed else Arrival(kind="poisson", rate=20.0, concurrency=8)
    trailer = RunTrailer(n=len(records), duration_s=seconds)
    return Run(path=f"{seed}.run", header=RunHeader(arrival=arrival), records=records, trailer=trailer)


def hidden(job: tuple[bool, int]) -> tuple[str, bool, float]:
    """(verdict, whether the hidden wait is told, change of the p99 as counted from the send)."""
    closed, number = job
    a = stalled(2 * number, stall_s=0.0, closed=closed)
    b = stalled(2 * number + 1, stall_s=4.0, closed=closed)
    found = compare(a, b)
    told = found.origin == "intended" or "closed loop waited" in " ".join([found.summary, *found.checks])
    return str(found.verdict), told, found.metrics["ttft_ms.p99"].delta_pct or 0.0


def omission(closed: bool, pairs: int, workers: int) -> dict[str, Any]:  # noqa: FBT001
    """How a stall of 4 s a minute is judged that mostly meets requests which wait in the client, or are not sent."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        found = pool.map(hidden, [(closed, i) for i in range(pairs)])
    counts = Counter(verdict for verdict, _, _ in found)
    good = counts["improved"] + counts["no_difference"]
    return {
        "pairs": "closed loop" if closed else "open loop, capped at 8 in flight",
        "count": pairs,
        "verdicts": dict(counts),
        "told": sum(told for _, told, _ in found) / pairs,
        "from_the_send_pct": float(np.median([change for _, _, change in found])),
        "kept": not good and all(told for _, told, _ in found),
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    """Markdown, as docs/how-to/compare.md has it."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    lines = [
        "| pairs | effect | n an arm | pairs | stated power | power | false regressed | false improved |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['pairs']} | {row['effect']} | {row['n']:,} | {row['count']} | {share(row['stated'])} | "
        f"{share(row['power'])} | {share(row['false_regressed'])} | {share(row['false_improved'])} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench verdicts", description=__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="of each group; 60 of the long runs [200]")
    parser.add_argument("--pilots", type=int, default=20, help="pairs from which the power is stated [20]")
    parser.add_argument("--only", default="", help="groups whose name holds this")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    given = parser.parse_args()
    chosen = tuple(one for one in GROUPS if given.only in one.name)
    rows = []
    for row in measure(chosen, given.pairs, given.pilots, given.workers):
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(table_of(rows), flush=True)
    if not given.only:
        for closed in (False, True):
            rows.append(omission(closed, max(1, given.pairs // 4), given.workers))
            print(json.dumps(rows[-1]), flush=True)
    broken = [row for row in rows if not row["kept"]]
    for row in broken:
        print(f"BROKEN: {row['pairs']}, {row.get('effect', 'hidden stall')}")
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())
