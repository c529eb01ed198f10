"""The list of commands: what each is for, and the module that holds it. Importing this loads no command."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """One verb of the command line."""

    group: str
    help: str
    example: str
    module: str


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "run", "the whole story in a minute and a half, without a GPU", "tailrace demo", "tailrace.cli.demo"
    ),
    "serve": Command(
        "run",
        "the gateway: records, dashboards, lanes, budgets",
        "tailrace serve --upstream http://localhost:8000",
        "tailrace.cli.serve",
    ),
    "engine": Command(
        "run",
        "the simulated engine as a real OpenAI server",
        "tailrace engine --preset a100-llama3-8b --port 8000",
        "tailrace.cli.engine",
    ),
    "top": Command("see", "live terminal view of a gateway", "tailrace top http://127.0.0.1:9480", "tailrace.cli.top"),
    "report": Command(
        "see",
        "one page with every figure of a run or a sweep; opens offline",
        "tailrace report before.run --open",
        "tailrace.cli.report",
    ),
    "records": Command(
        "see",
        "query and export the records a gateway has kept",
        "tailrace records query --slowest 10",
        "tailrace.cli.records",
    ),
    "explain": Command(
        "see",
        "one request: when it waited, and for whom",
        "tailrace explain worst before.run",
        "tailrace.cli.explain",
    ),
    "bench": Command(
        "measure",
        "load a server and record every event's time",
        "tailrace bench http://localhost:8000 --rate 5 --duration 60 --out before.run",
        "tailrace.cli.bench",
    ),
    "compare": Command(
        "measure",
        "did the change help? a verdict with intervals",
        "tailrace compare before.run after.run",
        "tailrace.cli.compare",
    ),
    "ab": Command(
        "measure",
        "two arms in turn, round by round, and a verdict",
        "tailrace ab --a http://old:8000 --b http://new:8000 --rate 5 --duration 60",
        "tailrace.cli.ab",
    ),
    "history": Command(
        "measure",
        "many runs: when did the level change?",
        "tailrace history runs/ --file history.jsonl",
        "tailrace.cli.history",
    ),
    "replay": Command(
        "measure",
        "one recorded request again, alone or among its neighbours",
        "tailrace replay worst http://localhost:8000 --records before.run",
        "tailrace.cli.replay",
    ),
    "diagnose": Command("decide", "why is the tail slow?", "tailrace diagnose after.run", "tailrace.cli.diagnose"),
    "check": Command(
        "decide",
        "an engine's options: what is wrong, what would help, at what price",
        "tailrace check http://localhost:8000 --lengths before.run",
        "tailrace.cli.check",
    ),
    "simulate": Command(
        "decide",
        "run a workload on the simulated engine in virtual time",
        "tailrace simulate --rate 7 --requests 2000 --out sim.run",
        "tailrace.cli.simulate",
    ),
    "canary": Command(
        "operate",
        "where the canary stands; pin, pause, resume, promote or abort it",
        "tailrace canary status http://127.0.0.1:9480",
        "tailrace.cli.canary",
    ),
    "selftest": Command(
        "operate",
        "check this installation against streams of known truth",
        "tailrace selftest",
        "tailrace.cli.selftest",
    ),
}

_GROUPS = ("run", "see", "measure", "decide", "operate")


def render_help() -> str:
    """The text of `tailrace --help`."""
    width = max(len(name) for name in COMMANDS)
    lines = [
        "Usage: tailrace COMMAND [OPTIONS]",
        "",
        "Shows where every millisecond of an LLM or speech request went, says why the",
        "tail is slow, helps fix it, and proves that the fix worked.",
    ]
    for group in _GROUPS:
        members = [(name, command) for name, command in COMMANDS.items() if command.group == group]
        if not members:
            continue
        lines += ["", f"{group}:"]
        for name, command in members:
            lines.append(f"  {name:{width}}  {command.help}")
            lines.append(f"    {command.example}")
    lines += [
        "",
        "`tailrace COMMAND --help` shows a command's options; `--json` prints its result",
        "as JSON.",
        "Exit codes: 0 done; 1 the answer is the one that --fail-on named; 2 usage or",
        "input error; 3 inconclusive, where --fail-on inconclusive asks, and always when",
        "the client was the limit.",
        "",
    ]
    return "\n".join(lines)
