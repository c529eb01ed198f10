"""What the load generator measures of itself while a run goes on; `client_limit` judges it.

Independent signs. *Event delay*: a kernel timer waits beside the sockets, and how late it was stamped is how late they
were. *Loop lag*: a timer of the loop every 10 ms and how late it fired. *Late sends*: how long after its time a request
was taken up. *Run-queue wait*: how long the kernel had this process runnable but gave the processor to others.
*Collections*: how long the garbage collector held everything up.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic_ns

import msgspec
import numpy as np

from tailrace.model.client_sample import ClientSample
from tailrace.model.errors import InputError
from tailrace.model.measurement import ClientHealth
from tailrace.model.thresholds import MS, S
from tailrace.probe.client_limit import MIN_REQUESTS, ClientFacts
from tailrace.probe.event_delay import EventDelay

TICK_S = 0.01
_SPARE_FILES = 64
_SCHEDSTAT = Path("/proc/self/schedstat")
_OPEN_FILES = Path("/proc/self/fd")


def run_queue_wait_ns() -> int | None:
    """Time (ns) that the main thread has waited for a processor so far; `None` where the kernel does not say."""
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    try:
        return sum(1 for _ in _OPEN_FILES.iterdir())
    except OSError:
        return None


class Counts:
    """How far the load has come, for the samples of each second."""

    in_flight = sent = done = tokens = connections = 0


class HealthSampler:
    """Samples while a run goes on; `report` sums up. Start and stop it on the loop's thread."""

    def __init__(self, counts: Callable[[Counts], None] | None = None, *, process: int = 0) -> None:
        self.lags_ns: list[int] = []
        self.seconds: list[ClientSample] = []
        """One a second; `at_ns` is monotonic until the run's begin is known (`samples`)."""
        self.events = EventDelay()
        self._counts = counts
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0
        self._began = self._ended = 0
        self._cpu = self._cpu_spent = 0.0
        self._wait: int | None = None
        self._wait_spent: int | None = None
        self._latencies: list[int] = []
        self._delays: list[int] = []
        self._collecting = 0
        self._pauses_ns: list[int] = []
        self._files: int | None = None
        self._other_files = 0
        self._second: tuple[int, float, int | None, int] = (0, 0.0, None, 0)
        """When the second under way began, and the processor time, the wait and the number of lags by then."""

    def start(self) -> None:
        """Begin to sample; forgets what was sampled before."""
        self.stop()
        self.lags_ns = []
        self._began, self._cpu, self._wait = monotonic_ns(), time.process_time(), run_queue_wait_ns()
        self._ended = 0
        self._files = _open_files()
        self._other_files = self._files or 0
        self._second = (self._began, self._cpu, self._wait, 0)
        gc.callbacks.append(self._collection)
        self.events.start()
        self._arm()

    def stop(self) -> None:
        """Stop sampling."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._ended = monotonic_ns()
            self._end_second(self._ended)
            self._cpu_spent = time.process_time() - self._cpu
            now = run_queue_wait_ns()
            self._wait_spent = None if now is None or self._wait is None else now - self._wait
            self.events.stop()
            gc.callbacks.remove(self._collection)

    def _arm(self) -> None:
        self._due = monotonic_ns() + int(TICK_S * 1e9)
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = monotonic_ns()
        self.lags_ns.append(max(0, now - self._due))
        if now - self._second[0] >= S:
            self._end_second(now)
        self._arm()

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        now = monotonic_ns()
        if phase == "start":
            self._collecting = now
        else:
            self._pauses_ns.append(now - self._collecting)

    def _end_second(self, now: int) -> None:
        began, cpu, wait, place = self._second
        span = max(1, now - began)
        cpu_now, wait_now = time.process_time(), run_queue_wait_ns()
        self._second = (now, cpu_now, wait_now, len(self.lags_ns))
        counts = Counts()
        files = None
        if self._counts is not None:
            self._counts(counts)
            if self._files is not None:
                # Counting the descriptors themselves costs milliseconds where there are thousands of them.
                files = self._other_files + counts.connections
                self._files = max(self._files, files)
        # By hand: numpy's quantile loads a module on its first call, for longer than a token's gap.
        lags = sorted(self.lags_ns[place:])
        known = self._counts is not None
        self.seconds.append(
            ClientSample(
                at_ns=now,
                span_ns=span,
                process=self._process,
                loop_lag_p99_ns=lags[(len(lags) * 99 - 1) // 100] if lags else None,
                loop_lag_max_ns=lags[-1] if lags else None,
                cpu_share=(cpu_now - cpu) * S / span,
                run_queue_wait_share=None if wait is None or wait_now is None else (wait_now - wait) / span,
                in_flight=counts.in_flight if known else None,
                sent=counts.sent if known else None,
                done=counts.done if known else None,
                tokens=counts.tokens if known else None,
                open_files=files,
            )
        )

    def samples(self, began: int) -> list[ClientSample]:
        """The samples of all seconds, their times from `began` (monotonic ns, the begin of the measured part)."""
        return [msgspec.structs.replace(one, at_ns=one.at_ns - began) for one in self.seconds]

    def note_latency(self, latency_ns: int, stamp: int) -> None:
        """A request's TTFT (or its end, where it is not streamed), and the monotonic time of that stamp."""
        self._latencies.append(latency_ns)
        self._delays.append(self.events.at(stamp))

    def _moved_ms(self) -> float | None:
        """The p99 of the latencies, less what it is without the delays that their stamps had."""
        if len(self._latencies) < MIN_REQUESTS or not self.events.delays_ns:
            return None
        seen = np.asarray(self._latencies)
        return float(np.quantile(seen, 0.99) - np.quantile(seen - np.asarray(self._delays), 0.99)) / MS

    def report(
        self,
        *,
        late_ns: Sequence[int] = (),
        ttft_p99_ms: float | None = None,
        kept: float | None = None,
        connections_opened: int = 0,
        not_sent: int = 0,
        streamed: bool = True,
    ) -> ClientHealth:
        """The verdict on the client.

        `late_ns`: how late each scheduled request was taken up; `kept`: the rate at which they were, as a share of the
        planned one. `ttft_p99_ms`: what the run measured, the scale against which the client's own delays are judged.
        Where answers are not streamed, the p99 of their ends is. `not_sent`: requests that could not be sent for want
        of files.
        """
        wall = max(1, (self._ended or monotonic_ns()) - self._began)
        waited = None if self._wait_spent is None else self._wait_spent / wall
        facts = ClientFacts(
            wall_ns=wall,
            samples=len(self.lags_ns),
            lag_p99_ms=_quantile_ms(self.lags_ns, 0.99),
            event_delay_p99_ms=_quantile_ms(self.events.delays_ns, 0.99),
            p99_ms=_quantile_ms(self._latencies, 0.99) if ttft_p99_ms is None else ttft_p99_ms,
            moved_ms=self._moved_ms(),
            late_p99_ms=_quantile_ms(late_ns, 0.99),
            requests=len(late_ns),
            kept=kept,
            cpu_share=self._cpu_spent * 1e9 / wall,
            wait_share=waited,
            not_sent=not_sent,
            streamed=streamed,
        )
        why = facts.limits()
        return ClientHealth(
            limited=bool(why),
            why="; ".join(why),
            loop_lag_p50_ms=_quantile_ms(self.lags_ns, 0.5),
            loop_lag_p99_ms=facts.lag_p99_ms,
            loop_lag_max_ms=_quantile_ms(self.lags_ns, 1.0),
            event_delay_p50_ms=_quantile_ms(self.events.delays_ns, 0.5),
            event_delay_p99_ms=facts.event_delay_p99_ms,
            event_delay_max_ms=_quantile_ms(self.events.delays_ns, 1.0),
            p99_moved_ms=facts.moved_ms,
            late_send_p99_ms=facts.late_p99_ms,
            late_sends=sum(1 for one in late_ns if one > facts.bound_ms * MS),
            schedule_kept=kept,
            cpu_share=facts.cpu_share,
            cpu_s=self._cpu_spent,
            connections_opened=connections_opened,
            open_files=self._files,
            run_queue_wait_share=waited,
            gc_pause_max_ms=_quantile_ms(self._pauses_ns, 1.0) or 0.0,
            gc_pauses_ms=sum(self._pauses_ns) / MS,
        )


def _quantile_ms(values: Sequence[int], p: float) -> float | None:
    return float(np.quantile(np.asarray(values), p)) / MS if len(values) else None


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
