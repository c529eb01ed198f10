"""`tailrace serve`: gateway, store, metrics, admin port and page, started in order and stopped in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, cast

import msgspec
import uvloop
from aiohttp import web

from tailrace.app.open_files import FEW, raise_open_files
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.admin import AdminParts, is_loopback, make_admin
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.gateway import Gateway, bind_error, split_address
from tailrace.model.errors import ConfigError, InputError, StoreError
from tailrace.model.record import RequestRecord
from tailrace.store.query import RecordStore
from tailrace.store.table import RecordTable
from tailrace.store.writer import RecordWriter, WriterOptions
from tailrace.web.page import OPEN_PATHS, add_page
from tailrace.web.source import LaneNow, LiveNow, StreamNow, dropped_by_class

FLUSH_S: Final = 0.4
"""How long the last records may take to reach the disk: with the drain budget it stays under two seconds."""
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
    room = raise_open_files(options.config.limits.connections)
    if room < FEW:
        limit = "the limit of open files (`ulimit -Hn`)"
        sys.stderr.write(f"tailrace serve: warning: {limit} leaves room for {room} clients\n")
    uvloop.run(_serve(options))


class ServingGateway:
    """The composition, for the command and for whoever serves inside a larger one."""

    def __init__(self, config: Config) -> None:
        self.config = config
        host, _ = split_address(config.admin, "admin")
        if not is_loopback(host) and not config.admin_token:
            raise ConfigError(
                "the admin port would be open to the network without a token",
                place="admin",
                remedy="Set `admin_token`, or bind it to 127.0.0.1.",
            )
        records = config.records
        self.writer = RecordWriter(
            records.dir,
            WriterOptions(
                capacity=records.queue,
                seal_rows=records.seal_rows,
                seal_after_s=int(records.seal_after) / 1e9,
                keep_days=int(records.retention) / 86400e9,
            ),
        )
        self.store = RecordStore(records.dir)
        self.metrics = GatewayMetrics(parse_objectives(config.objectives))
        self.metrics.on_render(self._set_gauges)
        self.gateway = Gateway(config, self.writer, observer=self.metrics)
        self._runner: web.AppRunner | None = None
        self.admin_url = ""

    async def start(self) -> None:
        """Bind both ports. After an error, `close` still has to be called."""
        gateway = self.gateway
        await gateway.start()
        app = make_admin(
            gateway,
            AdminParts(
                metrics=self.metrics.render,
                history=_History(self.store),
                store_counters=self.writer.counters,
                diagnose=self._diagnose,
                open_paths=OPEN_PATHS,
            ),
        )
        add_page(app, GatewayPage(self))
        runner = self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        host, port = split_address(self.config.admin, "admin")
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:
            raise bind_error(error, self.config.admin, "--admin") from None
        address = runner.addresses[0]
        self.admin_url = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"

    async def look_at_engine(self) -> str:
        """Wait for the first answer of the engine; returns why there is none, or nothing."""
        try:
            async with asyncio.timeout(_FIRST_LOOK_S):
                await self.gateway.engine.watch.first_answer()
        except TimeoutError:
            pass
        ready, why = self.gateway.ready()
        return "" if ready else why

    async def close(self, drain_s: float | None = None) -> int:
        """Drain, cut, flush; returns how many requests were cut."""
        cut = await self.gateway.close(drain_s)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await asyncio.to_thread(self.writer.close, FLUSH_S)
        return cut

    def _diagnose(self, records: list[RequestRecord]) -> dict[str, Any]:
        """What `GET /diagnosis` answers; called in a thread."""
        from tailrace.app.diagnose import diagnose_records  # noqa: PLC0415  (scipy: only when somebody asks)

        counters = self.writer.counters()
        lost = sum(dropped_by_class(counters).values())
        return diagnose_records(
            records,
            objectives=parse_objectives(self.config.objectives),
            dropped=lost / max(1, lost + counters["acknowledged"]),
        )

    def _set_gauges(self, metrics: GatewayMetrics) -> None:
        """The live numbers, pulled by each scrape."""
        gateway = self.gateway
        gateway.flush_records()
        now = monotonic_ns()
        for name in ("tailrace_requests_in_flight", "tailrace_requests_queued", "tailrace_lane_limit"):
            metrics.clear(name)
        for lane, state in gateway.lanes.snapshot(now).items():
            metrics.gauge("tailrace_requests_in_flight", state["running"], lane=lane)
            metrics.gauge("tailrace_requests_queued", state["queued"], lane=lane)
            for limit in ("running", "queued"):
                metrics.gauge("tailrace_lane_limit", state[f"{limit}_limit"], lane=lane, limit=limit)
        metrics.clear("tailrace_in_flight_over_objective")
        for lane, count in gateway.over_objective(now).items():
            metrics.gauge("tailrace_in_flight_over_objective", count, lane=lane)
        metrics.gauge("tailrace_event_loop_lag_seconds", gateway.loop_lag_max_ns / 1e9)
        backend = gateway.backend.name
        metrics.gauge("tailrace_backend_up", int(gateway.engine.reachable is True), backend=backend)
        engine = gateway.engine.watch.state(now)
        for name, value in (
            ("tailrace_engine_requests_running", engine.running if engine else None),
            ("tailrace_engine_requests_waiting", engine.waiting if engine else None),
            ("tailrace_engine_kv_usage_ratio", engine.kv_usage if engine else None),
        ):
            # A scrape that is too old is absent here too, not frozen at its last value.
            metrics.clear(name)
            if value is not None:
                metrics.gauge(name, value, backend=backend)
        metrics.records(self.writer.counters(), disk_ok=not self.writer.error)


class _History:
    """The store as the admin port reads it."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def records(self, since_unix_ns: int | None, limit: int) -> list[RequestRecord]:
        # The store's window includes its start; `since` excludes it, so that a poller can pass the last stamp it has.
        since = None if since_unix_ns is None else since_unix_ns + 1
        return self._store.records(since, limit)

    def get(self, request_id: str) -> RequestRecord | None:
        return self._store.get(request_id)


