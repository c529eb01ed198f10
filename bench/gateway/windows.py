"""Interleaved rounds of load, and what each unit of work costs in them.

Every round visits every scenario, and in it every gateway in a new random order, so that a slow spell of the machine
hits all. CPU seconds per unit of work are compared as ratios *within* a round, and the median of these ratios is the
figure: a round in which the whole machine was slower then weighs no more than another. One row a window, in the form of
the harness, so that its own summary reads them too.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from harness import Harness, control, mock_stats

PACED = ("s16", "s64", "s200")
SINGLE = ("r16", "r64")
GROUPS: dict[str, tuple[str, ...]] = {"paced": PACED, "single": SINGLE}
UNIT = {"paced": ("chunks", 1e5), "single": ("reqs", 1e3)}

Row = dict[str, Any]


class Spread(NamedTuple):
    """Median of the rounds, and their range."""

    median: float
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None where no round has a value."""
        kept = [value for value in values if value is not None]
        return cls(statistics.median(kept), min(kept), max(kept), len(kept)) if kept else None

    def text(self, digits: int = 2) -> str:
        """`1.50 (1.42..1.61)`."""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}..{self.most:.{digits}f})"


def settle(harness: Harness, target: dict[str, Any], limit_s: float = 20.0) -> None:
    """Wait until a gateway has no work left: one that piled it up must not burn the next one's processor."""
    end = time.monotonic() + limit_s
    pids = target.get("pids", [])
    while time.monotonic() < end:
        before = harness.usage(pids)[0] if pids else 0.0
        time.sleep(0.3)
        busy = (harness.usage(pids)[0] - before) if pids else 0.0
        if busy <= 0.02 and mock_stats()["active"] == 0:
            return


def warm_up(harness: Harness, targets: list[dict[str, Any]]) -> None:
    """The first requests of some gateways take seconds."""
    for target in targets:
        control(interval_ms=5)
        for mode in ("stream", "single"):
            load = harness.load(target, "--mode", mode, "--conc", "4", "--tokens", "20", "--seconds", "1")
            if "fatal" in load:
                raise RuntimeError(f"{target['name']}: {load['fatal']}")
        settle(harness, target)


def measure(
    harness: Harness,
    targets: list[dict[str, Any]],
    mock_pid: int,
    out: Path,
    *,
    scenarios: tuple[str, ...],
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> list[Row]:
    """All windows of all rounds; each row is in `out` as soon as it is there."""
    rows: list[Row] = []
    order = random.Random()
    began = time.monotonic()
    with out.open("a") as file:
        for number in range(rounds):
            for scenario in scenarios:
                mode, streams, tokens, gap_ms = harness.scenarios[scenario]
                for target in order.sample(targets, len(targets)):
                    control(interval_ms=gap_ms)
                    shape = ["--mode", mode, "--conc", str(streams), "--tokens", str(tokens), "--warmup", "1"]
                    row = harness.load(target, *shape, "--seconds", str(seconds), "--mock-pids", str(mock_pid))
                    row |= {"scenario": scenario, "round": number, "load1": os.getloadavg()[0], "at": time.time()}
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    settle(harness, target)
            say(f"round {number + 1} of {rounds} done after {time.monotonic() - began:.0f} s")
    return rows


class Table:
    """Rows by round, scenario and gateway."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = [row for row in rows if "fatal" not in row]
        self.fatal = [row for row in rows if "fatal" in row]
        self.cells = {(row["round"], row["scenario"], row["name"]): row for row in self.rows}
        self.rounds = sorted({row["round"] for row in self.rows})
        self.names = list(dict.fromkeys(row["name"] for row in self.rows))
        self.scenarios = list(dict.fromkeys(row["scenario"] for row in self.rows))

    def cost(self, name: str, group: str, number: int, scenarios: tuple[str, ...] | None = None) -> float | None:
        """CPU seconds per unit of the group's work, in one round."""
        work, unit = UNIT[group]
        cells = [self.cells.get((number, scenario, name)) for scenario in scenarios or GROUPS[group]]
        got = [cell for cell in cells if cell is not None]
        done = sum(cell[work] for cell in got)
        spent = sum(cell["cpu_s"] for cell in got)
        return spent / done * unit if done and spent else None

    def costs(self, name: str, group: str, scenarios: tuple[str, ...] | None = None) -> Spread | None:
        """The same over the rounds."""
        return Spread.of(self.cost(name, group, number, scenarios) for number in self.rounds)

    def ratio(self, name: str, to: str, group: str, scenarios: tuple[str, ...] | None = None) -> Spread | None:
        """How many times as much as another costs: one ratio a round."""
        ratios = []
        for number in self.rounds:
            ours, theirs = (self.cost(who, group, number, scenarios) for who in (name, to))
            ratios.append(ours / theirs if ours and theirs else None)
        return Spread.of(ratios)

    def median(self, name: str, scenario: str, read: Callable[[Row], float | None]) -> float | None:
        """Of one reading over the rounds."""
        spread = self.over_rounds(name, scenario, read)
        return None if spread is None else spread.median

    def over_rounds(self, name: str, scenario: str, read: Callable[[Row], float | None]) -> Spread | None:
        """Of one reading, with its range."""
        cells = [self.cells.get((number, scenario, name)) for number in self.rounds]
        return Spread.of(read(cell) for cell in cells if cell is not None)

    def errors(self, name: str) -> int:
        """Failed requests in all windows."""
        return sum(row["errors"] for row in self.rows if row["name"] == name)
