"""The parent's handle on the sealing process: start it, send a job, look for the answer without waiting."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

import tailrace
from tailrace.store.sealer import Job, Reply

__all__ = ["SEALER_COMMAND", "Sealing"]

SEALER_COMMAND: Final = (sys.executable, "-m", "tailrace.store.sealer")


class Sealing:
    """One job at a time for one child, which is started with the first job and again after it died.

    Used by the writer thread alone. `poll` never blocks.
    """

    def __init__(self, command: Sequence[str] = SEALER_COMMAND) -> None:
        self._command = list(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._answer = b""
        self.job: Job | None = None
        """The job in hand."""

    @property
    def busy(self) -> bool:
        """Whether a job is in hand."""
        return self.job is not None

    def start(self, job: Job) -> None:
        """Send a job. OSError when the child cannot be started or has just died."""
        if self.job is not None:
            raise ValueError("the sealing process has a job in hand")
        if self._child is None:
            self._child = self._spawn()
        stdin = self._child.stdin
        if stdin is None:
            raise OSError("the sealing process has no input")
        self._answer = b""
        try:
            stdin.write(msgspec.json.encode(job) + b"\n")
            stdin.flush()
        except OSError:
            self._bury()
            raise
        self.job = job

    def poll(self) -> Reply | None:
        """The answer to the job in hand, or `None` as long as it runs. A dead child answers with an error."""
        child, job = self._child, self.job
        if child is None or job is None or child.stdout is None:
            return None
        try:
            part = os.read(child.stdout.fileno(), 65536)
        except BlockingIOError:
            return None
        if not part:
            self.job = None
            code = self._bury()
            return Reply(kind=job.kind, segment=job.segment, error=f"the sealing process ended with code {code}")
        self._answer += part
        if not self._answer.endswith(b"\n"):
            return None
        self.job = None
        return msgspec.json.decode(self._answer, type=Reply)

    def wait(self, timeout_s: float) -> Reply | None:
        """Like `poll`, but give the job up to `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while (reply := self.poll()) is None and self.busy and time.monotonic() < deadline:
            time.sleep(0.005)
        return reply

    def close(self, timeout_s: float) -> None:
        """End the child: its input is closed, and it is killed if that is not enough."""
        child = self._child
        if child is None:
            return
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        try:
            child.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            # What it was writing is a temporary file that nobody will see; its rows are still in the hot tier.
            child.kill()
        self._bury()

    def _spawn(self) -> subprocess.Popen[bytes]:
        source = str(Path(tailrace.__file__).parent.parent)
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        child = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # One thread is all it uses: idle linear-algebra threads would only burn time at the start.
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            bufsize=0,
        )
        if child.stdout is not None:
            os.set_blocking(child.stdout.fileno(), False)
        return child

    def _bury(self) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return child.wait(2.0)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()