class GatewayPage:
    """What the page shows of this process."""

    def __init__(self, serving: ServingGateway) -> None:
        self._serving = serving
        self._started = time.monotonic()

    @property
    def title(self) -> str:
        """The engine's address."""
        return self._serving.gateway.backend.url

    async def table(self, since_unix_ns: int | None, limit: int) -> RecordTable:
        """Records at rest; they are there about 50 ms after a request has ended."""
        return await asyncio.to_thread(self._serving.store.table, since_unix_ns, None, limit)

    async def record(self, request_id: str) -> RequestRecord | None:
        """One record with its timeline."""
        found = self._serving.gateway.history.get(request_id)
        return found or await asyncio.to_thread(self._serving.store.get, request_id)

    async def live(self) -> LiveNow:
        """The state of this moment."""
        gateway = self._serving.gateway
        now = monotonic_ns()
        engine = gateway.engine
        state = engine.watch.state(now)
        out: LiveNow = {
            "in_flight": len(gateway.in_flight),
            "lanes": cast("dict[str, LaneNow]", gateway.lanes.snapshot(now)),
            "streams": cast("list[StreamNow]", gateway.streams()),
            "dropped": dropped_by_class(self._serving.writer.counters()),
            "loop_lag_ms": gateway.loop_lag_max_ns / 1e6,
            "uptime_s": time.monotonic() - self._started,
            "engine": engine.name,
            "engine_version": engine.version,
            "simulated": "simulated" in engine.watch.server,
            "upstream": gateway.backend.url,
            "upstream_ok": engine.reachable,
        }
        if state is not None:
            out["engine_state"] = {
                name: value
                for name in ("running", "waiting", "kv_usage")
                if (value := getattr(state, name)) is not None
            }
        return out


_SWITCH_S: Final = 0.001
"""How long a thread may hold the interpreter while the event loop waits. Python's 5 ms let views of the page delay the
relay by up to 95 ms; with 1 ms it was 16 ms in the same run."""


async def _serve(options: ServeOptions) -> None:
    sys.setswitchinterval(_SWITCH_S)
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
        # What is loaded by now lives as long as the process: full collections need not walk it, and pause less.
        gc.collect()
        gc.freeze()
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
        gateway.reconfigure(read())
    except InputError as error:
        sys.stderr.write(f"tailrace serve: the configuration was not reloaded: {error}\n")
    else:
        sys.stderr.write("tailrace serve: the configuration was reloaded\n")


def _announce(serving: ServingGateway, why: str, *, as_json: bool) -> None:
    gateway = serving.gateway
    if why:
        sys.stderr.write(f"tailrace serve: warning: {why}. Serving all the same; requests get 503 until it answers.\n")
        sys.stderr.flush()
    if as_json:
        line = {
            "ready": True,
            "url": gateway.url,
            "admin": serving.admin_url,
            "pid": os.getpid(),
            "upstream": gateway.backend.url,
            "upstream_ok": gateway.engine.reachable,
            "engine": gateway.engine.name,
        }
        text = msgspec.json.encode(line).decode()
    else:
        engine = gateway.engine.name or "engine not recognised"
        text = (
            f"Tailrace gateway   {gateway.url}/v1   ->  {gateway.backend.url} ({engine})\n"
            f"page and admin     {serving.admin_url}/\n"
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
