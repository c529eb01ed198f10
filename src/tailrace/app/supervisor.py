"""`tailrace serve --workers N`: one supervisor, N workers.

The supervisor relays nothing. It has the admin port, the page, the watch on the engine and the book of leases, so that
no view and no scrape takes time from a stream, and none of them ends with a worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.app.admin_port import AdminPort
from tailrace.app.fleet import Fleet
from tailrace.app.fleet_views import FleetPage, FleetViews
from tailrace.app.gateway_process import FLUSH_S, freeze_loaded, record_writer
from tailrace.app.trace_intake import TraceIntake
from tailrace.gateway.applications import ApplicationRecords, ApplicationSpans
from tailrace.gateway.config import Config
from tailrace.gateway.host.signals import HostSignals
from tailrace.model.errors import InputError, StoreError
from tailrace.web.source import dropped_by_class

_FIRST_LOOK_S: Final = 1.5


class Supervisor:
    """The composition, from its first signal handler to its last line."""

    def __init__(self, config: Config, *, reload: Callable[[], Config] | None, as_json: bool) -> None:
        """`reload` reads the configuration again, on SIGHUP."""
        AdminPort.check(config)
        self._reload = reload
        self._as_json = as_json
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._changes: set[asyncio.Task[None]] = set()
        self.fleet = Fleet(config)
        try:
            self.writer = record_writer(config)
            """For what comes in at the admin port: amendments to the records of all workers."""
        except BaseException:
            self.fleet.port.close()
            raise
        self.fleet.amendments.add(self.writer.amendments)
        self.signals = HostSignals(config.signals, config.backends[0], gateway_pids=lambda: self.fleet.pids)
        applications = ApplicationRecords(self.writer)
        self.views = FleetViews(self.fleet, self.writer, applications.history, self.signals)
        self.traces = TraceIntake(
            config, self.writer.amendments, ApplicationSpans(applications), holds=self.views.holds
        )
        self.views.pulls.append(self.traces.set_metrics)
        page = FleetPage(self.fleet, self.views)
        self.admin = AdminPort(self.views, page, self.views.store_counters, self.traces, flush=self.views.flush)
        self.views.pulls.append(self.admin.alerts.set_metrics)

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ask_to_stop)
        loop.add_signal_handler(signal.SIGUSR2, self._change, "replaced", self._replace)
        if self._reload is not None:
            loop.add_signal_handler(signal.SIGHUP, self._change, "reloaded", self._reconfigure)
        try:
            starting = asyncio.ensure_future(self._start())
            stopping = asyncio.ensure_future(self._stop.wait())
            waits: set[asyncio.Future[Any]] = {starting, stopping}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                self._announce(await starting)
                freeze_loaded()
                await stopping
            starting.cancel()
            stopping.cancel()
        finally:
            for change in self._changes:
                change.cancel()
            cut = await self.fleet.close(self._hurry)
            await self.admin.close()
            await self.traces.close()
            await asyncio.to_thread(self.writer.close, FLUSH_S)
            await asyncio.to_thread(self.signals.close)
            self._account(cut)

    async def _start(self) -> str:
        await self.fleet.start()
        await self.traces.start()
        await self.admin.start()
        self.signals.start()
        try:
            async with asyncio.timeout(_FIRST_LOOK_S):
                await self.fleet.engines.first_answers()
        except TimeoutError:
            pass
        ready, why = self.fleet.ready()
        return "" if ready else why

    def _ask_to_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    # -- changes

    def _change(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.ensure_future(self._changed(what, work))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _changed(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        subject = "the workers were" if what == "replaced" else "the configuration was"
        try:
            await work()
        except InputError as error:
            sys.stderr.write(f"tailrace serve: {subject} not {what}: {error}\n")
        else:
            sys.stderr.write(f"tailrace serve: {subject} {what}\n")
        sys.stderr.flush()

    async def _reconfigure(self) -> None:
        assert self._reload is not None
        await self.fleet.reconfigure(self._reload(), "SIGHUP")

    async def _replace(self) -> None:
        await self.fleet.replace(self.fleet.config if self._reload is None else self._reload(), "SIGUSR2")

    # -- what is said

    def _announce(self, why: str) -> None:
        fleet = self.fleet
        url, upstream, pids = fleet.port.url, self.views.upstream, fleet.pids
        if why:
            sys.stderr.write(
                f"tailrace serve: warning: {why}. Serving all the same; requests get 503 until it answers.\n"
            )
            sys.stderr.flush()
        if self._as_json:
            line = {
                "ready": True,
                "url": url,
                "admin": self.admin.url,
                "pid": os.getpid(),
                "workers": pids,
                "upstream": upstream,
                "upstream_ok": fleet.engines.first.reachable,
                "engine": fleet.engines.first.name,
            }
            if fleet.grpc is not None:
                line["grpc"] = fleet.grpc.address
            if self.traces.grpc_address:
                line["traces_grpc"] = self.traces.grpc_address
            text = msgspec.json.encode(line).decode()
        else:
            base = url if url.startswith("unix:") else f"{url}/v1"
            rpc_url = next((one.grpc_url for one in fleet.config.backends if one.grpc_url), None)
            text = (
                f"Tailrace gateway   {base}   ->  {upstream} ({fleet.engines.first.name or 'engine not recognised'})\n"
                + (f"gRPC               {fleet.grpc.address}   ->  {rpc_url}\n" if fleet.grpc else "")
                + f"page and admin     {self.admin.url}/\n"
                f"records            {Path(fleet.config.records.dir).resolve()}\n"
                f"workers            {len(pids)} (SIGUSR2 to process {os.getpid()} replaces them)\n"
                "Ctrl-C ends it."
            )
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _account(self, cut: int) -> None:
        records = self.fleet.past.counters.get("records", 0)
        lost = sum(dropped_by_class(self.fleet.past.store).values())
        if records or cut:
            sys.stderr.write(
                f"tailrace serve: {records} requests recorded, {cut} cut by the stop, {lost} records lost\n"
            )
        if self.fleet.past.store_error:
            raise StoreError(self.fleet.past.store_error)


async def supervise(config: Config, *, reload: Callable[[], Config] | None, as_json: bool) -> None:
    """Serve with `config.workers` processes until SIGINT or SIGTERM. InputError for what cannot be used."""
    await Supervisor(config, reload=reload, as_json=as_json).run()
