"""Engine state from its `/metrics`, read off every request's path.

One scraper a backend: an engine answers `/metrics` from the loop that runs its steps, so a scrape may take as long as
a step; it has a timeout, never overlaps itself, and nobody waits for it. An answer that is too old counts as absent.
The period has a jitter, so that the gateways of a fleet, started together, do not ask one engine in step for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from os import urandom
from time import monotonic_ns, thread_time_ns
from typing import Final, Protocol

import aiohttp

from tailrace.model.engine_state import EngineState

_MAX_BYTES: Final = 2 * 1024 * 1024
"""Reading them holds the loop that relays: 30,000 series (1.5 MB) for 0.4 s, 300,000 for 8 s. Engines have 60 kB."""
_AS_TEXT: Final = {"Accept": "text/plain;version=0.0.4, */*;q=0.1", "Accept-Encoding": "identity"}
"""Compressing 60 kB would cost the engine's own loop, and the way to it is short."""
_BACK_OFF: Final = 30
"""Periods between two tries where the engine has no metrics at all (404): it may have been restarted with them."""


class MetricsParser(Protocol):
    """Turns an engine's Prometheus text into the signals we use."""

    def __call__(self, text: str, server: str, now: int, /) -> EngineState | None:
        """`server` is the `Server` header; `None` when nothing in it says anything about an engine."""


class SessionMaker(Protocol):
    """Opens an HTTP client that can reach the engine."""

    def __call__(self, *, timeout_s: float, headers: Mapping[str, str] | None) -> aiohttp.ClientSession:
        """`headers` go with every request."""


class ScrapeReader(Protocol):
    """Who follows the scrapes, and may want them closer together for a while."""

    def pause_s(self, usual_s: float, cost_s: float) -> float:
        """How long to wait for the next one; `cost_s`: what reading the last one cost this thread."""

    def scraped(self, state: EngineState | None, asked: int, now: int) -> None:
        """One was asked at `asked` and answered at `now`; `None`: it failed."""


