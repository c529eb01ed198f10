"""How fast the simulated engine is: requests per second of CPU time, records included.

    python bench/simulate.py [TRACE.csv]

Without a trace, lengths are drawn like those of the Azure 2023 conversation trace. Every load is the same requests,
played faster. KV blocks are on, records are built (gaps, stalls, kept timelines), nothing is written.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from tailrace.simulate.presets import preset
from tailrace.simulate.run import VirtualRun, from_trace
from tailrace.workload.trace import TraceRow, read_trace

SPEEDS = (1.0, 1.2, 1.4, 2.0, 4.0)
BUDGET = 5_000


def drawn(count: int = 19_366) -> list[TraceRow]:
    rng = np.random.default_rng(1)
    at = np.cumsum(rng.exponential(1 / 5.53, count) * 1e9).astype(int)
    prompts = np.clip(1020 * np.exp(0.77 * rng.standard_normal(count)), 1, 14_050).astype(int)
    outputs = np.clip(129 * np.exp(0.93 * rng.standard_normal(count)), 1, 1000).astype(int)
    return [TraceRow(*row) for row in zip(at.tolist(), prompts.tolist(), outputs.tolist(), strict=True)]


def main() -> None:
    rows = read_trace(Path(sys.argv[1]).read_text().splitlines()) if len(sys.argv) > 1 else drawn()
    chosen = preset("a100-llama3-8b")
    knobs = msgspec.structs.replace(chosen.knobs, max_model_len=16_384)
    print(f"{len(rows)} requests, {chosen.name}, budget {knobs.max_num_batched_tokens}, {knobs.num_gpu_blocks} blocks")
    slowest = float("inf")
    for keep in ("sampled", "all"):
        for speed in SPEEDS:
            faster = [row._replace(at_ns=int(row.at_ns / speed)) for row in rows]
            run = VirtualRun(knobs, chosen.cost(), keep_timelines=keep)
            begin = time.process_time()
            records = sum(1 for _ in run.records(from_trace(faster)))
            cpu = time.process_time() - begin
            slowest = min(slowest, records / cpu)
            steps = run.counters.steps
            print(
                f"timelines {keep:8}  load x{speed:<4}  {records / cpu:9,.0f} requests/s of CPU  "
                f"{steps:8,} steps ({steps / cpu:11,.0f}/s)  {run.counters.preemptions:5} preemptions  "
                f"mean queue {run.counters.queue_ps / run.counters.scheduled / 1e12:8.3f} s"
            )
    print(f"slowest {slowest:,.0f} requests/s; budget {BUDGET:,}: {'met' if slowest >= BUDGET else 'MISSED'}")
    raise SystemExit(slowest < BUDGET)


if __name__ == "__main__":
    main()
