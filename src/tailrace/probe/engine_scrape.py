"""What the engine's metrics say while a run goes on: one small request at a time, beside the load.

Only the lines that the adapter reads are parsed (an engine's page has thousands), so a scrape of 500 KB costs the event
loop about a millisecond. An answer that is late or broken is counted and skipped; a server without metrics is asked
once. The time that all this takes is the client's own and counts as its processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from time import monotonic_ns
from typing import Final

import msgspec

from tailrace.engines.base import EngineAdapter
from tailrace.engines.registry import adapter, detect
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import TargetError
from tailrace.model.thresholds import S
from tailrace.probe.conditions import GATEWAY_HEADER
from tailrace.probe.pool import ConnectError, ConnectionPool, ask, resolve
from tailrace.probe.progress import OnProgress, Progress
from tailrace.probe.request import Envelope
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target, tls_for
from tailrace.probe.url import parse_url

_TIMEOUT_S: Final = 2.0
_MOST_BYTES: Final = 8 << 20
_GIVE_UP: Final = 5
"""Failures in a row at the beginning, after which nothing is there to be scraped."""


class Scraping:
    """The engine's states of one run. `take` is given each, with `at_ns` counted from the start of the measured part.

    States from before that start are held back until it is known.
    """

    def __init__(self, take: Callable[[EngineState], None]) -> None:
        self.seen = self.missed = 0
        """Scrapes that were read, and that were not."""
        self.note = ""
        """Why there are none, where there are none."""
        self._take = take
        self._began: int | None = None
        self._held: list[EngineState] = []

    def watch(self, progress: Progress) -> None:
        """Learn from how the run goes when its measured part began."""
        if self._began is None and progress.elapsed_s > 0:
            self._began = monotonic_ns() - round(progress.elapsed_s * S)
            held, self._held = self._held, []
            for state in held:
                self._give(state, self._began)

    def state(self, state: EngineState) -> None:
        """Take one in; `at_ns` is monotonic."""
        self.seen += 1
        if self._began is None:
            self._held.append(state)
        else:
            self._give(state, self._began)

    def _give(self, state: EngineState, began: int) -> None:
        self._take(msgspec.structs.replace(state, at_ns=state.at_ns - began))


@contextlib.asynccontextmanager
async def scraping(
    spec: BenchSpec, target: Target, take: Callable[[EngineState], None], on_progress: OnProgress | None = None
) -> AsyncIterator[tuple[Scraping, OnProgress]]:
    """Scrape while the body runs; give its `OnProgress` to the load. Nothing that goes wrong here ends the run.

    Only what `take` itself raises (the disk is full) reaches the body's end.
    """
    scrapes = Scraping(take)

    def watch(progress: Progress) -> None:
        scrapes.watch(progress)
        if on_progress is not None:
            on_progress(progress)

    task = None
    if spec.scrape_ns > 0:
        task = asyncio.ensure_future(_run(spec, target, scrapes))
    try:
        yield scrapes, watch
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is not None:
                task.result()


async def _run(spec: BenchSpec, target: Target, scrapes: Scraping) -> None:
    where = await _where(spec, target)
    if isinstance(where, str):
        scrapes.note = where
        return
    pool, request, engine = where
    try:
        due = monotonic_ns()
        while True:
            if not await _once(pool, request, engine, scrapes) and not scrapes.seen and scrapes.missed >= _GIVE_UP:
                scrapes.note = "no metrics of the engine could be read"
                return
            # An answer that took longer than the period costs its own turns, not the next one's.
            due = max(due + spec.scrape_ns, monotonic_ns())
            await asyncio.sleep((due - monotonic_ns()) / S)
    finally:
        pool.close()


async def _where(spec: BenchSpec, target: Target) -> tuple[ConnectionPool, bytes, EngineAdapter | None] | str:
    """The place of the metrics, and who says them (`None`: its first answer will tell); or why there is none."""
    if spec.metrics_url:
        url = parse_url(spec.metrics_url)
        path = _path_of(spec.metrics_url)
        try:
            address = await resolve(url.host, url.port, tls_for(spec) if url.tls else None)
        except TargetError as error:
            return str(error)
        # The key is the target's; another port of the same host is still the target.
        key = spec.api_key if url.host == target.address.host else ""
        envelope = Envelope(url.host_header, path, api_key=key)
        return ConnectionPool(address, connect_timeout_s=_TIMEOUT_S), envelope.get(path), None
    if GATEWAY_HEADER in target.headers:
        return "a gateway's data port has no metrics; --metrics-url names the engine's"
    found = detect(target.headers, target.metric_names)
    engine = adapter(found.name)
    if engine.metrics_path is None or not target.metric_names:
        return "the server has no metrics of an engine; --metrics-url names another place"
    pool = ConnectionPool(target.address, connect_timeout_s=_TIMEOUT_S)
    return pool, target.envelope.get(engine.metrics_path), engine


def _path_of(text: str) -> str:
    """The path of a metrics URL: its own, or `/metrics` where it has none."""
    rest = text.partition("://")[2] or text
    path = rest[rest.find("/") :] if "/" in rest else ""
    return path if path.strip("/") else "/metrics"


async def _once(pool: ConnectionPool, request: bytes, engine: EngineAdapter | None, scrapes: Scraping) -> bool:
    try:
        answer = await ask(pool, request, timeout_s=_TIMEOUT_S, limit=_MOST_BYTES)
    except ConnectError:
        scrapes.missed += 1
        return False
    state = None
    if answer.status == 200 and not answer.cut:
        state = read_scrape(answer.body, answer.at_ns, engine or _speaker(answer.body))
    if state is None or not state.names:
        scrapes.missed += 1
        return False
    scrapes.state(state)
    return True


def _speaker(body: bytes) -> EngineAdapter:
    names = {line.partition(b"{")[0].partition(b" ")[0] for line in body.split(b"\n") if line[:1] not in (b"#", b"")}
    return adapter(detect({}, [name.decode("ascii", "replace") for name in names]).name)


def read_scrape(body: bytes, at_ns: int, engine: EngineAdapter) -> EngineState:
    """The state that a page of metrics shows, of which only the lines with the engine's signals are looked at."""
    names = tuple({alias.name.encode() for aliases in engine.signals.values() for alias in aliases})
    wanted = [line for line in body.split(b"\n") if line.startswith(names)] if names else []
    return engine.parse_metrics(b"\n".join(wanted).decode("utf-8", "replace") + "\n", at_ns)
