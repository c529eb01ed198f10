"""What the admin port answers for: one gateway in this process, or several processes that serve as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any, Protocol

import msgspec

from tailrace.gateway.applications import GATEWAY
from tailrace.gateway.cancels import CancelWatch
from tailrace.gateway.config import Config
from tailrace.gateway.engine_link import EngineLink
from tailrace.gateway.gateway import Gateway
from tailrace.gateway.history import Follower, History
from tailrace.gateway.host.signals import HostSignals
from tailrace.gateway.routing import command, no_canary
from tailrace.govern.lane import LanePolicy
from tailrace.govern.objectives import QUANTILES, objective_name
from tailrace.measure.application import VANTAGE as APPLICATION
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord


class RecordHistory(Protocol):
    """Older records than a gateway holds in memory. Called in a thread: it may read files."""

    def records(self, since_unix_ns: int | None, limit: int, vantage: str) -> list[RequestRecord]:
        """The newest `limit` records of one vantage that began after `since_unix_ns`, oldest first."""

    def get(self, request_id: str, vantage: str | None) -> RequestRecord | None:
        """One record by our id or the client's; `None`: the gateway's, or else an application's."""


class Served(Protocol):
    """The views and the one control of a data port, however many processes stand behind it."""

    @property
    def config(self) -> Config:
        """The configuration in force."""

    @property
    def closing(self) -> bool:
        """Whether it shuts down."""

    @property
    def upstream(self) -> str:
        """The engines' addresses."""

    @property
    def engine(self) -> EngineLink:
        """The way to ask the first engine something beside the requests."""

    def ready(self) -> tuple[bool, str]:
        """Whether new requests would be served, and why not."""

    async def health(self) -> dict[str, Any]:
        """Addresses, gauges and counters."""

    async def streams(self) -> list[dict[str, Any]]:
        """Requests in flight."""

    async def cancel(self, request_id: str) -> str:
        """End a request in flight for an operator; returns its stage, or nothing where there is no such request.

        InputError for one that cannot be ended without its neighbour.
        """

    async def cancels(self) -> list[dict[str, Any]]:
        """The last cancels that had reached the engine, oldest first."""

    async def happenings(self) -> list[dict[str, Any]]:
        """What changed while it served, oldest first."""

    async def cache(self) -> dict[str, Any] | None:
        """The response cache: what became of the questions, what is held; `None` where nothing is cached."""

    async def purge_cache(self) -> int:
        """Forget every kept answer; returns how many there were."""

    async def lanes(self) -> dict[str, dict[str, Any]]:
        """Lane -> limits and occupancy."""

    async def degradation(self) -> list[dict[str, Any]]:
        """Of each process: where its ladder stands and why, and its gaps in mid-stream."""

    async def backends(self, window_ns: int) -> list[dict[str, Any]]:
        """The engines, the connections to them, and what their metrics say of the last `window_ns`."""

    async def drain(self, name: str, *, on: bool) -> None:
        """Keep new requests away from a backend, or let them go to it again. InputError for an unknown name."""

    async def balance(self) -> dict[str, Any]:
        """Skew, retries and affinity over all backends."""

    def signals(self, since_unix_ns: int | None) -> dict[str, Any] | None:
        """What is read of this machine, as `HostSignals.view` gives it; `None` where nothing reads it."""

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Body and content type of `/metrics`; `None` where none are kept."""

    async def recent(self, since_unix_ns: int | None, limit: int, vantage: str = GATEWAY) -> list[RequestRecord]:
        """The newest `limit` records of one vantage that began after `since_unix_ns`, oldest first."""

    async def record(self, request_id: str, vantage: str | None = None) -> RequestRecord | None:
        """One record by our id or the client's; `None`: the gateway's, or else an application's."""

    def follow(self, vantage: str = GATEWAY) -> AbstractContextManager[Follower]:
        """Receive every record of one vantage from now on."""

    async def canary(self) -> dict[str, Any]:
        """The canary and the shadow, as `GET /canary` answers."""

    async def steer_canary(self, action: str, share: float | None) -> None:
        """Pin, pause, resume, promote or abort it. InputError where there is none, or that cannot be."""

    async def reconfigure(self, config: Config, by: str = "") -> None:
        """Apply a configuration everywhere, or nowhere; `by`: who wants it. InputError: it changes what is fixed."""


