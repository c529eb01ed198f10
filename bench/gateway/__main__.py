"""Tailrace beside other gateways, in one interleaved run: CPU for a unit of work, delays, behaviour, a soak.

    scripts/bench gateway                 # everything, about forty minutes; renews docs/benchmarks.md
    scripts/bench gateway --quick         # two minutes: nginx, ref-raw and Tailrace, one round, no soak; writes no page

Exit 1 when a budget is broken. Rows go to .cache/bench/gateway/TIME/; `--from DIR` judges and writes an earlier run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import signal
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

import conduct
import first_token
import page
import soak
import stand as stands
import windows
from harness import ROOT, Harness, HarnessAbsentError
from verdicts import PACED_BUDGET, SINGLE_BUDGET, Verdict, judge, title

SCRAPE_S = 5.0
"""How often Tailrace's metrics are read while it is measured, as a Prometheus would."""


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds [5]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window [5]")
    parser.add_argument("--peers", default=",".join(stands.ALL), help="[%(default)s]")
    parser.add_argument("--scenarios", default=",".join([*windows.PACED, *windows.SINGLE]), help="[%(default)s]")
    parser.add_argument("--streams", type=int, default=1000, help="of the soak [1000]; 0: no soak")
    parser.add_argument("--soak-seconds", type=float, default=60.0, help="[60]")
    parser.add_argument("--behaviors", default="all", help="gateways whose behaviour is probed [all]; none: nobody's")
    parser.add_argument("--quick", action="store_true", help="a look: few peers, one round, no soak, no page")
    parser.add_argument("--no-page", action="store_true", help="leave docs/benchmarks.md alone")
    parser.add_argument("--page", default=str(page.PAGE), help="where the results go [docs/benchmarks.md]")
    parser.add_argument("--from", dest="source", metavar="DIR", help="judge and write an earlier run's rows")
    args = parser.parse_args()
    if args.quick:
        given = parser.parse_args([])
        for name, quick in (("rounds", 1), ("seconds", 2.0), ("peers", "direct,nginx,ref-raw,tailrace")):
            if getattr(args, name) == getattr(given, name):
                setattr(args, name, quick)
        args.streams, args.behaviors, args.no_page = 0, "tailrace", True
    args.names = [name for name in args.peers.split(",") if name]
    unknown = [name for name in args.names if name not in stands.ALL]
    if unknown or "tailrace" not in args.names:
        parser.error(f"--peers: choose from {', '.join(stands.ALL)}, tailrace among them")
    return args


def machine() -> str:
    """Its processor, cores, memory, system."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    system = f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    return f"{model}, {cores} cores, {memory:.0f} GiB, {system}"


def scraper(admin: str, ended: threading.Event) -> threading.Thread:
    """Reads `/metrics` now and then."""

    def scrape() -> None:
        while not ended.wait(SCRAPE_S):
            # It is away for a second where its behaviour is probed.
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{admin}/metrics", timeout=10) as answer:
                answer.read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    return thread


def measure(args: argparse.Namespace, harness: Harness, out: Path) -> dict[str, Any]:
    """Every part, with all gateways up at once."""
    files = soak.raise_file_limit()
    started = dt.datetime.now(dt.UTC)
    parts: dict[str, Any] = {"first_token": [], "conduct": [], "soak": []}
    with (
        tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder,
        stands.Stand(harness, Path(folder), say) as stand,
    ):
        targets = [stand.target(name) for name in args.names]
        ended = threading.Event()
        scraping = scraper(next(target["admin"] for target in targets if target["name"] == "tailrace"), ended)
        windows.warm_up(harness, targets)
        parts["windows"] = windows.measure(
            harness,
            targets,
            stand.mock_pid,
            out / "windows.jsonl",
            scenarios=tuple(args.scenarios.split(",")),
            rounds=args.rounds,
            seconds=args.seconds,
            say=say,
        )
        rounds, seconds = min(3, args.rounds), min(2.0, args.seconds)
        parts["first_token"] = first_token.measure(harness, targets, rounds=rounds, seconds=seconds, say=say)
        probed = {"all": args.names, "none": []}.get(args.behaviors, args.behaviors.split(","))
        watched = [target for target in targets if target["name"] in probed and target["name"] != "direct"]
        parts["conduct"] = conduct.behaviors(harness, stand, watched, say)
        if "tailrace" in probed:
            parts["conduct"] += conduct.overload(harness, stand, say)
        ended.set()
        scraping.join(10)
        if args.streams:
            parts["soak"] = soaks(args, harness, stand, targets)
        parts["conditions"] = conditions(args, parts["windows"], started, files)
    return parts


def soaks(
    args: argparse.Namespace, harness: Harness, stand: stands.Stand, targets: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The floor, the yardstick, and ourselves with a lane that is wide enough."""
    wide = f"lanes: [{{name: default, running: {2 * args.streams}, queued: 1024}}]\n"
    ours = stand.tailrace(stands.TailraceOptions(wide, 18022, 18122), "tailrace-wide") | {"name": "tailrace"}
    chosen = [target for target in targets if target["name"] in {"direct", "nginx"}] + [ours]
    shape = {"streams": args.streams, "seconds": args.soak_seconds, "say": say}
    return [soak.measure(harness, target, stand.mock_pid, **shape) for target in chosen]


