"""The engines of a fleet of workers: one watch on each, whatever the number of workers that send to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from tailrace.app.fleet_cancels import FleetCancels
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.amendments import AmendmentSink
from tailrace.gateway.cancels import Cancel
from tailrace.gateway.config import Config
from tailrace.gateway.engine_link import EngineLink, EngineNews

if TYPE_CHECKING:
    from tailrace.gateway.config_sections import BackendConfig

Told = Callable[[str, EngineNews], None]
"""Spreads what has been learnt of the backend of this name."""


class FleetEngine:
    """One engine, and the cancelled requests that are followed into it."""

    def __init__(self, backend: BackendConfig, config: Config, fleet: FleetEngines) -> None:
        self.name = backend.name
        self.link = EngineLink(backend, config.scrape)
        self.cancels = FleetCancels(
            lambda: fleet.at_engine(self.name),
            wake=self.link.watch.wake,
            period_ns=int(config.scrape.period),
            amendments=fleet.amendments,
            metrics=fleet.metrics,
        )
        self.link.judge.tally = lambda: fleet.tally(self.name)
        self.link.watch.on_scrape = lambda: fleet.told(self.name, self.link.news())
        self.link.watch.reader = self.cancels

    async def close(self) -> None:
        """Stop asking."""
        await self.link.close()
        await self.cancels.close()


class FleetEngines:
    """All of them, in the order of the file. `start` begins to ask."""

    def __init__(
        self,
        config: Config,
        *,
        at_engine: Callable[[str], Awaitable[list[int] | None]],
        tally: Callable[[str], dict[str, int]],
        told: Told,
        amendments: AmendmentSink,
        metrics: GatewayMetrics,
    ) -> None:
        """`at_engine`: when our requests were sent that the backend of that name works on (ns), from all workers.

        `tally`: what was sent to it so far, by how that ended. `told`: its news are to be spread.
        """
        self.at_engine = at_engine
        self.tally = tally
        self.told = told
        self.amendments = amendments
        self.metrics = metrics
        self._all = [FleetEngine(backend, config, self) for backend in config.backends]

    def __iter__(self) -> Iterator[FleetEngine]:
        return iter(self._all)

    @property
    def first(self) -> EngineLink:
        """The first engine of the file."""
        return self._all[0].link

    def named(self, name: str) -> FleetEngine | None:
        """The engine of the backend of that name."""
        return next((engine for engine in self._all if engine.name == name), None)

    def follow_cancel(self, cancel: Cancel) -> None:
        """A worker's request was cancelled that had reached an engine."""
        engine = self.named(cancel.backend)
        if engine is not None:
            engine.cancels.watch.follow(cancel, metrics=engine.link.watch.counts)

    def unreachable(self, backend: str) -> None:
        """A worker's request found nobody at that engine's address."""
        engine = self.named(backend)
        if engine is not None:
            engine.link.watch.unreachable()

    def links(self) -> dict[str, EngineLink]:
        """Backend -> its engine."""
        return {engine.name: engine.link for engine in self._all}

    def unready(self) -> str:
        """Why no request sent now would be served; empty where one would."""
        whys = [engine.link.unready() for engine in self._all]
        return "; ".join(whys) if all(whys) else ""

    def start(self) -> None:
        """Begin to ask every engine."""
        for engine in self._all:
            engine.link.start()

    async def first_answers(self) -> None:
        """Wait until every engine has been asked once."""
        await asyncio.gather(*(engine.link.watch.first_answer() for engine in self._all))

    async def follow_configuration(self, config: Config) -> None:
        """Engines that have changed are asked anew; those that an operator drains stay drained."""
        draining = {engine.name for engine in self._all if engine.link.draining}
        await self.close()
        self._all = [FleetEngine(backend, config, self) for backend in config.backends]
        for engine in self._all:
            engine.link.drain(on=engine.name in draining)
        self.start()

    def check_tls(self) -> None:
        """InputError for certificates that cannot be used."""
        for engine in self._all:
            engine.link.fresh_tls()

    def renew_tls(self) -> None:
        """Read the certificates again."""
        for engine in self._all:
            engine.link.tls = engine.link.fresh_tls()

    async def close(self) -> None:
        """Stop asking, and wait."""
        await asyncio.gather(*(engine.close() for engine in self._all))
