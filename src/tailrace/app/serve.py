"""`tailrace serve`: gateway, store, metrics, admin port and page, started in order and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Final, cast

import msgspec
import uvloop

from tailrace.app.admin_port import AdminPort
from tailrace.app.gateway_process import FLUSH_S, GatewayProcess, freeze_loaded, tune_interpreter
from tailrace.app.host_gauges import busiest_gpu, show_signals
from tailrace.app.open_files import FEW, raise_open_files
from tailrace.app.trace_intake import TraceIntake
from tailrace.gateway.applications import GATEWAY, ApplicationRecords, ApplicationSpans
from tailrace.gateway.config import Config
from tailrace.gateway.gateway import Gateway
from tailrace.gateway.history import Address
from tailrace.gateway.host.signals import HostSignals
from tailrace.gateway.served import OneGateway
from tailrace.model.errors import InputError, StoreError
from tailrace.model.record import RequestRecord
from tailrace.store.query import RecordStore
from tailrace.store.table import RecordTable
from tailrace.web.source import LaneNow, LiveNow, StreamNow, dropped_by_class, rungs_in_force

_FIRST_LOOK_S: Final = 1.5


class ServeOptions(msgspec.Struct, kw_only=True):
    """What the command line decides beside the configuration."""

    config: Config
    reload: Callable[[], Config] | None = None
    """Reads the configuration again, on SIGHUP."""
    json: bool = False


def serve(options: ServeOptions) -> None:
    """Serve until SIGINT or SIGTERM. InputError for an address or a directory that cannot be used."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Before any worker is started: they inherit it.
    room = raise_open_files(options.config.limits.connections)
    if room < min(FEW, options.config.limits.connections):
        limit = "the limit of open files (`ulimit -Hn`)"
        sys.stderr.write(f"tailrace serve: warning: {limit} leaves room for {room} clients\n")
    if options.config.workers > 1:
        from tailrace.app.supervisor import supervise  # noqa: PLC0415  (only where there are several)

        uvloop.run(supervise(options.config, reload=options.reload, as_json=options.json))
    else:
        uvloop.run(_serve(options))


class ServingGateway:
    """The composition, for the command and for whoever serves inside a larger one."""

    def __init__(self, config: Config) -> None:
        self.config = config
        AdminPort.check(config)
        process = GatewayProcess(config)
        self.writer, self.metrics, self.gateway = process.writer, process.metrics, process.gateway
        self.store = RecordStore(config.records.dir)
        self.signals = HostSignals(config.signals, config.backends[0])
        self.metrics.on_render(partial(show_signals, self.signals))
        self.gateway.gpu_busy = partial(busiest_gpu, self.signals)
        self.applications = ApplicationRecords(self.writer)
        self.served = served = OneGateway(
            self.gateway,
            applications=self.applications.history,
            signals=self.signals,
            metrics=self.metrics.render,
            history=_History(self.store),
            store_counters=self.writer.counters,
        )
        self.traces = TraceIntake(
            config, self.gateway.amendments, ApplicationSpans(self.applications), holds=self._holds
        )
        self.metrics.on_render(self.traces.set_metrics)
        self._admin = AdminPort(served, GatewayPage(self), self.writer.counters, self.traces, flush=self._flush)
        self.metrics.on_render(self._admin.alerts.set_metrics)

    async def _holds(self, addresses: Sequence[Address]) -> list[bool]:
        return self.gateway.history.holds(addresses)

    async def _flush(self) -> None:
        self.gateway.flush_records()
        await asyncio.to_thread(self.writer.flush, FLUSH_S)

    @property
    def admin_url(self) -> str:
        """Where the admin port is, once it is bound."""
        return self._admin.url

    async def start(self) -> None:
        """Bind both ports. After an error, `close` still has to be called."""
        await self.gateway.start()
        await self.traces.start()
        await self._admin.start()
        self.signals.start()

    async def look_at_engine(self) -> str:
        """Wait for the first answer of the engine; returns why there is none, or nothing."""
        try:
            async with asyncio.timeout(_FIRST_LOOK_S):
                await self.gateway.backends.first_answers()
        except TimeoutError:
            pass
        ready, why = self.gateway.ready()
        return "" if ready else why

    async def close(self, drain_s: float | None = None) -> int:
        """Drain, cut, flush; returns how many requests were cut."""
        cut = await self.gateway.close(drain_s)
        await self._admin.close()
        await self.traces.close()
        await asyncio.gather(asyncio.to_thread(self.writer.close, FLUSH_S), asyncio.to_thread(self.signals.close))
        return cut


