"""What a diagnosis of a million records costs: CPU seconds and the peak of resident memory, each in a fresh process.

    python bench/diagnose.py [--rows N] [--stamps N]

Three cases. `table`: records that are in memory, as a program has them. `directory`: a gateway's data directory of
sealed segments, read and diagnosed by `tailrace diagnose DIRECTORY`. `run`: a run file of the same requests. Writing
them is not counted. Chat with a tenth of documents
on two engines of unequal load, one of which stops as a whole again and again in the last fifth of the window; every
slow request and one in a hundred of the others has its timeline, of 24 stamps, or up to `--stamps N`.
One core: numpy and DuckDB are told to use one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS = 1_000_000
BUDGET_S = 10.0
BUDGET_MB = 1500.0
STAMPS = 24
"""Stamps that a kept timeline has at most, unless `--stamps` says otherwise."""
_INCIDENT = 0.8
"""From this share of the window on, one engine stops as a whole every twenty seconds: findings cost more than none."""
_SLOW_READERS = 0.05
"""So many clients do not take what was sent to them: a cause that is found, whose finding is written out."""
_RATE = 200.0
_START = 1_700_000_000_000_000_000


def table(rows: int, stamps_each: int = STAMPS):  # noqa: PLR0915  (one statement a column)
    """A window of `rows` requests; what no gateway knows is absent."""
    from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable
    from tailrace.store.timelines import Packed, Timelines

    draw = np.random.default_rng(1)
    long = draw.random(rows) < 0.1
    tenant = draw.choice(np.array(["red", "blue", "green", "grey"], dtype=object), rows, p=[0.1, 0.5, 0.3, 0.1])
    backend = np.where(draw.random(rows) < 0.7, "engine-a", "engine-b").astype(object)
    prompt = np.where(long, draw.integers(4000, 8000, rows), draw.integers(50, 1500, rows)).astype(float)
    output = draw.integers(20, 300, rows).astype(float)
    queue_gateway = np.round(draw.exponential(2e6, rows))
    waits = draw.random(rows) < 0.04
    queue_engine = np.round(np.where(waits, draw.exponential(9e8, rows), draw.exponential(4e6, rows)))
    prefill = np.round(prompt * 6e4 * draw.lognormal(0, 0.2, rows))
    pace = 2e7 * draw.lognormal(0, 0.15, rows)
    stall = np.where(draw.random(rows) < 0.03, draw.uniform(6e8, 2e9, rows), 0.0)
    start = np.cumsum(draw.exponential(1e9 / _RATE, rows))
    first = start + queue_gateway + queue_engine + prefill
    # Where in its answer each request stands still: in the middle, or where its engine does.
    at = output // 2
    begins = np.arange(_INCIDENT * start[-1], start[-1], 20e9)
    lengths = draw.uniform(0.8e9, 2e9, begins.size)
    which = np.clip(np.searchsorted(begins, first), 0, begins.size - 1)
    token = np.ceil((begins[which] - first) / pace)
    hit = (backend == "engine-a") & (token >= 1) & (token < output)
    stall = np.where(hit, lengths[which], stall)
    at = np.where(hit, token, at)
    decode = np.round(output * pace + stall)
    reads_late = draw.random(rows) < _SLOW_READERS
    response = np.round(np.where(reads_late, draw.exponential(3e9, rows), draw.exponential(1e6, rows)))
    ttft = queue_gateway + queue_engine + prefill
    numbers = {
        "start_unix_ns": _START + start.astype(np.int64),
        "e2e_ns": (ttft + decode + response).astype(np.int64),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "ingress_ns": np.zeros(rows),
        "queue_ns": queue_gateway + queue_engine,
        "queue_gateway_ns": queue_gateway,
        "queue_engine_ns": queue_engine,
        "prefill_ns": prefill,
        "decode_ns": decode,
        "response_ns": response,
        "ttft_ns": ttft,
        "e2e_last_token_ns": ttft + decode,
        "tpot_ns": np.round(decode / output),
        "chunk_gap_count": output.astype(np.int64),
        "chunk_gap_p50_ns": np.round(pace),
        "chunk_gap_p95_ns": np.round(pace * 1.4),
        "chunk_gap_max_ns": np.round(np.maximum(pace * 2, stall)),
        "running_at_admission": draw.integers(10, 60, rows).astype(float),
        "waiting_at_admission": (queue_engine > 5e7).astype(float),
        "kv_usage_at_admission": draw.uniform(0.2, 0.7, rows),
        "gateway_overhead_ns": np.round(draw.exponential(2e5, rows)),
        "loop_lag_ns": np.round(draw.exponential(5e5, rows)),
        "client_blocked_ns": response.astype(np.int64),
        "http_status": np.full(rows, 200.0),
    }
    ids = np.empty(rows, dtype=object)
    ids[:] = [f"req-{number:012x}" for number in range(rows)]
    texts = {"request_id": ids, "tenant": tenant, "backend": backend}
    alike = {"outcome": "completed", "model": "llama-3-8b", "engine": "vllm", "lane": "default", "route": "stable"}
    alike |= {"endpoint": "/v1/chat/completions", "vantage": "gateway", "chunk_gap_method": "exact"}
    sources = dict.fromkeys(("ingress", "decode", "response"), "measured")
    sources |= dict.fromkeys(("queue", "prefill"), "reported(metrics)")
    columns = {}
    for name in FIELDS:
        if name in numbers:
            columns[name] = numbers[name]
        elif name in texts:
            columns[name] = texts[name]
        else:
            columns[name] = _alike(name, KINDS[name], ColumnKind, alike.get(name, ""), sources, rows)
    slow = (stall > 0) | (ttft > 5e8)
    kept = np.flatnonzero(slow | (draw.random(rows) < 0.01))
    columns["keep_weight"] = np.where(slow, 1.0, 100.0)
    sizes = np.minimum(output[kept], stamps_each).astype(np.int64)
    # Of long answers the stamps around their stop, as thinning keeps the longest gaps.
    skipped = np.clip(at[kept] - sizes // 2, 0, output[kept] - sizes)
    ends = np.cumsum(sizes)
    of = np.repeat(kept, sizes)
    step = np.arange(ends[-1]) - np.repeat(ends - sizes - skipped, sizes)
    stamps = (ttft[of] + step * pace[of] + np.where(step >= at[of], stall[of], 0.0)).astype(np.int64)
    one = np.ones(stamps.size, dtype=np.int32)
    held = Packed(
        np.concatenate([[0], ends]),
        stamps,
        np.zeros(stamps.size, dtype=np.int8),
        one,
        np.zeros(len(kept), np.int64),
        {},
    )
    slot = np.full(rows, -1, dtype=np.int64)
    slot[kept] = np.arange(len(kept))
    return RecordTable(columns, Timelines(slot, held)), len(kept)


def _alike(name, kind, kinds, text, sources, rows):
    """A column of one value."""
    if kind is kinds.OBJECT:
        value = sources if name == "stage_sources" else [] if name == "slow" else {}
        out = np.empty(rows, dtype=object)
        out[:] = [value] * rows
        return out
    if kind in (kinds.TEXT, kinds.ENUM):
        return np.broadcast_to(np.array([text], dtype=object), (rows,))
    if kind is kinds.BOOLEAN:
        return np.broadcast_to(np.array([name == "stream"]), (rows,))
    if kind is kinds.INTEGER:
        return np.broadcast_to(np.array([1 if name in ("schema", "attempts", "n", "best_of", "beam") else 0]), (rows,))
    return np.broadcast_to(np.array([1.0 if kind is kinds.FLOAT else np.nan]), (rows,))


def write(rows: int, root: Path, stamps: int) -> None:
    """A data directory of sealed segments."""
    from tailrace.store.layout import DataDirectory
    from tailrace.store.parquet_file import connect, copy_to_parquet, register_table
    from tailrace.store.segment import SegmentName

    directory = DataDirectory(root)
    directory.prepare()
    whole, _ = table(rows, stamps)
    size = 50_000
    for number, first in enumerate(range(0, rows, size), start=1):
        part = whole.where(np.arange(first, min(first + size, rows)))
        starts = part.column("start_unix_ns")
        name = SegmentName(int(starts.min()), int(starts.max()), len(part), "bench", number, number)
        with connect(threads=1) as connection:
            select = register_table(connection, "part", part)
            segments = directory.segments
            copy_to_parquet(connection, select, name.temporary(segments), name.path(segments))


def write_run(rows: int, path: Path, stamps: int) -> None:
    """A run file."""
    from tailrace.store.run_file import Arrival, RunHeader, RunTrailer, RunWriter

    whole, _ = table(rows, stamps)
    size = 20_000
    writer = RunWriter(path, RunHeader(arrival=Arrival(kind="poisson", rate=_RATE)))
    for first in range(0, rows, size):
        writer.write_all(whole.where(np.arange(first, min(first + size, rows))).records())
    writer.close(RunTrailer(n=rows, duration_s=rows / _RATE))


def case(name: str, rows: int, root: str, stamps: int) -> None:
    """Run one case in this process and print its rows."""
    if name == "table":
        made, kept = table(rows, stamps)
        from tailrace.diagnose.engine import diagnose
        from tailrace.diagnose.evidence import EvidenceSet

        before = time.process_time()
        found = diagnose(EvidenceSet(made))
        spent = time.process_time() - before
        said = f"{rows:,} records, {kept:,} timelines"
    else:
        from tailrace.app.diagnose import diagnose_sources

        before = time.process_time()
        found = diagnose_sources([root])
        spent = time.process_time() - before
        said = f"{rows:,} records of a {'run file' if name == 'run' else 'data directory'}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{said}: {[one.code for one in found.findings]}, {len(found.attribution)} attributions", flush=True)
    for what, value, unit, budget in (("CPU", spent, "s", BUDGET_S), ("peak RSS", peak, "MB", BUDGET_MB)):
        row = {"name": f"diagnose {name} {what}", "value": value, "unit": unit, "budget": budget}
        print(json.dumps(row), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--stamps", type=int, default=STAMPS)
    parser.add_argument("--case", choices=("table", "directory", "write", "run", "write-run"))
    parser.add_argument("--root", default="")
    given = parser.parse_args()
    if given.case == "write":
        write(given.rows, Path(given.root), given.stamps)
        return 0
    if given.case == "write-run":
        write_run(given.rows, Path(given.root), given.stamps)
        return 0
    if given.case:
        case(given.case, given.rows, given.root, given.stamps)
        return 0
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as root:
        for name in ("table", "write", "directory", "write-run", "run"):
            place = Path(root) / ("a.run" if name.endswith("run") else "data")
            command = [sys.executable, __file__, "--case", name, "--rows", str(given.rows), "--root", str(place)]
            command += ["--stamps", str(given.stamps)]
            code = subprocess.run(command, check=False, env={**os.environ, **alone}).returncode
            if code:
                return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
