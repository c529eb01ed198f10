"""Runs one command and prints what its whole process tree cost, as one line of JSON at the end.

    python supervise.py OUT COMMAND…

CPU seconds are those that the kernel booked on everything the command started: as a subreaper, this process collects
also those whose parents have ended before them. PSS (a page shared by n processes counts 1/n in each) is sampled twice
a second; its peak is the largest sum over the tree. What this process itself spends is in neither.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SAMPLE_S = 0.5


def tree(root: int) -> list[int]:
    """All descendants of a process, itself left out."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        try:
            # Threads start processes too, and each lists those that it started.
            children = [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in _children(task)]
        except OSError:
            continue  # ended meanwhile
        found += children
        queue += children
    return found


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def pss_kib(pids: list[int]) -> int:
    """Proportional set size of the processes together."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total


def main() -> int:
    out, command = Path(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    peak, processes, ended = [0], [0], threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            pids = tree(os.getpid())
            processes[0] = max(processes[0], len(pids))
            peak[0] = max(peak[0], pss_kib(pids))

    began = time.monotonic_ns()
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    code = child.wait()
    over = time.monotonic_ns()
    ended.set()
    sampler.join()
    # Whoever the command left behind belongs to its cost, and to nobody else's measurement after it.
    for pid in tree(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "code": code,
        "began_ns": began,
        "ended_ns": over,
        "cpu_s": spent.ru_utime + spent.ru_stime,
        "peak_pss_mib": peak[0] / 1024,
        "processes": processes[0],
    }
    out.write_text(json.dumps(figures))
    return code


if __name__ == "__main__":
    sys.exit(main())
