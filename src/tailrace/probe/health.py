"""What the load generator knows about itself: whether it, rather than the server, was the limit.

Three independent signs. *Loop lag*: a timer every 10 ms and how late it fired; the same delay sits in the stamps
of reads. *Late sends*: how long after its time, and with nothing of its own in the way, a request left.
*Run-queue wait*: how long the kernel had this process runnable but gave the processor to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns

import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.measurement import ClientHealth
from tailrace.model.thresholds import MS, S

TICK_S = 0.01
FLOOR_MS = 20.0
"""Delays of the client below this are never called its limit: two scheduler slices of a busy host."""
SHARE = 0.10
"""... nor delays below this share of the measured TTFT p99, which they then cannot have made."""
CPU_LIMIT = 0.90
"""Of the one core that an event loop can use."""
RUN_QUEUE_LIMIT = 0.30
"""Of the run's time. Waiting alone is no error of a stamp, so it counts together with half of the bound on lag."""
MIN_SAMPLES = 50
"""Half a second of lag samples; fewer have no p99."""
MIN_WALL_NS = S
"""Shares of a shorter time say nothing: a run of ten milliseconds is all processor."""
_SPARE_FILES = 64


def run_queue_wait_ns() -> int | None:
    """Time (ns) that the main thread has waited for a processor so far; `None` where the kernel does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None


class HealthSampler:
    """Samples the loop's lag while a run goes on; `report` judges. Start and stop it on the loop's thread."""

    def __init__(self) -> None:
        self.lags_ns: list[int] = []
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0
        self._began = self._ended = 0
        self._cpu = self._cpu_spent = 0.0
        self._wait: int | None = None
        self._wait_spent: int | None = None

    def start(self) -> None:
        """Begin to sample; forgets what was sampled before."""
        self.stop()
        self.lags_ns = []
        self._began, self._cpu, self._wait = monotonic_ns(), time.process_time(), run_queue_wait_ns()
        self._ended = 0
        self._arm()

    def stop(self) -> None:
        """Stop sampling."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._ended = monotonic_ns()
            self._cpu_spent = time.process_time() - self._cpu
            now = run_queue_wait_ns()
            self._wait_spent = None if now is None or self._wait is None else now - self._wait

    def _arm(self) -> None:
        self._due = monotonic_ns() + int(TICK_S * 1e9)
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self.lags_ns.append(max(0, monotonic_ns() - self._due))
        self._arm()

    def report(
        self,
        *,
        late_ns: Sequence[int] = (),
        ttft_p99_ms: float | None = None,
        connections_opened: int = 0,
        not_sent: int = 0,
    ) -> ClientHealth:
        """The verdict on the client.

        `late_ns`: how late each scheduled request left. `ttft_p99_ms`: what the run measured, the scale against
        which the client's own delays are judged. `not_sent`: requests that could not be sent for want of files.
        """
        wall = max(1, (self._ended or monotonic_ns()) - self._began)
        lag = _p99_ms(self.lags_ns)
        late = _p99_ms(late_ns)
        bound = max(FLOOR_MS, SHARE * ttft_p99_ms) if ttft_p99_ms is not None else FLOOR_MS
        late_sends = sum(1 for one in late_ns if one > bound * MS)
        cpu = self._cpu_spent * 1e9 / wall
        waited = None if self._wait_spent is None else self._wait_spent / wall
        why: list[str] = []
        if not_sent:
            why.append(f"{not_sent} requests were not sent: no more connections can be opened (ulimit -n)")
        if lag is not None and lag > bound and len(self.lags_ns) >= MIN_SAMPLES:
            why.append(f"the event loop ran {lag:.0f} ms late at p99 (bound {bound:.0f} ms)")
        if late is not None and late > bound:
            why.append(f"sends were {late:.0f} ms late at p99 (bound {bound:.0f} ms)")
        if cpu > CPU_LIMIT and wall >= MIN_WALL_NS:
            why.append(f"the client used {cpu:.0%} of the one core that it can use")
        starved = waited is not None and waited > RUN_QUEUE_LIMIT and wall >= MIN_WALL_NS
        if starved and lag is not None and lag > bound / 2:
            why.append(f"the client waited for a processor during {waited:.0%} of the run")
        return ClientHealth(
            limited=bool(why),
            why="; ".join(why),
            loop_lag_p99_ms=lag,
            late_send_p99_ms=late,
            late_sends=late_sends,
            cpu_share=cpu,
            connections_opened=connections_opened,
            run_queue_wait_share=waited,
        )


def _p99_ms(values: Sequence[int]) -> float | None:
    return float(np.quantile(np.asarray(values), 0.99)) / MS if len(values) else None


def check_open_files(connections: int | None) -> int:
    """How many connections can be open at once; raises the soft limit to the hard one first.

    `connections` is the number that the run is sure to need, `None` where it is not known. Raises `InputError`
    when the limit is too low for it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in (hard, resource.RLIM_INFINITY):
        wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = 1 << 20 if soft == resource.RLIM_INFINITY else soft - _SPARE_FILES
    if connections is not None and connections > room:
        raise InputError(
            f"{connections} connections need more open files than this process may have ({soft})",
            place="--concurrency",
            remedy=f"Raise the limit first: ulimit -n {connections + _SPARE_FILES}",
        )
    return room
