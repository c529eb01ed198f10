"""How gateways behave, by the harness's own rules: cancel, errors, stalls, drops, breakers, and a burst.

The probes judge every gateway by what Tailrace has to do; only Tailrace must pass. `stall` is judged with an idle
timeout, which the others do not have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness import Harness
from stand import Stand, TailraceOptions

IDLE_S = 2.0
"""Tailrace's default idle budget."""
FAILING = frozenset({"one_503", "all_500", "all_429", "breaker"})
"""Probes with an engine that fails. Each gets a gateway that has just started: a breaker that one of them opened would
decide the next, and the probes of other things."""
LIMIT, QUEUE = 4, 4
SMALL = TailraceOptions(
    config=f"lanes: [{{name: default, running: {LIMIT}, queued: {QUEUE}}}]\n", port=18021, admin=18121
)


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def behaviors(
    harness: Harness, stand: Stand, targets: list[dict[str, Any]], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row a gateway and probe, `ok` by the rule."""
    tests = list(harness.probes)
    groups = [[test for test in tests if test not in FAILING], *([test] for test in tests if test in FAILING)]
    file = stand.work / "targets-probed.json"
    rows: list[dict[str, Any]] = []
    for target in targets:
        name = target["name"]
        got: list[dict[str, Any]] = []
        for group in groups:
            stand.restart(target)
            file.write_text(json.dumps([target]))
            idle = ["--idle-timeout", str(IDLE_S)] if name == "tailrace" else []
            ended = harness.run("behaviors.py", "--targets", str(file), "--tests", ",".join(group), *idle)
            got += _lines(ended.stdout) or [
                {"target": name, "test": test, "ok": False, "exception": ended.stderr[-300:]} for test in group
            ]
        failed = [row["test"] for row in got if row["ok"] is False]
        kept = f"{len(got) - len(failed)} of {len(got)} rules"
        say(f"behaviour of {name}: {kept}{': not ' if failed else ''}{', '.join(failed)}")
        rows += got
    return rows


def overload(harness: Harness, stand: Stand, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A burst of 40 at a lane of 4 with 4 places to wait, and a client that leaves the queue."""
    target = stand.tailrace(SMALL, "tailrace-small")
    file = stand.work / "targets-small.json"
    file.write_text(json.dumps([target]))
    rows: list[dict[str, Any]] = []
    for extra in (["--queue", str(QUEUE)], ["--cancel-queued"]):
        ended = harness.run("overload.py", "--targets", str(file), "--limit", str(LIMIT), "--check", *extra)
        got = _lines(ended.stdout) or [{"broken_rules": [ended.stderr[-300:]]}]
        test = "burst" if "--queue" in extra else "cancel_queued"
        rows += [{**row, "target": "tailrace", "test": test, "ok": not row["broken_rules"]} for row in got]
    stand.stop(target)
    broken = [rule for row in rows for rule in row["broken_rules"]]
    say(f"overload: {'; '.join(broken) or 'all rules kept'}")
    return rows
