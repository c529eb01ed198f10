"""A thread that reads something again and again, and can neither hold the process nor end it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, monotonic_ns, thread_time_ns
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

Sample = TypeVar("Sample")

_JOIN_S: Final = 0.5
"""A read that hangs in the kernel is left to its thread, which does not keep the process alive."""
_LEAST_PAUSE_S: Final = 0.02


class NothingToReadError(Exception):
    """There is nothing that could be read, and there will not be: the thread ends."""


class Sampler(Generic[Sample]):
    """Calls `read` every `period_s` and keeps the last `keep` answers."""

    def __init__(
        self,
        name: str,
        read: Callable[[], Sample | None],
        *,
        period_s: float,
        keep: int,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`at_end` is called in the thread when it ends: what hangs there holds nobody either."""
        self._name = name
        self._read = read
        self._at_end = at_end
        self.period_s = period_s
        """Between two reads; may be changed at any time."""
        self._ring: deque[Sample] = deque(maxlen=keep)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.samples = 0
        self.failures = 0
        self.error = ""
        """Why the last read failed."""
        self.cpu_ns = 0
        """CPU time that reading has cost so far."""
        self._sampled_ns: int | None = None

    def start(self) -> None:
        """Begin; the first read is now."""
        self._thread = threading.Thread(target=self._run, name=f"tailrace-{self._name}", daemon=True)
        self._thread.start()

    def ask_to_end(self) -> None:
        """The thread ends after what it is at."""
        self._stop.set()

    def close(self) -> None:
        """Ask the thread to end, and wait for it unless it hangs. Takes at most half a second; call it off the loop."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_S)

    def kept(self) -> list[Sample]:
        """What is kept, oldest first."""
        # Copying a deque fails while the thread appends to it; it has then one more, and the next try has it.
        while True:
            try:
                return list(self._ring)
            except RuntimeError:
                continue

    def latest(self, within_ns: int) -> Sample | None:
        """The last sample, or nothing where it is older than that: what hangs is absent, not frozen."""
        at = self._sampled_ns
        if at is None or monotonic_ns() - at > within_ns or not self._ring:
            return None
        return self._ring[-1]

    def _run(self) -> None:
        try:
            self._sample()
        except NothingToReadError as end:
            self.error = str(end)
        finally:
            self._at_end()

    def _sample(self) -> None:
        due = monotonic()
        while not self._stop.is_set():
            began = thread_time_ns()
            try:
                sample = self._read()
                self.error = ""
            except NothingToReadError:
                raise
            except Exception as error:  # noqa: BLE001  (whatever a driver or a kernel does must not end the sampling)
                sample = None
                self.failures += 1
                if not self.error:
                    log.debug("%s: %s", self._name, error)
                self.error = str(error) or type(error).__name__
            self.samples += 1
            self.cpu_ns += thread_time_ns() - began
            if sample is not None:
                self._sampled_ns = monotonic_ns()
                self._ring.append(sample)
            due = max(due + self.period_s, monotonic() + _LEAST_PAUSE_S)
            self._stop.wait(max(0.0, due - monotonic()))
