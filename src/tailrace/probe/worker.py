"""One process of a load test: `python -m tailrace.probe.worker`, which speaks `protocol` on its standard pipes."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import time
import traceback
from typing import cast

import uvloop

from tailrace.model.errors import InputError, TailraceError
from tailrace.probe.generator import Share, generate
from tailrace.probe.health import check_open_files
from tailrace.probe.protocol import (
    VERSION,
    Assignment,
    Ended,
    Failed,
    FromWorker,
    Going,
    Inflow,
    Ready,
    Start,
    Stop,
    encode,
    read_to_worker,
)
from tailrace.store.run_file import RunWriter


class _Orders(asyncio.Protocol):
    """What is said to this worker; the end of it is a stop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.assignment: asyncio.Future[Assignment | None] = loop.create_future()
        self.start: asyncio.Future[Start | None] = loop.create_future()
        self.stop = asyncio.Event()
        self._inflow = Inflow()

    def data_received(self, data: bytes) -> None:
        for message in self._inflow.feed(data):
            order = read_to_worker(message)
            if isinstance(order, Assignment) and not self.assignment.done():
                self.assignment.set_result(order)
            elif isinstance(order, Start) and not self.start.done():
                self.start.set_result(order)
            elif isinstance(order, Stop):
                self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # however it ended
        self.end()

    def end(self) -> None:
        self.stop.set()
        if not self.assignment.done():
            self.assignment.set_result(None)
        if not self.start.done():
            self.start.set_result(None)


def _start_ns(start: Start) -> int | None:
    """On this host's monotonic clock."""
    if start.at_unix_ns is not None:
        return time.monotonic_ns() + start.at_unix_ns - time.time_ns()
    return start.at_ns


class _Report(asyncio.Protocol):
    """The pipe to whoever runs this worker."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pipe: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast("asyncio.WriteTransport", transport)  # uvloop's is one without saying so

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # nobody is there to be told
        self._pipe = None
        if not self.closed.done():
            self.closed.set_result(None)

    def say(self, message: FromWorker) -> None:
        if self._pipe is not None:
            self._pipe.write(encode(message))

    async def close(self) -> None:
        """Everything said has left, or nobody listens any more."""
        if self._pipe is not None:
            self._pipe.close()
            await self.closed


async def _share(orders: _Orders, report: _Report) -> Share | None:
    assignment = await orders.assignment
    if assignment is None:
        return None
    if assignment.version != VERSION:
        raise InputError(
            f"the protocol is {assignment.version}, this worker speaks {VERSION}",
            place="worker",
            remedy="Run the same version of Tailrace everywhere",
        )
    spec = assignment.spec
    room = check_open_files(spec.workers)
    with RunWriter(assignment.path, assignment.header) as file:
        report.say(Ready(pid=os.getpid(), monotonic_ns=time.monotonic_ns(), unix_ns=time.time_ns()))
        start = await orders.start
        if start is None:
            share = Share(n=0, interrupted=True)
        else:
            share = await generate(
                spec,
                assignment.target,
                file,
                room=room,
                stop=orders.stop,
                on_progress=lambda progress: report.say(Going(progress=progress)),
                start_ns=_start_ns(start),
            )
        file.close(share.trailer())
    return share


async def _work(out: int) -> int:
    loop = asyncio.get_running_loop()
    orders, report = _Orders(), _Report()
    await loop.connect_write_pipe(lambda: report, os.fdopen(out, "wb", buffering=0))
    await loop.connect_read_pipe(lambda: orders, os.fdopen(0, "rb", buffering=0, closefd=False))
    loop.add_signal_handler(signal.SIGTERM, orders.end)
    code = 0
    try:
        share = await _share(orders, report)
        if share is not None:
            report.say(Ended(share=share))
    except InputError as error:
        report.say(Failed(message=error.message, place=error.place, remedy=error.remedy))
        code = 1
    except TailraceError as error:
        report.say(Failed(message=str(error)))
        code = 1
    except Exception as error:  # noqa: BLE001  (whoever runs this worker has to hear of it)
        traceback.print_exc()
        report.say(Failed(message=f"{type(error).__name__}: {error}"))
        code = 1
    await report.close()
    return code


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def main() -> int:
    """Speak `protocol` until the share is done; the exit code."""
    if not all(_is_pipe(fd) for fd in (0, 1)):
        sys.stderr.write("a worker of `tailrace bench` is started by it; standard input and output must be pipes\n")
        return 2
    # Standard output is the protocol's alone: what anything else prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    return uvloop.run(_work(out))


if __name__ == "__main__":
    sys.exit(main())
