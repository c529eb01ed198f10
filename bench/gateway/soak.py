"""A thousand streams at once for a minute: errors, memory over time, and the delay of the relay.

The streams are shorter than the minute, so that each client comes back several times: a gateway that keeps something of
every stream shows it in the second half. The load generator's own delay is in the figures; `direct` is the floor, and
nginx in the same run the yardstick.
"""

from __future__ import annotations

import resource
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Harness, control
from windows import settle

GAP_MS = 50
STREAM_S = 15
FILL_S = 4
GROWTH = 0.05
"""How much more resident memory the last quarter of the run may have than the second quarter."""
FILES = 8192


def raise_file_limit() -> int:
    """Two descriptors a stream in every gateway, which inherit the limit; returns what was got."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def measure(
    harness: Harness,
    target: dict[str, Any],
    mock_pid: int,
    *,
    streams: int,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The load generator's row, with `memory` once a second: (second of the run, resident MB of the gateway's first
    process, resident MB of all its processes)."""
    # What keeps a bounded number of the last requests in memory has them before memory is watched.
    harness.load(target, "--mode", "single", "--conc", "16", "--seconds", str(FILL_S))
    settle(harness, target)
    control(interval_ms=GAP_MS)
    # All connections inside the first seconds, spread so that the streams do not beat in step.
    warmup = max(4.0, streams / 150)
    memory: list[tuple[float, float, float]] = []
    ended = threading.Event()
    began = time.monotonic()

    def watch() -> None:
        while not ended.wait(1.0):
            at = round(time.monotonic() - began - warmup, 1)
            memory.append((at, resident(target["pids"][0]) / 1e6, harness.usage(target["pids"])[1] / 1e6))

    watcher = threading.Thread(target=watch)
    if target.get("pids"):
        watcher.start()
    try:
        shape = ["--mode", "stream", "--conc", str(streams), "--tokens", str(int(STREAM_S * 1000 / GAP_MS))]
        shape += ["--warmup", str(warmup), "--seconds", str(seconds), "--mock-pids", str(mock_pid)]
        row = harness.load(target, *shape)
    finally:
        ended.set()
        if watcher.ident is not None:
            watcher.join()
    settle(harness, target)
    row |= {"streams": streams, "memory": [point for point in memory if 0 <= point[0] <= seconds]}
    say(f"soak of {target['name']}: {describe(row)}")
    return row


def resident(pid: int) -> int:
    """Bytes of one process without its children: Tailrace seals records in one that comes and stays."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def describe(row: dict[str, Any]) -> str:
    """One line."""
    if "fatal" in row:
        return row["fatal"]
    offered = row["streams"] * 1000 / GAP_MS
    return (
        f"{row['errors']} errors, {row['chunks_per_s']:.0f} of {offered:.0f} tokens/s, relay p50 "
        f"{row['relay_us']['p50'] / 1e3:.1f} p99 {row['relay_us']['p99'] / 1e3:.1f} ms, {row['cpu_util']:.2f} of a core"
    )


def growth(row: dict[str, Any]) -> tuple[float, float] | None:
    """Resident MB in the second and in the last quarter of the run (medians); the first fills pools and caches.

    Of Tailrace's own process; of all processes of another gateway, whose first one may only watch its workers.
    """
    column = 1 if row["name"] == "tailrace" else -1
    memory = row.get("memory") or []
    if len(memory) < 8:
        return None
    quarter = len(memory) // 4
    early = statistics.median(point[column] for point in memory[quarter : 2 * quarter])
    late = statistics.median(point[column] for point in memory[-quarter:])
    return early, late
