"""Tailrace child processes of the tests: each in its own process group, with its ready line, never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tailrace
from tailrace.store.run_file import read_run

SESSION_MARK = "TAILRACE_TEST_SESSION"
"""Environment variable that every process started by a test session inherits; how leftovers are recognised."""


def child_env(**extra: str) -> dict[str, str]:
    """The environment of a child: Tailrace importable whether or not it is installed, output unbuffered, no colours."""
    env = dict(os.environ)
    source = str(Path(tailrace.__file__).parent.parent)
    others = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part and part != source]
    env["PYTHONPATH"] = os.pathsep.join([source, *others])
    env["PYTHONUNBUFFERED"] = "1"
    env["NO_COLOR"] = "1"
    env.update(extra)
    return env


class ChildError(AssertionError):
    """A child ended, or stayed silent, before it was ready; carries what it said."""


class Child:
    """A running `python -m tailrace …` (or any other command) whose output is read as it comes.

    `ready` is its first standard-output line as JSON once `wait_ready` has returned. `stop` sends SIGTERM, waits, then
    kills the whole process group; it returns the exit code.
    """

    def __init__(self, command: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        self.command = list(command)
        self.ready: dict[str, Any] = {}
        self.stdout_lines: list[str] = []
        self.stderr_lines: list[str] = []
        self._first: queue.Queue[str | None] = queue.Queue()
        self.popen = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env or child_env(),
            cwd=cwd,
            start_new_session=True,  # its own process group, so that `stop` takes grandchildren too
        )
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        # Pipes are drained by threads: a child that fills a pipe nobody reads would hang, and so would the test.
        self._readers = [
            threading.Thread(target=self._read_stdout, args=(self.popen.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(self.popen.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def url(self) -> str:
        """The base URL of the data port, from the ready line."""
        return str(self.ready["url"]).rstrip("/")

    @property
    def admin(self) -> str:
        """The base URL of the admin port, from the ready line."""
        return str(self.ready["admin"]).rstrip("/")

    @property
    def stdout(self) -> str:
        return "".join(self.stdout_lines)

    @property
    def stderr(self) -> str:
        return "".join(self.stderr_lines)

    def wait_ready(self, timeout: float = 30.0) -> Child:
        """Wait for the first standard-output line and read it as the JSON ready object."""
        try:
            line = self._first.get(timeout=timeout)
        except queue.Empty:
            self.stop()
            raise ChildError(self._story(f"no ready line within {timeout:g} s")) from None
        if line is None:
            self.popen.wait(10)
            self._join()
            raise ChildError(self._story(f"ended with exit code {self.popen.returncode} before it was ready"))
        try:
            self.ready = json.loads(line)
        except ValueError:
            self.stop()
            raise ChildError(self._story(f"its first line is no JSON object: {line!r}")) from None
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child itself, not to its group."""
        self.popen.send_signal(number)

    def wait(self, timeout: float) -> int:
        """Wait for the end (s); the exit code. All output is read when this returns."""
        code = self.popen.wait(timeout)
        self._join()
        return code

    def stop(self, grace: float = 5.0) -> int:
        """SIGTERM, at most `grace` seconds of patience, then SIGKILL for the group; the exit code."""
        if self.popen.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(grace)
        self.kill()
        return int(self.popen.returncode)

    def kill(self) -> None:
        """SIGKILL for the whole group: also takes the grandchildren of a child that has already ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)
        self._join()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(2)
        for stream in (self.popen.stdout, self.popen.stderr):
            # A grandchild that still holds the pipe keeps its reader blocked; closing under it would raise there.
            if stream is not None and not any(reader.is_alive() for reader in self._readers):
                stream.close()

    def _read_stdout(self, stream: Any) -> None:
        for line in stream:
            if not self.stdout_lines:
                self._first.put(line)
            self.stdout_lines.append(line)
        self._first.put(None)

    def _read_stderr(self, stream: Any) -> None:
        for line in stream:
            self.stderr_lines.append(line)

    def _story(self, what: str) -> str:
        return f"{' '.join(self.command)}: {what}\n--- stdout\n{self.stdout}--- stderr\n{self.stderr}"


def tailrace_command(*args: str) -> list[str]:
    """The command line of `tailrace ARGS` under this interpreter."""
    return [sys.executable, "-m", "tailrace", *args]


def run_tailrace(
    *args: str, timeout: float = 60.0, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `tailrace ARGS` to its end, in its own process group; kills the group when `timeout` (s) is over."""
    child = Child(tailrace_command(*args), env=env, cwd=cwd)
    try:
        code = child.wait(timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        raise ChildError(child._story(f"still running after {timeout:g} s")) from None
    finally:
        child.kill()
    return subprocess.CompletedProcess(child.command, code, child.stdout, child.stderr)


def health_code(*runs: Path) -> int:
    """The exit code that `bench` owes after these run files: 3 where one says that the client was the limit.

    A busy machine makes it so; whoever asks for something else compares with this, so that neither code comes unasked.
    """
    trailers = [read_run(run).trailer for run in runs]
    return 3 if any(trailer is not None and trailer.client.limited for trailer in trailers) else 0


def leftovers(mark: str, patience: float = 3.0) -> list[tuple[int, str]]:
    """Processes (pid, command) that carry this session's mark and outlive `patience` seconds, ourselves excluded."""
    deadline = time.monotonic() + patience
    if patience:
        time.sleep(0.2)  # a process that has just been started shows no environment until it is laid out
    while True:
        found = _marked(mark)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _marked(mark: str) -> list[tuple[int, str]]:
    needle = f"{SESSION_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle not in (entry / "environ").read_bytes():  # empty for a zombie, which holds nothing any more
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue  # ended meanwhile, or not ours
        if "multiprocessing.resource_tracker" in command or "multiprocessing.forkserver" in command:
            continue  # Python's own helpers end with the interpreter that started them
        found.append((int(entry.name), command))
    return found
