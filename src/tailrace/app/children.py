"""Child processes of a composition: started with a ready line, ended in order, never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from tailrace.model.errors import InputError

_PR_SET_PDEATHSIG: Final = 1
_TERM_GRACE_S: Final = 2.0
"""Between SIGTERM and SIGKILL: every command of ours promises to end within it."""


def child_environment() -> dict[str, str]:
    """Our own environment, in which a child finds this same installation."""
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root}


class Child:
    """One process that prints a JSON line when it is ready. Use as a context manager."""

    def __init__(self, name: str, command: Sequence[str], *, ready_within_s: float = 30.0) -> None:
        """Start `command`; `ready_within_s` bounds the wait for its ready line."""
        self.name = name
        self._command = list(command)
        self._ready_within_s = ready_within_s
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the child)
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    @classmethod
    def tailrace(cls, name: str, *args: str) -> Child:
        """A `tailrace` command of this same installation, told to print its ready line."""
        return cls(name, [sys.executable, "-m", "tailrace", *args, "--json"])

    def __enter__(self) -> Self:
        """Start the child and wait for its ready line. Raises `InputError` with the child's own last words."""
        self._process = subprocess.Popen(  # noqa: S603  (our own commands)
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=child_environment(),
            # Its own group, so that a Ctrl-C in the terminal reaches only us and we end the children in order.
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (children start before any thread of ours)
        )
        try:
            with _interruptible():
                self.ready = self._wait_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child, however the block ended."""
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace period; returns when the process is gone."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_TERM_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._log.close()
        self._process = None

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        deadline = time.monotonic() + self._ready_within_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise self._failure(f"was not ready within {self._ready_within_s:g} s")
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    process.wait()
                    raise self._failure(f"ended at once with exit code {process.returncode}")
                line += chunk
        try:
            ready: dict[str, Any] = json.loads(line.splitlines()[0])
        except ValueError:
            raise self._failure(f"printed {line[:80]!r} instead of its ready line") from None
        return ready

    def _failure(self, what: str) -> InputError:
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        said = f": {words[-1]}" if words else ""
        return InputError(f"{what}{said}", place=self.name, remedy="Run it by itself to see all of its output.")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """While we wait outside the event loop its signal handlers cannot run: Ctrl-C and SIGTERM raise instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent() -> None:
    """Linux: the child gets SIGTERM when its parent dies, even by SIGKILL."""
    if sys.platform == "linux":  # one call into libc: nothing here takes a lock
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