class _History:
    """The store as the admin port reads it."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def records(self, since_unix_ns: int | None, limit: int, vantage: str) -> list[RequestRecord]:
        # The store's window includes its start; `since` excludes it, so that a poller can pass the last stamp it has.
        since = None if since_unix_ns is None else since_unix_ns + 1
        return self._store.records(since, limit, vantage=vantage)

    def get(self, request_id: str, vantage: str | None) -> RequestRecord | None:
        return self._store.get(request_id, vantage=vantage)


class GatewayPage:
    """What the page shows of this process."""

    def __init__(self, serving: ServingGateway) -> None:
        self._serving = serving
        self._started = time.monotonic()

    @property
    def title(self) -> str:
        """The engine's address."""
        return self._serving.served.upstream

    async def table(self, since_unix_ns: int | None, limit: int, vantage: str = GATEWAY) -> RecordTable:
        """Records at rest; they are there about 200 ms after a request has ended."""
        return await asyncio.to_thread(self._serving.store.table, since_unix_ns, None, limit, vantage=vantage)

    async def record(self, request_id: str, vantage: str | None = None) -> RequestRecord | None:
        """One record with its timeline; the gateway's first, if no vantage is said."""
        return await self._serving.served.record(request_id, vantage)

    async def live(self) -> LiveNow:
        """The state of this moment."""
        gateway = self._serving.gateway
        now = monotonic_ns()
        engine = gateway.backends.first.engine
        state = engine.watch.state(now)
        out: LiveNow = {
            "in_flight": len(gateway.in_flight),
            "lanes": cast("dict[str, LaneNow]", gateway.lanes.snapshot(now)),
            "streams": cast("list[StreamNow]", gateway.streams()),
            "given_up": rungs_in_force([gateway.degradation_view()]),
            "dropped": dropped_by_class(self._serving.writer.counters()),
            "loop_lag_ms": gateway.loop_lag_max_ns / 1e6,
            "uptime_s": time.monotonic() - self._started,
            "engine": engine.name,
            "engine_version": engine.version_with_caveat,
            "engine_trouble": engine.unready(),
            "simulated": "simulated" in engine.watch.server,
            "upstream": self._serving.served.upstream,
            "upstream_ok": engine.reachable,
            "host": self._serving.signals.words(),
            "applications": self._serving.applications.records,
        }
        if state is not None:
            out["engine_state"] = {
                name: value
                for name in ("running", "waiting", "kv_usage")
                if (value := getattr(state, name)) is not None
            }
        return out


async def _serve(options: ServeOptions) -> None:
    tune_interpreter()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def ask_to_stop() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask_to_stop)
    serving = ServingGateway(options.config)
    try:
        await serving.start()
        if options.reload is not None:
            loop.add_signal_handler(signal.SIGHUP, _reload, serving.gateway, options.reload)
        why = await serving.look_at_engine()
        freeze_loaded()
        _announce(serving, why, as_json=options.json)
        await stop.wait()
    finally:
        closing = asyncio.ensure_future(serving.close())
        hurrying = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({closing, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if hurry.is_set():
            serving.gateway.cut_now()
        cut = await closing
        hurrying.cancel()
        _account(serving, cut)


def _reload(gateway: Gateway, read: Callable[[], Config]) -> None:
    try:
        gateway.reconfigure(read(), "SIGHUP")
    except InputError as error:
        sys.stderr.write(f"tailrace serve: the configuration was not reloaded: {error}\n")
    else:
        sys.stderr.write("tailrace serve: the configuration was reloaded\n")


def _announce(serving: ServingGateway, why: str, *, as_json: bool) -> None:
    gateway = serving.gateway
    if why:
        sys.stderr.write(f"tailrace serve: warning: {why}. Serving all the same; requests get 503 until it answers.\n")
        sys.stderr.flush()
    if gateway.routing is not None and gateway.routing.canary is not None:
        sys.stderr.write(f"tailrace serve: canary: {gateway.routing.canary.decision}\n")
    if as_json:
        line = {
            "ready": True,
            "url": gateway.url,
            "admin": serving.admin_url,
            "pid": os.getpid(),
            "upstream": serving.served.upstream,
            "upstream_ok": gateway.backends.first.engine.reachable,
            "engine": gateway.backends.first.engine.name,
        }
        if gateway.rpc is not None:
            line["grpc"] = gateway.rpc.address
        if serving.traces.grpc_address:
            line["traces_grpc"] = serving.traces.grpc_address
        text = msgspec.json.encode(line).decode()
    else:
        engine = (
            f"{gateway.backends.first.engine.name} {gateway.backends.first.engine.version_with_caveat}".strip()
            or "engine not recognised"
        )
        base = gateway.url if gateway.url.startswith("unix:") else f"{gateway.url}/v1"
        text = (
            f"Tailrace gateway   {base}   ->  {serving.served.upstream} ({engine})\n"
            + (
                f"gRPC               {gateway.rpc.address}   ->  {gateway.backends.grpc.config.grpc_url}\n"
                if gateway.rpc
                else ""
            )
            + f"page and admin     {serving.admin_url}/\n"
            f"records            {Path(serving.config.records.dir).resolve()}\n"
            "Ctrl-C ends it."
        )
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _account(serving: ServingGateway, cut: int) -> None:
    counters = serving.gateway.counters
    lost = sum(serving.writer.dropped.values())
    if counters.records or cut:
        sys.stderr.write(
            f"tailrace serve: {counters.records} requests recorded, {cut} cut by the stop, {lost} records lost\n"
        )
    if serving.writer.error:
        raise StoreError(serving.writer.error)