class EngineWatch:
    """The latest engine state of one backend, and whether the backend answers at all."""

    def __init__(
        self,
        metrics_url: str,
        *,
        parse: MetricsParser,
        session: SessionMaker,
        server_name: str | None = None,
        period_ns: int,
        timeout_ns: int,
        stale_ns: int,
        jitter: float = 0.0,
        api_key: str | None = None,
    ) -> None:
        """`jitter`: by which share of the period a pause may be shorter or longer."""
        self._url = metrics_url
        self._parse = parse
        self._session = session
        self._server_name = server_name
        self._period_s = period_ns / 1e9
        self._timeout_s = timeout_ns / 1e9
        self._stale_ns = stale_ns
        self._jitter = jitter
        self._api_key = api_key
        self.latest: EngineState | None = None
        """The last state, however old."""
        self._task: asyncio.Task[None] | None = None
        self.scrapes = 0
        self.failures = 0
        self.error = ""
        """Why the last scrape failed; empty when it did not."""
        self.reachable: bool | None = None
        """Whether anybody answers at the engine's address; `None` until somebody has asked."""
        self.lost = 0
        """How often nobody was there: whoever answers after that may be another."""
        self.server = ""
        """The engine's `Server` header."""
        self._quiet_for = 0
        self._first = asyncio.Event()
        self._wake = asyncio.Event()
        self._cost_s = 0.0
        self.reader: ScrapeReader | None = None
        self.on_scrape: Callable[[], None] | None = None
        """Called after each scrape, however it ended."""
        self.look_further: Callable[[], Awaitable[None]] | None = None
        """What else is asked of the engine now and then, after a scrape and never beside one."""
        self.on_late: Callable[[int], None] | None = None
        """Called with the time where an answer did not come within the timeout."""
        self.on_unreachable: Callable[[], None] | None = None
        """Called where a request finds nobody at the engine's address."""

    def ask_at(self, metrics_url: str) -> None:
        """The engine's metrics turn out to be here."""
        if metrics_url != self._url:
            self._url = metrics_url
            self._quiet_for = 0

    def wake(self) -> None:
        """Scrape now, or as soon as the scrape under way has ended."""
        self._wake.set()

    async def first_answer(self) -> None:
        """Wait until the first scrape has ended, however it ended."""
        await self._first.wait()

    def state(self, now: int) -> EngineState | None:
        """The last state, or `None` when there is none or it is too old to say anything about `now`."""
        state = self.latest
        return state if state is not None and now - state.at_ns <= self._stale_ns else None

    def age_ns(self, now: int) -> int | None:
        """Age of the last state, however old."""
        return None if self.latest is None else now - self.latest.at_ns

    @property
    def asks(self) -> bool:
        """Whether this process asks the engine itself."""
        return self._task is not None

    @property
    def counts(self) -> bool:
        """Whether the engine tells how many requests it works on."""
        return self.latest is not None and self.latest.running is not None

    def unreachable(self) -> None:
        """A request found nobody at the engine's address: look again soon."""
        self.reachable = False
        self.lost += 1
        self._quiet_for = 0
        if self.on_unreachable is not None:
            self.on_unreachable()

    def answers(self) -> None:
        """A request got an answer."""
        self.reachable = True

    def start(self) -> None:
        """Begin to scrape. `close` ends it."""
        self._task = asyncio.create_task(self._run())  # noqa: TID251  (owned: `close` cancels and awaits it)

    async def close(self) -> None:
        """Stop and wait."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        headers = {**_AS_TEXT, **({"Authorization": f"Bearer {self._api_key}"} if self._api_key else {})}
        async with self._session(timeout_s=self._timeout_s, headers=headers) as session:
            while True:
                if self._quiet_for > 0:
                    self._quiet_for -= 1
                else:
                    try:
                        await self._scrape(session)
                    finally:
                        self._first.set()
                        if self.on_scrape is not None:
                            self.on_scrape()
                if self.look_further is not None:
                    await self.look_further()
                usual = self._usual_s()
                pause = usual if self.reader is None else self.reader.pause_s(usual, self._cost_s)
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()

    def _usual_s(self) -> float:
        """The period, shorter or longer by chance."""
        chance = int.from_bytes(urandom(2)) / 0xFFFF
        return self._period_s * (1 + self._jitter * (2 * chance - 1))

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        asked = monotonic_ns()
        before = self.latest
        await self._ask(session)
        if self.reader is not None:
            fresh = self.latest if self.latest is not before else None
            self.reader.scraped(fresh, asked, monotonic_ns() if fresh is None else fresh.at_ns)

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        self.scrapes += 1
        try:
            async with session.get(self._url, allow_redirects=False, server_hostname=self._server_name) as answer:
                self.reachable = True
                self.server = answer.headers.get("Server", "")
                if answer.status == 404:
                    self.error = "the engine has no /metrics (404)"
                    self._quiet_for = _BACK_OFF
                    return
                if answer.status != 200:
                    self._failed(f"the engine answers {answer.status} to its metrics")
                    return
                body = bytearray()
                # Piece by piece: `read(n)` returns what has come so far, and half a histogram would be read as a whole.
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > _MAX_BYTES:
                        self._failed(f"the engine's metrics are larger than {_MAX_BYTES >> 20} MiB")
                        return
                text = body.decode("utf-8", "replace")
                began = thread_time_ns()
                self.latest = self._parse(text, self.server, monotonic_ns())
                self._cost_s = (thread_time_ns() - began) / 1e9
                self.error = ""
        except TimeoutError:
            # A busy engine is late with its metrics; it is not gone.
            self._failed(f"no answer within {self._timeout_s * 1e3:.0f} ms")
            if self.on_late is not None:
                self.on_late(monotonic_ns())
        except aiohttp.ClientConnectorError as error:
            self.reachable = False
            self.lost += 1
            self._failed(str(error.os_error.strerror or error))
        except Exception as error:  # noqa: BLE001  (whatever an engine calls its metrics must not end the watch)
            self._failed(str(error) or type(error).__name__)

    def _failed(self, error: str) -> None:
        self.failures += 1
        self.error = error
