"""Run `bench/*.py` and print their results beside their budgets.

A benchmark prints what a person reads, or JSON lines with `name`, `value`, `unit`, and where there is a budget,
`budget` and `better` (`less` or `more`), which become a table. It measures CPU time or ratios, which a shared machine
distorts least, and may itself exit with another code than 0 when its budget is exceeded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(path: Path) -> tuple[list[dict[str, object]], int]:
    """(rows, exit code) of one benchmark; what is no row is printed as it comes."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    rows = []
    with subprocess.Popen([sys.executable, "-u", str(path)], stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        for line in child.stdout:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and {"name", "value", "unit"} <= row.keys():
                rows.append(row)
            else:
                print(line, end="", flush=True)
    return rows, child.returncode


def met(row: dict[str, object]) -> bool | None:
    budget, value = row.get("budget"), row["value"]
    if budget is None:
        return None
    return value >= budget if row.get("better", "less") == "more" else value <= budget  # type: ignore[operator]


def main(names: list[str]) -> int:
    # Ten minutes of pairs are asked for by name: `scripts/bench verdicts`.
    apart = ("__init__", "verdicts")
    known = {path.stem: path for path in sorted((ROOT / "bench").glob("*.py")) if path.stem not in apart}
    known["decision"] = ROOT / "bench" / "govern" / "decision.py"
    known["probe-cost"] = ROOT / "bench" / "probe" / "cost.py"
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(known) or 'none'}", file=sys.stderr)
        return 2
    status = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        rows, code = run(known[name])
        if code:
            print(f"{name:52} failed with exit code {code}")
            status = 1
        for row in rows:
            good = met(row)
            mark = {None: "", True: "ok", False: "OVER BUDGET"}[good]
            budget = "" if row.get("budget") is None else f"{row['budget']:,g}"
            print(f"{row['name']!s:52} {row['value']:>14,.4g} {row['unit']!s:14} {budget:>12} {mark}")
            status |= good is False
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
