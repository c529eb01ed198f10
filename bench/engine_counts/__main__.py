"""What engines count beside what happened: `scripts/bench counts [ENGINE…] [--write]`.

Each engine runs behind the gateway, and clients do a known number of things to it: let answers finish, leave in the
middle of one, leave while queued, come in a burst that the engine refuses, ask for more cache than there is. Then three
accounts are put side by side: what the clients did, what the gateway recorded, what the engine's own metrics moved.
`--write` renews the table of docs/engine-counts.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from traffic import Did, Traffic

from engines import ENGINES, Engine
from tailrace.engines.beside import counts_markdown, counts_table
from tailrace.model.record import RequestRecord

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "engine-counts.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def recorded(records: list[RequestRecord], what: Callable[[RequestRecord], bool]) -> int:
    return sum(map(what, records))


OURS: dict[str, Callable[[RequestRecord], bool]] = {
    "completed": lambda record: record.outcome == "completed",
    "left in mid-stream": lambda record: record.outcome == "cancelled" and record.died_in == "decode",
    "left while waiting": lambda record: record.outcome == "cancelled" and record.died_in != "decode",
    "refused by the engine": lambda record: record.outcome == "rejected",
}


Row = tuple[str, str, str, str, str]


def run(engine: Engine) -> tuple[list[Row], str]:
    """(engine, what, clients, gateway, engine's counters) for each thing that was done.

    Beside them, of the scenario in which clients leave, the engine's percentiles next to ours.
    """
    out: list[Row] = []
    survivors = ""
    for scenario in engine.scenarios:
        with tempfile.TemporaryDirectory() as folder, engine.running(Path(folder), scenario) as running:
            did: Did = Traffic(running, engine).do(scenario)
            records = running.records(did.total)
        if "left in mid-stream" in did.counts:
            survivors = counts_markdown(counts_table(did.before, did.after, records, engine=engine.adapter))
        for what, count in did.counts.items():
            if what == "preemptions":
                ours = str(sum(record.preemptions or 0 for record in records))
                told = did.moved(engine.counters["preemptions"])
                out.append((engine.name, "preempted", "-", ours, told))
                continue
            told = ", ".join(did.moved(name) for name in engine.counters[what]) or "nothing"
            out.append((engine.name, what, str(count), str(recorded(records, OURS[what])), told))
    return out, survivors


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench counts", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--write", action="store_true", help="renew docs/engine-counts.md")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    unknown = set(given.engines) - set(ENGINES)
    if unknown:
        parser.error(f"no engine {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    runs = {name: run(ENGINES[name]) for name in given.engines or ENGINES}
    found = [row for rows, _ in runs.values() for row in rows]
    if given.json:
        print(json.dumps(found))
        return 0
    head = ("engine", "what happened", "times (clients)", "gateway's records", "engine's own counters")
    lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *found)]
    for name, (_, survivors) in runs.items():
        lines += ["", f"**{name}**, the runs in which clients left:", "", *survivors.splitlines()]
    print("\n".join(lines))
    if given.write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(lines)}\n{END}{rest.partition(END)[2]}", "utf-8")
    wrong = [row for row in found if row[2] not in ("-", row[3])]
    for row in wrong:
        print(f"the records do not say what happened: {row}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
