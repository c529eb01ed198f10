"""Tailrace against its budgets, from the rows of one run."""

from __future__ import annotations

from typing import Any, NamedTuple

import first_token
import soak
from stand import TITLES
from windows import Table

PACED_BUDGET, SINGLE_BUDGET = 2.5, 8.0
"""Multiples of nginx, and below of the Rust routers; why not less: docs/decisions/0013-relay-cost.md."""
ROUTER_BUDGETS = {"paced": 1.25, "single": 2.0}
LITELLM_FACTOR = 20.0
FIRST_TOKEN_MS = 1.0
ROUTERS = ("vllm-router", "sglang-router")
WORK = {"paced": "100k paced chunks", "single": "1,000 non-streamed requests"}


class Verdict(NamedTuple):
    """One budget: what it says, what was measured, whether it was kept."""

    budget: str
    measured: str
    kept: bool | None
    """None: not judged in this run."""


def against_nginx(table: Table) -> list[Verdict]:
    """CPU per unit of work, as a multiple of nginx: the median of the rounds' ratios."""
    out = []
    for group, limit in (("paced", PACED_BUDGET), ("single", SINGLE_BUDGET)):
        ratio = table.ratio("tailrace", "nginx", group)
        text = f"CPU per {WORK[group]} ≤ {limit:g} × nginx"
        out.append(Verdict(text, f"{ratio.text()} ×" if ratio else "-", ratio.median <= limit if ratio else None))
    return out


def against_routers(table: Table) -> list[Verdict]:
    """The Rust routers, which neither measure nor record: the median of the rounds' ratios."""
    out = []
    for router in ROUTERS:
        for group, limit in ROUTER_BUDGETS.items():
            ratio = table.ratio("tailrace", router, group)
            if ratio is None:
                continue
            text = f"CPU per {WORK[group]} ≤ {limit:g} × {router}"
            out.append(Verdict(text, f"{ratio.text()} ×", ratio.median <= limit))
    return out


def against_litellm(table: Table) -> list[Verdict]:
    """The gateway in the same language that most people run."""
    out = []
    for group in ("paced", "single"):
        ratio = table.ratio("litellm", "tailrace", group)
        if ratio is not None:
            text = f"CPU per {WORK[group]} at least {LITELLM_FACTOR:g} × below LiteLLM"
            out.append(Verdict(text, f"{ratio.text(0)} ×", ratio.median >= LITELLM_FACTOR))
    return out


def of_errors(table: Table) -> list[Verdict]:
    """Of Tailrace, in all windows."""
    errors = table.errors("tailrace")
    lost = sum(row["name"] == "tailrace" for row in table.fatal)
    return [Verdict("no failed request in any window", f"{errors} failed", errors == 0 and not lost)]


def of_first_token(rows: list[dict[str, Any]]) -> list[Verdict]:
    """Streamed and not, one warm connection."""
    out = []
    for mode, what in (("stream", "TTFT, streamed"), ("single", "answer, non-streamed")):
        spread = first_token.added(rows, "tailrace", mode)
        text = f"added to the {what}, one connection: < {FIRST_TOKEN_MS:g} ms"
        if spread is not None:
            out.append(Verdict(text, f"{spread.text()} ms", spread.median < FIRST_TOKEN_MS))
    return out


def of_conduct(rows: list[dict[str, Any]]) -> list[Verdict]:
    """The rules of the harness, one line each kind."""
    out = []
    for text, tests in (
        ("behaviour probes", lambda test: test not in {"burst", "cancel_queued"}),
        ("a burst and a client that leaves the queue", lambda test: test in {"burst", "cancel_queued"}),
    ):
        ours = [row for row in rows if row["target"] == "tailrace" and tests(row["test"])]
        failed = [row["test"] for row in ours if row["ok"] is not True]
        if ours:
            measured = f"{len(ours) - len(failed)} of {len(ours)}" + (f"; not {', '.join(failed)}" if failed else "")
            out.append(Verdict(text, measured, not failed))
    return out


def of_soak(rows: list[dict[str, Any]]) -> list[Verdict]:
    """No error, and memory flat."""
    ours = next((row for row in rows if row.get("name") == "tailrace"), None)
    if ours is None:
        return []
    streams = f"{ours.get('streams', 0):,} streams"
    if "fatal" in ours:
        return [Verdict(streams, ours["fatal"], kept=False)]
    out = [Verdict(f"{streams}: no error", f"{ours['errors']} errors", ours["errors"] == 0)]
    grown = soak.growth(ours)
    if grown is not None:
        early, late = grown
        flat = late <= early * (1 + soak.GROWTH)
        out.append(Verdict(f"{streams}: memory flat (± {soak.GROWTH:.0%})", f"{early:.0f} → {late:.0f} MB", flat))
    return out


def judge(parts: dict[str, Any]) -> list[Verdict]:
    """Every budget that this run can judge."""
    table = Table(parts["windows"])
    out = []
    if "tailrace" in table.names:
        out += [*against_nginx(table), *against_routers(table), *against_litellm(table), *of_errors(table)]
    return [
        verdict
        for verdict in [
            *out,
            *of_first_token(parts["first_token"]),
            *of_conduct(parts["conduct"]),
            *of_soak(parts["soak"]),
        ]
        if verdict.kept is not None
    ]


def title(name: str) -> str:
    """A gateway as a person calls it."""
    return TITLES.get(name, name)
