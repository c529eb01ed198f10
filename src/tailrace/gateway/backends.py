"""All engines behind the gateway, and which of them gets the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from tailrace.gateway.amendments import AmendmentSink
from tailrace.gateway.backend import Backend
from tailrace.gateway.balancing import Balancing
from tailrace.gateway.config import Config
from tailrace.govern.balance import Want
from tailrace.model.gap_event import GapEvent

if TYPE_CHECKING:
    from tailrace.gateway.in_flight import InFlight
    from tailrace.gateway.record_desk import Ended


class Backends:
    """The configured engines, in the order of the file."""

    def __init__(self, config: Config, in_flight: Callable[[], Iterable[InFlight]], amendments: AmendmentSink) -> None:
        self._make = partial(Backend, in_flight=in_flight, amendments=amendments)
        self._all = [self._make(backend, config) for backend in config.backends]
        self._leaving: list[Backend] = []
        """Configured no longer; they serve what they have to its end."""
        self._closing: set[asyncio.Future[None]] = set()
        self._asking = False
        self.on_added: Callable[[Backend], None] | None = None
        """Hears of backends that a new configuration adds."""
        self.balancing = Balancing(config, self._all, Random())  # noqa: S311  (spreads load, guards nothing)

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def first(self) -> Backend:
        """The first of the file: what a request is accounted to until one is chosen for it."""
        return self._all[0]

    @property
    def grpc(self) -> Backend:
        """The one that serves gRPC; the first, where none does."""
        return next((backend for backend in self._all if backend.config.grpc_url is not None), self._all[0])

    @property
    def sole_name(self) -> str:
        """The name of the only one; empty where there are several, and it is not known yet which serves a request."""
        return self._all[0].name if len(self._all) == 1 else ""

    @property
    def engine_name(self) -> str:
        """Which engine they all are; empty where they differ or nobody knows."""
        name = self._all[0].engine.name
        if len(self._all) == 1:
            return name
        return name if all(backend.engine.name == name for backend in self._all) else ""

    def named(self, name: str) -> Backend | None:
        """The backend of that name."""
        return next((backend for backend in self._all if backend.name == name), None)

    def able(self, among: Collection[str] = ()) -> Sequence[Backend]:
        """Those that take requests. `among`: only these names, where there are any.

        One that does not answer its scrapes gets none while another does: it may be back before the next scrape says
        so, so it is better than nobody.
        """
        able = [backend for backend in self._all if not backend.shut and (not among or backend.name in among)]
        answering = [backend for backend in able if backend.engine.reachable is not False]
        return answering or able

    def choose(
        self, want: Want | None, now: int, *, among: Collection[str] = (), but: Collection[Backend] = ()
    ) -> Backend | None:
        """Who serves a request (`govern.balance`); `None` where no engine takes requests.

        `among`: only these names, where there are any. `but`: not these, unless nothing else is left.
        """
        if len(self._all) == 1 and not among:
            only = self._all[0]
            return None if only.shut else only
        return self.balancing.choose(self.able(among), want, now, but)

    @property
    def shut(self) -> bool:
        """Whether none of them takes a new request."""
        for backend in self._all:  # noqa: SIM110  (asked for every request: a generator would be most of its cost)
            if not backend.engine.shut:
                return False
        return True

    def unready(self) -> str:
        """Why no request sent now would be served; empty where one would."""
        whys = [backend.engine.unready() for backend in self._all]
        return "; ".join(whys) if all(whys) else ""

    def connections(self) -> dict[str, int]:
        """Those of all engines together."""
        pools = [backend.pool for backend in self._all]
        return {
            "upstream_connections": sum(len(pool.open) for pool in pools),
            "upstream_idle": sum(len(pool.idle) for pool in pools),
            "upstream_waiting": sum(len(pool.line) for pool in pools),
        }

    def load(self, backend: Backend) -> dict[str, Any]:
        """What of ours is with a backend, and how it stands; numbers of several processes add up."""
        return {**backend.load(), **self.balancing.view(backend, monotonic_ns())}

    def hear_gaps(self, listeners: list[Callable[[GapEvent], None]]) -> None:
        """Where there are several, a stream that stands still speaks against its engine."""
        hear = self.balancing.gap
        if hear in listeners:
            listeners.remove(hear)
        if len(self._all) > 1:
            listeners.append(hear)

    # -- life

    def start(self) -> None:
        """Begin to ask every engine."""
        self._asking = True
        for backend in self._all:
            backend.engine.start()

    async def first_answers(self) -> None:
        """Wait until every engine has been asked once."""
        await asyncio.gather(*(backend.engine.watch.first_answer() for backend in self._all))

    def apply(self, config: Config) -> None:
        """A new configuration. InputError for certificates that cannot be used: then nothing has changed.

        A backend whose entry is new or leads elsewhere begins slowly; one that is gone serves what it has to its end.
        """
        staying = self._staying(config)
        fresh = [self._make(entry, config) for entry in config.backends if entry.name not in staying]
        contexts = {name: backend.engine.fresh_tls() for name, backend in staying.items()}
        made = {backend.name: backend for backend in fresh}
        now = monotonic_ns()
        for entry in config.backends:
            backend = staying.get(entry.name)
            if backend is not None:
                backend.config = entry
                backend.apply(config, contexts[entry.name])
        self._leaving += [backend for backend in self._all if staying.get(backend.name) is not backend]
        self._all = [staying.get(entry.name) or made[entry.name] for entry in config.backends]
        self.balancing.apply(config, self._all)
        for backend in fresh:
            backend.standing.came_back(now)
            if self.on_added is not None:
                self.on_added(backend)
            if self._asking:
                backend.engine.start()

    def _staying(self, config: Config) -> dict[str, Backend]:
        entries = {entry.name: entry for entry in config.backends}
        return {one.name: one for one in self._all if one.name in entries and one.same_engine(entries[one.name])}

    def check(self, config: Config) -> None:
        """InputError where `apply` would raise one."""
        staying = self._staying(config)
        for backend in staying.values():
            backend.engine.fresh_tls()
        for entry in config.backends:
            if entry.name not in staying:
                self._make(entry, config)  # its certificates are read; nothing is opened

    def recall(self, batch: list[Ended]) -> None:
        """The records of these are about to be made: each engine's own are neighbours of one another."""
        if len(self._all) == 1 and not self._leaving:
            self._all[0].waits.begin(batch)
            return
        for backend in (*self._all, *self._leaving):
            own = [ended for ended in batch if ended.exchange is not None and ended.exchange.backend is backend]
            if own:
                backend.waits.begin(own)

    def sweep(self, now: int) -> None:
        """Once a second: drop connections that have been idle too long, look for outliers."""
        for backend in self._all:
            backend.pool.sweep(now)
        self.balancing.sweep(now)
        for backend in self._leaving.copy():
            if not backend.ours():
                self._leaving.remove(backend)
                done = asyncio.ensure_future(backend.close())
                self._closing.add(done)
                done.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all, and wait."""
        leaving, self._leaving = self._leaving, []
        await asyncio.gather(*(backend.close() for backend in (*self._all, *leaving)), *self._closing)