def cancel_by_operator(gateway: Gateway, request_id: str) -> str:
    """End a request in flight; returns its stage, or nothing where there is no such request."""
    return gateway.cancel(request_id, Reason.OPERATOR, "an operator cancelled this request")


def objectives_of(config: Config) -> list[tuple[str, str, int]]:
    """Every objective, the lanes' own too: name as shown, metric, bound (ns)."""
    out = [("", config.objectives), *((f"{lane.name}: ", lane.objectives or {}) for lane in config.lanes)]
    return [
        (f"{lane}{key}", parsed[0], int(bound))
        for lane, objectives in out
        for key, bound in objectives.items()
        if (parsed := objective_name(key)) is not None
    ]


def check_backend(config: Config, name: str) -> None:
    """InputError where there is no backend of this name."""
    names = [backend.name for backend in config.backends]
    if name not in names:
        raise InputError(f"there is no backend {name!r}", place="name", remedy=f"The backends are {', '.join(names)}.")


def upstream_of(config: Config) -> str:
    """The engines' addresses, for people."""
    return ", ".join(backend.url for backend in config.backends)


def cancel_views(watches: Iterable[CancelWatch]) -> list[dict[str, Any]]:
    """The last cancels of several engines, oldest first."""
    cancels = sorted((cancel for watch in watches for cancel in watch.recent), key=lambda cancel: cancel.since)
    return [cancel.view() for cancel in cancels]


def lane_view(policy: LanePolicy) -> dict[str, Any]:
    """What is configured of a lane, beside its numbers of the moment."""
    budgets: dict[str, int] = msgspec.to_builtins(policy.budgets)
    names = {quantile: name for name, quantile in QUANTILES.items()}
    return {
        "match": msgspec.to_builtins(policy.match),
        "budgets_ms": {key.removesuffix("_ns"): value / 1e6 for key, value in budgets.items()},
        "objectives_ms": {
            f"{metric}_p{names[quantile]}": bound / 1e6
            for metric, bounds in policy.objectives.bounds.items()
            for quantile, bound in bounds.items()
        },
    }


