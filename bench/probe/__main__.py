"""Load generators against a server whose timing is known: Tailrace, vLLM's benchmark functions, GuideLLM and AIPerf.

    scripts/bench probe                   # five rounds, about an hour; renews docs/benchmarks.md
    scripts/bench probe --quick           # a look: one round at 32 streams, Tailrace and vLLM's functions; no page
    scripts/bench probe --rounds 1 --streams 32 --rates 200 --no-page

Each tool runs as its users run it (vLLM's functions: their command line needs the whole engine), in an environment of
its own under .cache/peers. Exit 1 when a budget of the cost is broken. Rows go to .cache/bench/probe/TIME/;
`--from DIR` judges and writes an earlier run.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import page
import tools
import truth_server
import windows
from truth_server import ROOT, TruthAbsentError

QUIET_MS = 20.0
"""The server is never this late (p99) against its own plan while a light tool loads it on a machine of its own."""


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench probe", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="in each, every tool under every load [5]")
    parser.add_argument("--tools", default=",".join(tools.TOOLS), help="[%(default)s]")
    parser.add_argument("--streams", default="32,128", help="closed loops: so many at once [%(default)s]; none: none")
    parser.add_argument("--rates", default="50,200,500", help="open loops: requests a second [%(default)s]; none: none")
    parser.add_argument("--quick", action="store_true", help="a look: one round, 32 streams, two tools, no page")
    parser.add_argument("--no-page", action="store_true", help="leave docs/benchmarks.md alone")
    parser.add_argument("--page", default=str(page.PAGE), help="where the results go [docs/benchmarks.md]")
    parser.add_argument("--from", dest="source", metavar="DIR", help="judge and write an earlier run's rows")
    args = parser.parse_args()
    if args.quick:
        given = parser.parse_args([])
        quick = {"rounds": 1, "tools": "tailrace,vllm", "streams": "32", "rates": "none"}
        for name, value in quick.items():
            if getattr(args, name) == getattr(given, name):
                setattr(args, name, value)
        args.no_page = True
    args.names = [name for name in args.tools.split(",") if name]
    unknown = [name for name in args.names if name not in tools.TOOLS]
    if unknown:
        parser.error(f"--tools: no {', '.join(unknown)}; there are {', '.join(tools.TOOLS)}")
    try:
        args.closed = [] if args.streams == "none" else [int(one) for one in args.streams.split(",")]
        args.open = [] if args.rates == "none" else [float(one) for one in args.rates.split(",")]
    except ValueError:
        parser.error("--streams and --rates: numbers with commas between them, or none")
    return args


def machine() -> str:
    """Its processor, cores, memory, system."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {system}"


def tokenizer(names: list[str], out: Path) -> Path:
    """A local tokenizer for the tools that insist on one, in whose vocabulary each word of the server is one token."""
    folder = out / "tokenizer"
    needy = next((name for name in names if name in ("aiperf", "guidellm")), None)
    if needy is not None:
        python = tools.PEERS / needy / "bin" / "python"
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(
            [python, "make_tokenizer.py", str(folder)], cwd=truth_server.folder(), check=True, env=env,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return folder


def conditions(args: argparse.Namespace, rows: list[dict[str, Any]], started: dt.datetime) -> dict[str, Any]:
    load = [row["load1"] for row in rows]
    late = [row["server_late_p99_ms"] for row in rows if "server_late_p99_ms" in row]
    text = f"Load average {min(load):.1f} to {max(load):.1f} when the windows began"
    if late:
        text += f"; the server was at most {max(late):.1f} ms late at p99 against its own plan"
    ours = [row["server_late_p99_ms"] for row in rows if row["tool"] == "tailrace" and "server_late_p99_ms" in row]
    if ours and max(ours) > QUIET_MS:
        text += ". **Something else kept this machine busy: measure again when it is quiet**"
    return {
        "date": f"{started:%Y-%m-%d %H:%M} UTC",
        "machine": machine(),
        "rounds": f"{args.rounds} round{'s' * (args.rounds > 1)}, in each every tool under every load once, in a new "
        "random order",
        "load": text,
        "note": "Server and tool share this one machine. Truth is the server's own stamp right before each write, "
        "counted from the arrival of the request's last byte, so a tool's error holds its own way of sending. Scenario "
        "`mixed`: first token after 80 ms + Exp(60 ms), gaps of 20 ms × LogNormal(0.15), 1 % stalls of 180 ms; answers "
        f"of {windows.TOKENS} tokens, ten for each stream. CPU is user and system time of the whole process tree, "
        "imports included. Schedules: constant arrivals of two-token answers for "
        f"{windows.RATE_SECONDS:g} s, judged by their arrival at the server. vLLM's functions run without its command "
        "line, which needs the whole engine, and without a tokenizer: that spares them its imports.",
        "versions": {name: tools.version(name) for name in args.names},
    }


def run(args: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Measure; the parts and the folder that keeps them."""
    truth_server.folder()
    for name in list(args.names):
        if why := tools.TOOLS[name].absent():
            print(f"scripts/bench probe: without {tools.TOOLS[name].title}: {why}", file=sys.stderr)
            args.names.remove(name)
    started = dt.datetime.now(dt.UTC)
    out = ROOT / ".cache" / "bench" / "probe" / f"{started:%Y%m%d-%H%M%S}"
    out.mkdir(parents=True)
    rows = windows.rounds(
        args.names, args.closed, args.open, args.rounds, tokenizer=tokenizer(args.names, out), out=out, say=say
    )
    parts = {"rows": rows, "conditions": conditions(args, rows, started)}
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
    else:
        try:
            parts, out = run(args)
        except TruthAbsentError as error:
            print(f"scripts/bench probe: {error}", file=sys.stderr)
            return 2
    text = page.section(parts)
    print(text)
    if not args.no_page:
        page.write(text, Path(args.page))
        print(f"written into {args.page}; rows in {out}", file=sys.stderr)
    judged = page.verdicts(page.Rows(parts["rows"]))
    return int(any(kept is False for _, _, kept in judged) or any("fatal" in row for row in parts["rows"]))


if __name__ == "__main__":
    sys.exit(main())
