"""The reporter: finished requests on their way to the gateway's admin port, behind the back of the requests.

One daemon thread, one bounded queue, batches over HTTP. Handing a request over costs an append; whatever is wrong with
the gateway, no request waits for it. What could not be reported is counted, said with the next report, and logged.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import logging
import os
import ssl
import threading
import time
from collections import deque
from typing import Final
from urllib.parse import urlsplit

from tailrace.stages.otlp import export_request
from tailrace.stages.request import ServiceRequest

log = logging.getLogger(__name__)

CAPACITY: Final = 2048
BATCH: Final = 64
LINGER_S: Final = 0.2
"""How long the first request of a batch waits for others."""
TIMEOUT_S: Final = 5.0
ATTEMPTS: Final = 3
_BACK_OFF_S: Final = 0.5
_GOODBYE_S: Final = 0.2
_LONGEST_ANSWER: Final = 65536
"""Only the status is of interest: an answer that is longer, or does not say how long it is, costs the connection."""
_LONGEST_WHY: Final = 200
AT_EXIT_S: Final = 1.0
"""How long the end of the process may wait for the last reports."""


class Reporter:
    """Reports requests to one URL: `reporter(request)`. Made once a process; threads and tasks may share it.

    `flush` waits until everything handed over so far was sent or given up; `close` flushes and ends the thread. Both
    have a bound. A process that is forked off gets a queue and a thread of its own.
    """

    def __init__(self, url: str, *, token: str = "", capacity: int = CAPACITY, timeout_s: float = TIMEOUT_S) -> None:
        """`token`: the admin port's bearer token. ValueError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL to report to: use http://127.0.0.1:9480/v1/traces")
        self.url = url
        self._https = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._path = (parts.path or "/v1/traces") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._capacity = capacity
        self._timeout_s = timeout_s
        self.sent = 0
        """Requests that the gateway has taken."""
        self.dropped = 0
        """Requests that were not reported: the queue was full, or the gateway did not take them."""
        self._begin()
        atexit.register(self.close, AT_EXIT_S)
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[ServiceRequest] = deque()
        self._in_hand = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._hurry_until: float | None = None
        self._complained = False
        self._connection: http.client.HTTPConnection | None = None

    def __call__(self, request: ServiceRequest) -> bool:
        """Take one finished request. Never waits; False where it was dropped (and counted)."""
        with self._lock:
            if self._closed:
                self.dropped += 1
                return False
            taken = True
            if len(self._waiting) >= self._capacity:
                self.dropped += 1
                # A request that went wrong is worth more than one that did not: it takes the place of one of those.
                place = None
                if request.outcome != "completed":
                    place = next((at for at, one in enumerate(self._waiting) if one.outcome == "completed"), None)
                if place is None:
                    return False
                del self._waiting[place]
            self._waiting.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tailrace-reporter", daemon=True)
                self._thread.start()
            if len(self._waiting) == 1 or len(self._waiting) == BATCH:
                self._lock.notify_all()
            return taken

    def flush(self, timeout_s: float = AT_EXIT_S) -> bool:
        """Wait at most so long until nothing is left to report; whether that is so."""
        until = time.monotonic() + timeout_s
        with self._lock:
            self._hurry_until = until
            self._lock.notify_all()
            try:
                return self._lock.wait_for(lambda: not self._waiting and not self._in_hand, timeout_s)
            finally:
                self._hurry_until = None

    def close(self, timeout_s: float = AT_EXIT_S) -> None:
        """Flush, count what is left as dropped, and end. Calling it twice does nothing more."""
        if self._closed:
            return
        self.flush(timeout_s)
        with self._lock:
            self._closed = True
            self.dropped += len(self._waiting) + self._in_hand
            self._waiting.clear()
            self._lock.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_GOODBYE_S)

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    self._hang_up()
                    return
                self._lock.wait_for(
                    lambda: len(self._waiting) >= BATCH or self._closed or self._hurry_until is not None, LINGER_S
                )
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._in_hand = len(batch)
            why = self._deliver(batch) if batch else ""
            if not self._settle(len(batch), why):
                return
            if why and not self._complained:
                self._complained = True
                log.warning("stages cannot be reported to %s: %s (said once; `dropped` counts)", self.url, why)

    def _settle(self, count: int, why: str) -> bool:
        """Count a batch; False where the end came first and has counted it."""
        with self._lock:
            if self._closed:
                self._hang_up()
                return False
            if why:
                self.dropped += count
            else:
                self.sent += count
            self._in_hand = 0
            self._lock.notify_all()
            return True

    def _deliver(self, batch: list[ServiceRequest]) -> str:
        """Send one batch; why it could not be, or nothing."""
        try:
            body = json.dumps(export_request(batch, dropped=self.dropped), separators=(",", ":")).encode()
        except Exception as error:  # a request that cannot be told must not end the thread
            log.exception("a batch of stages could not be written")
            return f"{type(error).__name__}"
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt and not self._pause(_BACK_OFF_S * 2 ** (attempt - 1)):
                break
            try:
                status = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                why = _plain(str(error)) or type(error).__name__
                self._hang_up()
                continue
            if 200 <= status < 300:
                self._complained = False
                return ""
            why = f"the gateway answers {status}"
            if status not in (408, 429) and status < 500:
                break  # it would answer the same again
        return why or "no time left"

    def _pause(self, seconds: float) -> bool:
        """Wait before another attempt; False when there is no time for one."""
        with self._lock:
            hurry = self._hurry_until
            left = seconds if hurry is None else min(seconds, max(0.0, hurry - time.monotonic()))
            self._lock.wait_for(lambda: self._closed, left)
            hurry = self._hurry_until
            return not self._closed and (hurry is None or time.monotonic() < hurry)

    def _post(self, body: bytes) -> int:
        connection = self._connection
        if connection is None:
            connection = self._connection = (
                http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout_s, context=ssl.create_default_context()
                )
                if self._https
                else http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            )
        connection.request("POST", self._path, body, self._headers)
        answer = connection.getresponse()
        if answer.length is None or answer.length > _LONGEST_ANSWER:
            self._hang_up()
        else:
            answer.read()
        return answer.status

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def _plain(text: str) -> str:
    """What somebody else's server said, as one short line of a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_WHY].strip())