class OneGateway:
    """The gateway of this process, and what a composition adds to it."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        metrics: Callable[[str], tuple[bytes, str]] | None = None,
        history: RecordHistory | None = None,
        applications: History | None = None,
        store_counters: Callable[[], dict[str, Any]] | None = None,
        signals: HostSignals | None = None,
    ) -> None:
        """`applications`: what services before us have reported of their requests."""
        self._gateway = gateway
        self._signals = signals
        self._applications = History() if applications is None else applications
        self._metrics = metrics
        self._history = history
        self._store_counters = store_counters

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._gateway.config

    @property
    def closing(self) -> bool:
        """Whether it shuts down."""
        return self._gateway.closing

    @property
    def upstream(self) -> str:
        """The engines' addresses."""
        return upstream_of(self._gateway.config)

    @property
    def engine(self) -> EngineLink:
        """The way to ask the first engine something beside the requests."""
        return self._gateway.backends.first.engine

    def ready(self) -> tuple[bool, str]:
        """Whether new requests would be served, and why not."""
        return self._gateway.ready()

    async def health(self) -> dict[str, Any]:
        """Addresses, gauges and counters."""
        gateway = self._gateway
        out = {
            "url": gateway.url,
            "upstream": self.upstream,
            "started_unix_ns": gateway.started_unix_ns,
            **gateway.live(),
        }
        if self._store_counters is not None:
            out["store"] = self._store_counters()
        return out

    async def streams(self) -> list[dict[str, Any]]:
        """Requests in flight."""
        return self._gateway.streams()

    async def cancel(self, request_id: str) -> str:
        """End a request in flight for an operator; returns its stage, or nothing where there is no such request."""
        return cancel_by_operator(self._gateway, request_id)

    async def cancels(self) -> list[dict[str, Any]]:
        """The last cancels that had reached the engine, oldest first."""
        return cancel_views(backend.cancels for backend in self._gateway.backends)

    async def happenings(self) -> list[dict[str, Any]]:
        """What changed while it served, oldest first."""
        self._gateway.look_around(monotonic_ns())
        return self._gateway.happenings.view()

    async def lanes(self) -> dict[str, dict[str, Any]]:
        """Lane -> limits and occupancy."""
        desk = self._gateway.lanes
        lanes = desk.snapshot(monotonic_ns())
        return {name: {**lane, **lane_view(desk.policy(name))} for name, lane in lanes.items()}

    async def cache(self) -> dict[str, Any] | None:
        """The response cache: what became of the questions, what is held; `None` where nothing is cached."""
        cache = self._gateway.cache
        return None if cache is None else cache.view()

    async def purge_cache(self) -> int:
        """Forget every kept answer; returns how many there were."""
        cache = self._gateway.cache
        return 0 if cache is None else cache.purge()

    async def degradation(self) -> list[dict[str, Any]]:
        """Where the ladder stands."""
        return [self._gateway.degradation_view()]

    async def backends(self, window_ns: int) -> list[dict[str, Any]]:
        """The engines behind us."""
        gateway = self._gateway
        now = monotonic_ns()
        return [
            {
                "name": backend.name,
                "url": backend.url,
                **backend.engine.view(now),
                **backend.engine.window_view(now, window_ns, objectives_of(gateway.config)),
                "inference": backend.waits.view(),
                **gateway.backends.load(backend),
            }
            for backend in gateway.backends
        ]

    async def balance(self) -> dict[str, Any]:
        """Skew, retries and affinity over all backends."""
        return self._gateway.backends.balancing.whole_view(monotonic_ns())

    def signals(self, since_unix_ns: int | None) -> dict[str, Any] | None:
        """What is read of this machine."""
        return None if self._signals is None else self._signals.view(since_unix_ns)

    async def drain(self, name: str, *, on: bool) -> None:
        """Keep new requests away from a backend, or let them go to it again."""
        check_backend(self._gateway.config, name)
        backend = self._gateway.backends.named(name)
        if backend is not None:
            backend.engine.drain(on=on)

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Body and content type of `/metrics`."""
        return None if self._metrics is None else self._metrics(accept)

    def _ring(self, vantage: str | None) -> History:
        return self._applications if vantage == APPLICATION else self._gateway.history

    async def recent(self, since_unix_ns: int | None, limit: int, vantage: str = GATEWAY) -> list[RequestRecord]:
        """The newest `limit` records of one vantage that began after `since_unix_ns`, oldest first."""
        ring, older = self._ring(vantage), self._history
        found = ring.since(since_unix_ns, limit)
        if older is None or len(found) >= limit:
            return found
        if since_unix_ns is not None and ring.reaches_back_to(since_unix_ns):
            return found
        # The ring does not reach back so far; the store does, but lags by its last commit.
        newest_here = {record.request_id for record in found}
        stored = await asyncio.to_thread(older.records, since_unix_ns, limit, vantage)
        merged = [record for record in stored if record.request_id not in newest_here] + found
        merged.sort(key=lambda record: record.start_unix_ns)
        return merged[-limit:]

    async def record(self, request_id: str, vantage: str | None = None) -> RequestRecord | None:
        """One record by our id or the client's; `None`: the gateway's, or else an application's."""
        record = self._ring(vantage).get(request_id)
        if record is None and self._history is not None:
            record = await asyncio.to_thread(self._history.get, request_id, vantage or GATEWAY)
        if record is None and vantage is None:
            return await self.record(request_id, APPLICATION)
        return record

    def follow(self, vantage: str = GATEWAY) -> AbstractContextManager[Follower]:
        """Receive every record of one vantage from now on."""
        return self._ring(vantage).follow()

    async def canary(self) -> dict[str, Any]:
        """The canary and the shadow."""
        routing = self._gateway.routing
        return no_canary() if routing is None else routing.view()

    async def steer_canary(self, action: str, share: float | None) -> None:
        """Pin, pause, resume, promote or abort it."""
        command(self._gateway.routing, action, share)

    async def reconfigure(self, config: Config, by: str = "") -> None:
        """Apply a configuration."""
        self._gateway.reconfigure(config, by)
