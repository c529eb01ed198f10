"""One worker of `tailrace serve --workers N`: a gateway on a socket that the supervisor listens on.

Started as `python -m tailrace.app.worker CONTROL LISTENER` with the numbers of two inherited file descriptors. It ends
when the supervisor says so, or is gone: a worker without one would have no limits, and nobody would see its numbers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from time import monotonic_ns
from typing import Any, Final

import msgspec
import uvloop

from tailrace.app.gateway_process import FLUSH_S, GatewayProcess, freeze_loaded, tune_interpreter
from tailrace.app.worker_link import (
    PROTOCOL,
    Answer,
    Ask,
    Begin,
    Built,
    Cancelled,
    CannotStart,
    Counted,
    Counts,
    Ended,
    Follow,
    Grant,
    Lack,
    Link,
    News,
    Ready,
    Retire,
    ToWorker,
    Unreachable,
    decode_config,
)
from tailrace.gateway.cancels import Cancel, at_engine
from tailrace.gateway.gateway import Gateway
from tailrace.gateway.history import Follower
from tailrace.gateway.served import cancel_by_operator
from tailrace.govern.shared_state import Order, Report
from tailrace.model.errors import InputError, TailraceError

log = logging.getLogger(__name__)

COUNT_EVERY_S: Final = 1.0
"""How much counting a worker that is killed may take with it; its acknowledged records it cannot."""
_FOLLOW_EVERY_S: Final = 0.05


class _Leases:
    """`SharedState` over the link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._listener: Callable[[list[Order]], None] | None = None

    def report(self, reports: list[Report]) -> None:
        """Send what has changed."""
        self._link.send(Lack(reports))

    def listen(self, listener: Callable[[list[Order]], None]) -> None:
        """Hand all orders to `listener`."""
        self._listener = listener

    def obey(self, orders: list[Order]) -> None:
        """Orders have come."""
        if self._listener is not None:
            self._listener(orders)


