"""How often the diagnosis names the right cause of incidents that are made: `scripts/bench incidents`.

Each kind of fault happens in random settings (`tailrace.simulate.incidents`); the diagnosis gets records, scrapes and
machine signals as a gateway has them. Controls are windows in which nothing is wrong. The figure that is published
comes from the block of seeds `publish`; whoever works on rules looks at `tune` only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import zlib
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
# One thread a worker: several that each take all cores for a matrix product are slower than one after the other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import msgspec

from tailrace.simulate.incidents.faults import FAULTS
from tailrace.simulate.incidents.incident import BLOCKS, CONTROL, LONGEST, Incident, make_incident
from tailrace.testing.incident_trial import Score, Trial, trial_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "diagnosis-accuracy.md"


def one(job: tuple[str, int], block: str, longest: int, keep: Path | None) -> tuple[Trial | None, str, float, float]:
    """(trial, or why there is none, CPU seconds of making the incident, and of its diagnosis)."""
    kind, index = job
    start = time.process_time()
    try:
        incident = made_or_kept(kind, index, block, longest, keep)
    except RuntimeError as error:
        return None, str(error), time.process_time() - start, 0.0
    made = time.process_time()
    trial = trial_of(incident)
    return trial, "", made - start, time.process_time() - made


def made_or_kept(kind: str, index: int, block: str, longest: int, keep: Path | None) -> Incident:
    """The incident; with a directory it is kept there, and taken from it while nothing that makes it has changed."""
    if keep is None:
        return make_incident(kind, index, block, longest=longest)
    path = keep / f"{kind}-{block}-{index}-{longest}-{sources()}.msgpack.z"
    if path.exists():
        return msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=Incident)
    incident = make_incident(kind, index, block, longest=longest)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(zlib.compress(msgspec.msgpack.encode(incident), 1))
    part.replace(path)
    return incident


@cache
def sources() -> str:
    """What the code of the simulation is, in a few letters."""
    found = blake2b(digest_size=6)
    for path in sorted((ROOT / "src" / "tailrace" / "simulate").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def main() -> int:
    """Run, print, and write what came out."""
    parser = argparse.ArgumentParser(prog="scripts/bench incidents", description=__doc__)
    parser.add_argument("--kinds", help="names with commas; default: all and the controls")
    parser.add_argument("--settings", type=int, default=20, help="random settings a kind (default 20)")
    parser.add_argument("--controls", type=int, default=300, help="windows without a fault (default 300)")
    parser.add_argument("--first", type=int, default=0, help="number of the first setting (default 0)")
    parser.add_argument("--seed-block", choices=list(BLOCKS), default="tune")
    parser.add_argument("--longest", type=int, default=LONGEST, help="requests of a window at most")
    parser.add_argument("--keep", type=Path, help="a directory for the incidents made, so that they are made once")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write every trial as JSON")
    parser.add_argument("--write", action="store_true", help="renew docs/diagnosis-accuracy.md")
    parser.add_argument("--misses", action="store_true", help="print every trial that was not right")
    given = parser.parse_args()
    kinds = given.kinds.split(",") if given.kinds else [*(fault.kind for fault in FAULTS), CONTROL]
    jobs = [
        (kind, given.first + i) for kind in kinds for i in range(given.controls if kind == CONTROL else given.settings)
    ]
    work = partial(one, block=given.seed_block, longest=given.longest, keep=given.keep)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)

    if given.workers > 1:
        with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
            results = list(pool.imap(work, jobs, chunksize=2))
    else:
        results = list(map(work, jobs))
    trials = [trial for trial, _, _, _ in results if trial is not None]
    score = Score(trials)
    print(score.table())
    print()
    print(f"{score.summary()} (block {given.seed_block}, {given.settings} settings from {given.first})")
    for _, why, _, _ in results:
        if why:
            print(f"no incident: {why}")
    if given.misses:
        for trial in trials:
            if not trial.first:
                print(
                    f"{trial.kind}/{trial.block}/{trial.index} strength {trial.strength} n {trial.n} "
                    f"before {trial.with_before}: {', '.join(trial.answers[:4])} | {trial.summary[:220]}"
                )
    made = sum(seconds for _, _, seconds, _ in results)
    judged = sum(seconds for _, _, _, seconds in results)
    print(f"CPU: {made / len(results):.2f} s an incident to make, {judged / len(results):.2f} s to diagnose")
    if given.out is not None:
        written: dict[str, Any] = {
            "schema": 1,
            "block": given.seed_block,
            "settings": given.settings,
            "first": given.first,
            "incidents": len(score.faults),
            "top1": score.top1,
            "top2": score.top2,
            "controls": len(score.controls),
            "false_alarms": [f"{trial.kind}/{trial.block}/{trial.index}" for trial in score.false_alarms],
            "confusion": score.confusion,
            "trials": [msgspec.to_builtins(trial) for trial in trials],
        }
        given.out.write_text(json.dumps(written, indent=1) + "\n")
    if given.write:
        lost = [why for _, why, _, _ in results if why]
        numbers = (given.first, given.first + given.settings - 1)
        write_page(score, block=given.seed_block, numbers=numbers, longest=given.longest, lost=lost)
    return 0


def write_page(score: Score, *, block: str, numbers: tuple[int, int], longest: int, lost: list[str]) -> None:
    """Renew the figures and the list of kinds in the documentation."""
    today = datetime.now(tz=UTC).date().isoformat()
    count = len(score.confusion) - bool(score.controls)
    seeds = f"block `{block}`, {numbers[0]} to {numbers[1]}; at most {longest:,} requests a window"
    figures = [
        (
            f"Measured on {today}: {count} kinds of fault, {numbers[1] - numbers[0] + 1} random settings each "
            f"(seeds: {seeds})."
        ),
        "",
        f"**{score.summary()}.**",
        "",
        score.table(),
    ]
    if score.false_alarms:
        named = ", ".join(f"`{one.kind}/{one.block}/{one.index}` ({one.answers[0]})" for one in score.false_alarms)
        figures += ["", f"False alarms: {named}."]
    if lost:
        figures += ["", f"{len(lost)} settings gave no incident that anybody would notice, and are missing above."]
    kinds = [
        "| kind | wanted | as right | as right where the signals are absent | window before |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        before = {True: "always", False: "never", None: "by chance"}[fault.before]
        absent = f"{', '.join(fault.without_signals)} ({fault.signals})" if fault.without_signals else ""
        kinds.append(f"| {fault.kind} | {fault.code} | {', '.join(fault.also)} | {absent} | {before} |")
    text = PAGE.read_text()
    for name, lines in (("figures", figures), ("kinds", kinds)):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, rest = text.split(begin)
        text = head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1]
    PAGE.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
