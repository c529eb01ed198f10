"""Reads the shared measurements: kernel tables, recorded runs, traces."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from tailrace.simulate.engine import Engine
from tailrace.simulate.kernel_table import KernelTableCost
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.request import SimRequest
from tests.conftest import shared_path

MODEL = "Llama-3.1-8B"


def data() -> Path:
    return shared_path() / "data"


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def table_cost(hardware: str, **options) -> KernelTableCost:
    folder = data() / "profiles" / "llmservingsim" / hardware / MODEL / "tp1"
    dense, per_sequence = (
        [(name, float(n), float(us)) for name, n, us in rows(folder / file)]
        for file in ("dense.csv", "per_sequence.csv")
    )
    attention = [tuple(float(x) for x in row) for row in rows(folder / "attention.csv")]
    return KernelTableCost(dense, per_sequence, attention, layers=32, **options)


def recorded(hardware: str) -> list[dict]:
    path = data() / "groundtruth" / "llmservingsim_vllm0.19" / hardware / MODEL / "requests.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


class Replay:
    """A recorded run replayed on the engine, and what both say (seconds), request by request."""

    def __init__(self, hardware: str, knobs: EngineKnobs, cost) -> None:
        run = sorted(recorded(hardware), key=lambda row: row["queued_ts"])
        begin = run[0]["queued_ts"]
        self.engine = Engine(knobs, cost)
        self.requests = [
            SimRequest(
                row["request_id"], row["input_toks"], row["output_toks"], round((row["queued_ts"] - begin) * 1e12)
            )
            for row in run
        ]
        for request in self.requests:
            self.engine.submit(request)
        self.engine.advance()
        self.real = {
            "ttft": np.array([row["first_token_ts"] - row["queued_ts"] for row in run]),
            "tpot": np.array([(r["last_token_ts"] - r["first_token_ts"]) / (r["output_toks"] - 1) for r in run]),
            "latency": np.array([row["last_token_ts"] - row["queued_ts"] for row in run]),
        }
        self.simulated = {
            "ttft": np.array([(r.first_at - r.arrival) / 1e12 for r in self.requests]),
            "tpot": np.array([(r.ended_at - r.first_at) / 1e12 / (r.output - 1) for r in self.requests]),
            "latency": np.array([(r.ended_at - r.arrival) / 1e12 for r in self.requests]),
        }
        self.real_makespan = max(row["last_token_ts"] for row in run) - begin
        self.makespan = self.engine.now / 1e12

    def error(self, metric: str, statistic=np.mean, where=slice(None)) -> float:
        """(simulated - real) / real."""
        real = statistic(self.real[metric][where])
        return (statistic(self.simulated[metric][where]) - real) / real


def p99(values) -> float:
    return float(np.percentile(values, 99))