class Worker:
    """The supervisor's messages, done."""

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._control = control
        self._listener = listener
        self._link = Link(ToWorker, self._message, self._orphaned)
        self._leases = _Leases(self._link)
        self._process: GatewayProcess | None = None
        self._built: asyncio.Future[GatewayProcess] | None = None
        self._follower: Follower | None = None
        self._following = ExitStack()
        self._flushes: set[asyncio.Task[None]] = set()
        self._leave = asyncio.Event()
        """Something has asked this process to end."""
        self._retire_within_s: float | None = None
        self._last_counts = b""

    async def run(self) -> None:
        """Serve until told to end."""
        loop = asyncio.get_running_loop()
        self._built = loop.create_future()
        # A terminal's Ctrl-C and hang-up are for the supervisor; a SIGTERM of our own means this process alone.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            loop.add_signal_handler(number, lambda: None)
        loop.add_signal_handler(signal.SIGTERM, self._leave.set)
        await loop.create_unix_connection(lambda: self._link, sock=self._control)
        leaving = asyncio.ensure_future(self._leave.wait())
        waits: set[asyncio.Future[Any]] = {leaving, self._built}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not self._built.done():
            return
        try:
            process = await self._built
            await process.gateway.start(sock=self._listener, scrape=False)
        except TailraceError as error:
            remedy, place = (error.remedy, error.place) if isinstance(error, InputError) else ("", "")
            self._link.send(CannotStart(error.message if isinstance(error, InputError) else str(error), place, remedy))
            await self._link.drained()
            return
        freeze_loaded()
        self._link.send(Ready())
        ticking = asyncio.ensure_future(self._tick(process))
        await leaving
        await self._end(process)
        ticking.cancel()
        self._send_followed()
        self._link.send(Counted(self._counts(process), cut=process.gateway.counters.cut_at_shutdown, last=True))
        await self._link.drained()

    async def _end(self, process: GatewayProcess) -> None:
        gateway = process.gateway
        if self._retire_within_s is not None:
            await gateway.retire(self._retire_within_s)
        else:
            await gateway.close()
        await asyncio.to_thread(process.writer.close, FLUSH_S)

    # -- messages

    def _message(self, message: ToWorker) -> None:
        if isinstance(message, Grant):
            self._leases.obey(message.orders)
        elif isinstance(message, Begin):
            self._build(message)
        elif self._process is None:
            self._leave.set()  # it stops before it has begun
        elif isinstance(message, News):
            backend = self._process.gateway.backends.named(message.backend)
            if backend is not None:
                backend.engine.take(message.news)
        elif isinstance(message, Ask):
            self._answer(message, self._process)
        elif isinstance(message, Follow):
            self._follow(self._process, on=message.on)
        elif isinstance(message, Retire):
            self._retire_within_s = message.within_s
            self._leave.set()
        else:
            if message.hurry:
                self._process.gateway.cut_now()
            self._wind_down(self._process)

    def _build(self, message: Begin) -> None:
        assert self._built is not None
        try:
            if message.protocol != PROTOCOL:
                raise InputError(
                    f"this version's workers do not understand their supervisor ({message.protocol}, not {PROTOCOL})",
                    remedy="Restart `tailrace serve`.",
                )
            process = self._process = GatewayProcess(decode_config(message.config), shared=self._leases)
        except TailraceError as error:
            self._built.set_exception(error)
            return
        for backend in process.gateway.backends:
            backend.engine.watch.on_unreachable = partial(self._unreachable, backend.name)
            backend.cancels.elsewhere = self._cancelled
        self._link.send(Built())
        self._built.set_result(process)

    def _unreachable(self, backend: str) -> None:
        self._link.send(Unreachable(backend))

    def _cancelled(self, cancel: Cancel) -> None:
        cancel.worker = os.getpid()
        self._link.send(Cancelled(cancel))

    def _orphaned(self) -> None:
        """The supervisor is gone: end in peace, rather than as a second gateway that nobody knows of."""
        if self._process is None:
            self._leave.set()
        else:
            self._wind_down(self._process)

    def _wind_down(self, process: GatewayProcess) -> None:
        """End within the configured drain; what retires already has no more than that left."""
        if self._leave.is_set():
            process.gateway.hasten(int(process.gateway.config.drain) / 1e9)
        self._leave.set()

    # -- questions

    def _answer(self, ask: Ask, process: GatewayProcess) -> None:
        if ask.what == "flush":
            task = asyncio.ensure_future(self._flush(ask, process))
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)
            return
        try:
            body = self._said(ask, process)
        except InputError as error:
            self._link.send(Answer(ask.number, error=error.message, place=error.place, remedy=error.remedy))
        else:
            self._link.send(Answer(ask.number, msgspec.Raw(msgspec.msgpack.encode(body))))

    def _said(self, ask: Ask, process: GatewayProcess) -> Any:
        gateway = process.gateway
        views: dict[str, Callable[[], Any]] = {
            "live": gateway.live,
            "degradation": gateway.degradation_view,
            "happenings": lambda: self._happenings(gateway),
            "streams": lambda: [{**stream, "worker": os.getpid()} for stream in gateway.streams()],
            "purge": lambda: 0 if gateway.cache is None else gateway.cache.purge(),
            "holds": lambda: gateway.history.holds(ask.addresses),
        }
        if ask.what in views:
            return views[ask.what]()
        if ask.what == "counts":
            return self._counts(process)
        if ask.what == "cancel":
            return cancel_by_operator(gateway, ask.request_id)
        if ask.what == "at_engine":
            # One monotonic clock for all processes of a machine: their stamps can be compared.
            backend = gateway.backends.named(ask.backend)
            return [] if backend is None else at_engine(backend.ours())
        config = decode_config(ask.config)
        if ask.what == "check":
            gateway.check(config)
        else:
            gateway.reconfigure(config)
        return None

    @staticmethod
    def _happenings(gateway: Gateway) -> list[dict[str, Any]]:
        gateway.look_around(monotonic_ns())
        return gateway.happenings.view()

    async def _flush(self, ask: Ask, process: GatewayProcess) -> None:
        process.gateway.flush_records()
        flushed = await asyncio.to_thread(process.writer.flush, 0.5)
        self._link.send(Answer(ask.number, msgspec.Raw(msgspec.msgpack.encode(flushed))))

    # -- what is sent unasked

    def _counts(self, process: GatewayProcess) -> Counts:
        return Counts(
            metrics=process.metrics.snapshot(),
            counters=msgspec.to_builtins(process.gateway.counters),
            store=process.writer.counters(),
            store_error=process.writer.error,
        )

    def _follow(self, process: GatewayProcess, *, on: bool) -> None:
        if on and self._follower is None:
            self._follower = self._following.enter_context(process.gateway.history.follow())
        elif not on:
            self._follower = None
            self._following.close()

    def _send_followed(self) -> None:
        follower = self._follower
        if follower is None or self._link.busy:
            return
        records = []
        while not follower.queue.empty():
            records.append(follower.queue.get_nowait())
        if records or follower.missed:
            self._link.send(Ended(records, follower.missed))
            follower.missed = 0

    async def _tick(self, process: GatewayProcess) -> None:
        """Finished records to those who follow, counts to the supervisor."""
        rounds = 0
        while True:
            await asyncio.sleep(_FOLLOW_EVERY_S)
            self._send_followed()
            rounds += 1
            if rounds * _FOLLOW_EVERY_S >= COUNT_EVERY_S:
                rounds = 0
                so_far = msgspec.msgpack.encode((process.gateway.counters, process.writer.counters()))
                if so_far != self._last_counts:
                    self._last_counts = so_far
                    self._link.send(Counted(self._counts(process)))


def main() -> None:
    """The process. Its file descriptors were opened by the supervisor."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    control, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    tune_interpreter()
    uvloop.run(_run(control, listener))


async def _run(control: socket.socket, listener: socket.socket) -> None:
    await Worker(control, listener).run()


if __name__ == "__main__":
    main()
