"""The same load on an engine directly and through the gateway before it, in turns, and whether the results agree."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tailrace.stats.quantiles import quantile_interval, supported
from tailrace.store.run_file import read_run
from tests.children import child_env, health_code, tailrace_command

METRICS = ("ttft_ns", "tpot_ns", "e2e_last_token_ns", "chunk_gap_max_ns")
QUANTILES = (0.5, 0.9, 0.95, 0.99)


def _bench(url: str, args: tuple[str, ...], folder: Path) -> list[RequestRecord]:
    command = tailrace_command("bench", url, *args, "--json", "--out", "a.run")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=folder, env=child_env(), check=False
    )
    assert done.returncode == health_code(folder / "a.run"), done.stderr
    assert json.loads(done.stdout)["errors"] == {}
    return read_run(folder / "a.run").records


def in_turns(
    direct: str, gateway: str, args: tuple[str, ...], folder: Path, *, rounds: int, before: Callable[[], None]
) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """All records of both ways. Each goes first in every other round, so that a drift of the machine favours nobody."""
    found: dict[str, list[RequestRecord]] = {direct: [], gateway: []}
    for number in range(rounds):
        for url in (direct, gateway) if number % 2 == 0 else (gateway, direct):
            before()
            found[url] += _bench(url, args, folder)
    return found[direct], found[gateway]


def apart(direct: list[RequestRecord], through: list[RequestRecord]) -> list[str]:
    """Each percentile whose 95 % intervals do not meet, and every difference in what was counted."""
    out = []
    for name in ("output_tokens", "outcome"):
        counted = [sorted(str(getattr(record, name)) for record in records) for records in (direct, through)]
        if counted[0] != counted[1]:
            out.append(f"{name} differ")
    assert {record.outcome for record in direct} == {OutcomeKind.COMPLETED}
    for metric in METRICS:
        arms = [np.array([getattr(record, metric) for record in records]) / MS for records in (direct, through)]
        for p in QUANTILES:
            if not supported(p, min(len(arm) for arm in arms)):
                continue
            (low_a, high_a), (low_b, high_b) = (quantile_interval(arm, p) for arm in arms)
            if max(low_a or 0.0, low_b or 0.0) > min(_bound(high_a), _bound(high_b)):
                out.append(f"{metric} p{p * 100:g}: {low_a}..{high_a} directly, {low_b}..{high_b} through the gateway")
    return out


def _bound(value: float | None) -> float:
    return float("inf") if value is None else value
