"""One tool under one load against the truth: what it reported, what was true, what it cost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import truth_server
from tools import TOOLS, Work, environment

HERE = Path(__file__).resolve().parent
SCENARIO, TOKENS = "mixed", 100
REQUESTS_PER_STREAM = 10
RATE_SCENARIO, RATE_TOKENS = "plain:ttft_ms=20,itl_ms=5", 2
RATE_SECONDS = 6.0
TIMEOUT_S = 400.0

Row = dict[str, Any]


def concurrency_work(streams: int) -> Work:
    """Ten requests of a hundred tokens for each stream."""
    return Work(SCENARIO, REQUESTS_PER_STREAM * streams, TOKENS, concurrency=streams)


def rate_work(rate: float) -> Work:
    """Short answers, so that what is measured is the schedule."""
    return Work(RATE_SCENARIO, round(RATE_SECONDS * rate), RATE_TOKENS, rate=rate)


def measure(name: str, work: Work, tokenizer: Path, folder: Path) -> Row:
    """Run `name` once; `{"fatal": text}` in its row when it fails."""
    folder.mkdir(parents=True)
    row: Row = {"tool": name, "streams": work.concurrency, "rate": work.rate, "load1": os.getloadavg()[0]}
    tool = TOOLS[name]
    with truth_server.serving(folder / "truth.jsonl", work.scenario) as truth:
        command = [sys.executable, str(HERE / "supervise.py"), str(folder / "cost.json")]
        command += tool.command(truth.url, work, tokenizer, folder)
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
            try:
                subprocess.run(
                    command, stdout=out, stderr=err, timeout=TIMEOUT_S, check=False, cwd=folder,
                    env=environment(name, folder), stdin=subprocess.DEVNULL,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return row | {"fatal": f"not done after {TIMEOUT_S:g} s"}
    records = truth_server.measured(truth.records)
    try:
        cost = json.loads((folder / "cost.json").read_text())
        reported = tool.read(folder)
        row |= figures(cost, records, work)
    except (OSError, ValueError, LookupError, TypeError) as error:
        said = ((folder / "stderr").read_text() or (folder / "stdout").read_text())[-500:]
        return row | {"fatal": f"{type(error).__name__}: {error}; {said}"}
    row["server_cpu_s"] = truth.server_cpu_s
    row |= {"completed": reported.completed, "failed": reported.failed, "limited": reported.limited}
    if work.rate is None:
        row["reported"], row["true"] = reported.figures, truth_server.true_figures(records)
        row["server_late_p99_ms"] = truth_server.lateness_p99_ms(records)
    return row


def figures(cost: dict[str, Any], records: list[dict[str, Any]], work: Work) -> Row:
    """Cost of a run, and of a scheduled one its schedule, from the server's stamps."""
    first, last = min(one["body_ns"] for one in records), max(one["end_ns"] for one in records)
    tokens = sum(one["tokens"] for one in records)
    row: Row = {
        "sent": len(records),
        "tokens": tokens,
        "connections": len({one["conn"] for one in records}),
        "code": cost["code"],
        "cpu_s": cost["cpu_s"],
        "cpu_s_per_100k": cost["cpu_s"] / tokens * 1e5,
        "peak_pss_mib": cost["peak_pss_mib"],
        "processes": cost["processes"],
        "beyond_s": (cost["ended_ns"] - cost["began_ns"] - (last - first)) / 1e9,
        "to_first_request_s": (first - cost["began_ns"]) / 1e9,
    }
    if work.rate is not None:
        row |= schedule([one["body_ns"] for one in records], work.rate)
    return row


def schedule(arrivals_ns: list[int], rate: float) -> Row:
    """How well a constant rate was kept, from the arrivals at the server.

    The ideal schedule begins as early as one of the first arrivals allows. Lateness is against that: a tool that sends
    in bursts, or drifts, shows it there even when its mean rate is right.
    """
    arrivals = sorted(arrivals_ns)
    step = 1e9 / rate
    offsets = [at - number * step for number, at in enumerate(arrivals)]
    origin = min(offsets[: max(1, len(offsets) // 10)])
    late = sorted((one - origin) / 1e6 for one in offsets)
    span = arrivals[-1] - arrivals[0]
    return {
        "got_rate": (len(arrivals) - 1) / span * 1e9 if span else None,
        "late_p50_ms": late[len(late) // 2],
        "late_p99_ms": late[min(len(late) - 1, int(len(late) * 0.99))],
    }


def rounds(
    names: list[str],
    streams: list[int],
    rates: list[float],
    count: int,
    *,
    tokenizer: Path,
    out: Path,
    say: Callable[[str], None],
) -> list[Row]:
    """Every tool under every load, `count` times, in a new random order each round; rows are kept as they come."""
    order = random.Random(20260101)
    rows: list[Row] = []
    for number in range(count):
        jobs = [(name, concurrency_work(one)) for name in names for one in streams]
        jobs += [(name, rate_work(one)) for name in names for one in rates]
        order.shuffle(jobs)
        for name, work in jobs:
            load = f"c={work.concurrency}" if work.rate is None else f"{work.rate:g}/s"
            row = measure(name, work, tokenizer, out / f"{number}-{name}-{load.replace('/', '-')}")
            row["round"] = number
            rows.append(row)
            with (out / "rows.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            told = row.get("fatal") or f"{row['cpu_s']:.2f} CPU s, {row['completed']} completed"
            say(f"round {number + 1} of {count}: {name} {load}: {told}")
    return rows
