"""One worker as its supervisor holds it: the process, the link, what it last counted, the questions under way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from tailrace.app.children import child_environment
from tailrace.app.worker_link import (
    PROTOCOL,
    Answer,
    Ask,
    Begin,
    Built,
    CannotStart,
    Counted,
    Counts,
    Link,
    Ready,
    ToSupervisor,
    ToWorker,
    encode_config,
)
from tailrace.gateway.config import Config
from tailrace.gateway.history import Address
from tailrace.model.errors import InputError

ANSWER_S: Final = 2.0
"""How long a worker may take over a question; it has a loop to run, so a late one is stuck or stopped."""
READY_S: Final = 30.0


class State(StrEnum):
    """Where a worker is."""

    STARTING = "starting"
    SERVING = "serving"
    RETIRING = "retiring"
    GONE = "gone"


class Employer(Protocol):
    """Who hears of a worker."""

    def said(self, worker: WorkerHandle, message: ToSupervisor) -> None:
        """A message that is no answer."""

    def ended(self, worker: WorkerHandle) -> None:
        """It will say nothing more, and serves nothing more."""


class NoAnswerError(InputError):
    """A worker did not answer a question in time."""


class WorkerHandle:
    """Start one with `start`; `ready` is done once it serves, or raises what keeps it from that."""

    def __init__(
        self, name: str, slot: int, listener: socket.socket, employer: Employer, *, grpc: str | None = None
    ) -> None:
        """`listener` stays the supervisor's: the worker gets its own reference. `grpc`: where to serve gRPC."""
        self.name = name
        self.slot = slot
        self.listener = listener
        self.state = State.STARTING
        self.built = False
        """Its gateway is there: it can be asked."""
        self.on_trial = False
        """It is to take another's place, who stays when it does not come up."""
        self.config: Config | None = None
        self.counts = Counts()
        self.counted_last = False
        """Whether it said its counts when it ended: nothing is missing."""
        self.cut = 0
        self.started_at = time.monotonic()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._employer = employer
        self._grpc = grpc
        self._link = Link(ToSupervisor, self._message, self._lost)
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._number = 0

    @property
    def pid(self) -> int:
        """The process's id; 0 before it is started."""
        return 0 if self._process is None else self._process.pid

    async def start(self, config: Config) -> None:
        """Start the process and send it its configuration."""
        self.config = config
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603  (our own module; a fork takes milliseconds)
                [sys.executable, "-m", "tailrace.app.worker", str(theirs.fileno()), str(self.listener.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=child_environment(),
                pass_fds=(theirs.fileno(), self.listener.fileno()),
                # A Ctrl-C in the terminal reaches only the supervisor, which ends its workers in order.
                start_new_session=True,
            )
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=ours)
        self._link.send(Begin(self._encoded(config), PROTOCOL))

    def _encoded(self, config: Config) -> bytes:
        """With the address that the supervisor holds in the place of one whose port it has chosen."""
        if config.grpc_listen is not None and self._grpc is not None:
            config = msgspec.structs.replace(config, grpc_listen=self._grpc)
        return encode_config(config)

    def send(self, message: ToWorker) -> None:
        """Never waits."""
        self._link.send(message)

    async def ask(
        self,
        what: str,
        kind: Any,
        *,
        config: Config | None = None,
        request_id: str = "",
        backend: str = "",
        addresses: Sequence[Address] = (),
        within_s: float = ANSWER_S,
    ) -> Any:
        """An answer of type `kind`. InputError with the worker's own words; `NoAnswerError` when there is none."""
        self._number += 1
        number = self._number
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        encoded = b"" if config is None else self._encoded(config)
        self._link.send(Ask(number, what, encoded, request_id, backend, list(addresses)))
        try:
            async with asyncio.timeout(within_s):
                return msgspec.msgpack.decode(await waiting, type=kind)
        except TimeoutError:
            raise NoAnswerError(f"does not answer within {within_s:g} s", place=f"worker {self.pid}") from None
        finally:
            self._asked.pop(number, None)

    async def wait(self, within_s: float) -> int:
        """Wait for the process to end, killing it when that takes too long; returns its exit status."""
        process = self._process
        if process is None:
            return 0
        try:
            return await asyncio.to_thread(process.wait, within_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, 9)
            return await asyncio.to_thread(process.wait)

    # -- the link

    def _message(self, message: ToSupervisor) -> None:
        if isinstance(message, Answer):
            waiting = self._asked.get(message.number)
            if waiting is None or waiting.done():
                return
            if message.error:
                waiting.set_exception(InputError(message.error, place=message.place, remedy=message.remedy))
            else:
                waiting.set_result(message.body)
        elif isinstance(message, Ready):
            if self.state is State.STARTING:
                self.state = State.SERVING
            if not self.ready.done():
                self.ready.set_result(None)
        elif isinstance(message, CannotStart):
            self._fail(InputError(message.message, place=message.place, remedy=message.remedy))
        elif isinstance(message, Counted):
            self.counts, self.cut, self.counted_last = message.counts, message.cut, message.last
        else:
            self.built |= isinstance(message, Built)
            self._employer.said(self, message)

    def _fail(self, error: InputError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            # Whoever waits gets it; where nobody does, the end of the process says enough.
            self.ready.exception()

    def _lost(self) -> None:
        self._fail(InputError("a worker process ended before it served", place=f"worker {self.pid}"))
        gone = NoAnswerError("has ended", place=f"worker {self.pid}")
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(gone)
        self._employer.ended(self)
        self.state = State.GONE
