"""What writing records costs: put -> commit -> seal of realistic records, wall and CPU time, in records per second.

    python bench/store.py [--records 100000] [--kept 0.03] [--json]

CPU time is that of both processes together, user and kernel, measured by the kernel (`getrusage`). `cold` includes
the start of the sealing process (Python, numpy, DuckDB); `warm` does not: the process lives as long as the gateway.
The exit code is 1 when the warm CPU rate is under --at-least (default 50,000 records/s).
"""

import argparse
import gc
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tailrace.store.query import RecordStore  # noqa: E402
from tailrace.store.writer import RecordWriter, WriterOptions  # noqa: E402
from tests.store.samples import realistic  # noqa: E402


def own_cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def child_cpu_s(writer):
    """CPU time of the living sealing process, from /proc."""
    child = writer._sealing._child  # noqa: SLF001
    if child is None:
        return 0.0
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def measure(writer, records):
    cpu, child, wall = own_cpu_s(), child_cpu_s(writer), time.perf_counter()
    put_cpu = time.thread_time()
    for record in records:
        if not writer.put(record):
            raise SystemExit("a record was dropped: the backlog is too small for this benchmark")
    put_cpu = time.thread_time() - put_cpu
    writer.flush(60)
    committed = time.perf_counter() - wall
    if not writer.seal_now(120):
        raise SystemExit(f"sealing failed: {writer.seal_error}")
    wall = time.perf_counter() - wall
    own, child = own_cpu_s() - cpu, child_cpu_s(writer) - child
    n = len(records)
    return {
        "records": n,
        "wall_s": round(wall, 3),
        "wall_per_s": round(n / wall),
        "cpu_s": round(own + child, 3),
        "cpu_per_s": round(n / (own + child)),
        "gateway_cpu_us_per_record": round(own / n * 1e6, 2),
        "sealer_cpu_us_per_record": round(child / n * 1e6, 2),
        "put_cpu_us": round(put_cpu / n * 1e6, 3),
        "commit_wall_per_s": round(n / committed),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kept", type=float, default=0.03, help="share of records with a timeline of 200 events")
    parser.add_argument("--at-least", type=float, default=50_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print("making records ...", file=sys.stderr)
    parts = [
        realistic(
            options.records, seed=seed, kept=options.kept, events=200, t0=1_790_000_000_000_000_000 + seed * 10**15
        )
        for seed in (1, 2)
    ]
    # The records themselves are not what is measured: the collector must not walk them.
    gc.collect()
    gc.freeze()
    where = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    try:
        writer = RecordWriter(where, WriterOptions(capacity=2 * options.records, event_capacity=10**9))
        result = {"cold": measure(writer, parts[0]), "warm": measure(writer, parts[1])}
        writer.close(10)
        store = RecordStore(where)
        began = time.perf_counter()
        store.ask("quantiles_by_length")
        result["quantiles_by_length_s"] = round(time.perf_counter() - began, 3)
        result["bytes_per_record"] = round(store.size()["bytes"] / (2 * options.records))
        found = len(store.table(limit=10**9))
        if found != 2 * options.records:
            raise SystemExit(f"{found} records found of {2 * options.records}")
    finally:
        shutil.rmtree(where, ignore_errors=True)
    if options.json:
        print(json.dumps(result))
    else:
        for name in ("cold", "warm"):
            print(name, "  ".join(f"{key} {value:,}" for key, value in result[name].items()))
        print("quantiles_by_length_s", result["quantiles_by_length_s"], "bytes_per_record", result["bytes_per_record"])
    raise SystemExit(0 if result["warm"]["cpu_per_s"] >= options.at_least else 1)


if __name__ == "__main__":
    main()