def conditions(
    args: argparse.Namespace, rows: list[dict[str, Any]], started: dt.datetime, files: int
) -> dict[str, Any]:
    load = [row["load1"] for row in rows]
    ours = [row.get("loadgen_cpu_util", 0) + row.get("mock_cpu_util", 0) for row in rows]
    return {
        "date": f"{started:%Y-%m-%d %H:%M} UTC",
        "machine": machine(),
        "rounds": f"{args.rounds} interleaved rounds, windows of {args.seconds:g} s, gateways in a new random order in "
        "each scenario of each round",
        "load": f"Load average {min(load):.1f} to {max(load):.1f} during the windows; load generator and mock engine "
        f"used at most {max(ours):.2f} cores",
        "note": "Everything runs on this one machine, so latencies hold the generator's and the mock engine's share; "
        "CPU ratios within a round are the figures to quote. Tailrace runs with its defaults: records to disk, "
        f"metrics (read every {SCRAPE_S:g} s), one lane, all budgets; one process. nginx and haproxy: one worker; the "
        f"Rust routers: their defaults; LiteLLM: one worker, no database. Open files: {files}.",
        "versions": {name: stands.version(name) for name in args.names if name != "direct"},
    }


def report(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        mark = "ok" if verdict.kept else "BROKEN"
        print(f"{mark:7} {verdict.budget:72} {verdict.measured}")


def gates(harness: Harness, parts: dict[str, Any], out: Path) -> list[str]:
    """The harness's own gate, set to the same numbers. It pools the rounds, so a slow one weighs more."""
    lines = []
    for group, limit in (("paced", PACED_BUDGET), ("single", SINGLE_BUDGET)):
        rows = [row for row in parts["windows"] if row["scenario"] in windows.GROUPS[group]]
        if not rows:
            continue
        file = out / f"{group}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        ended = harness.run("summarize.py", str(file), "--gate", "tailrace", "--max-ratio", str(limit))
        line = next((line for line in ended.stdout.splitlines() if line.startswith("gate:")), "gate: did not run")
        lines.append(f"the harness's own {line} ({group}, at most {limit:g} × nginx, pooled)")
    return lines


def run(args: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Measure; the parts and the folder that keeps them."""
    harness = Harness.find()
    for name in list(args.names):
        if why := stands.absent(name):
            print(f"scripts/bench gateway: without {title(name)}: {why}", file=sys.stderr)
            args.names.remove(name)
    out = ROOT / ".cache" / "bench" / "gateway" / f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    out.mkdir(parents=True)
    parts = measure(args, harness, out)
    parts["gates"] = gates(harness, parts, out)
    (out / "parts.json").write_text(json.dumps(parts))
    return parts, out


def main() -> int:
    args = arguments()
    # A stop from outside ends what was started here too; a shell starts background commands deaf to SIGINT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(130))
    if args.source:
        out = Path(args.source)
        parts = json.loads((out / "parts.json").read_text())
        with contextlib.suppress(HarnessAbsentError):  # judged anew where it can be: a budget may have changed since
            parts["gates"] = gates(Harness.find(), parts, out)
    else:
        try:
            parts, out = run(args)
        except (HarnessAbsentError, stands.StartError) as error:
            print(f"scripts/bench gateway: {error}", file=sys.stderr)
            return 2
    verdicts = judge(parts)
    text = page.section(parts, verdicts)
    print(text)
    report(verdicts)
    for line in parts.get("gates", []):
        print(line)
    if not args.no_page:
        page.write(text, Path(args.page))
        print(f"written into {args.page}; rows in {out}", file=sys.stderr)
    return int(any(verdict.kept is False for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
