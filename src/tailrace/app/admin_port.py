"""The admin port: the API, the page and the diagnosis on one listening socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from tailrace.app.alerts import AlertDesk
from tailrace.app.live_diagnosis import LiveDiagnosis
from tailrace.app.trace_intake import TraceIntake
from tailrace.gateway.admin import AdminParts, admin_runner, is_loopback, make_admin
from tailrace.gateway.config import Config
from tailrace.gateway.entrance import bind_error, split_address
from tailrace.gateway.served import Served
from tailrace.model.errors import ConfigError
from tailrace.web.page import OPEN_PATHS, add_page
from tailrace.web.source import PageSource


class AdminPort:
    """Binds `config.admin`; `url` is known after `start`."""

    def __init__(
        self,
        served: Served,
        page: PageSource,
        store_counters: Callable[[], dict[str, int]],
        traces: TraceIntake | None = None,
        *,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """`flush` has every record that ended so far written to the data directory."""
        self._served = served
        self._diagnosis = LiveDiagnosis(served, store_counters, flush)
        self.alerts = AlertDesk(served, self._diagnosis, lambda: self.url)
        self._watching: list[asyncio.Task[None]] = []
        self._traces = traces
        self._page = page
        self._runner: web.AppRunner | None = None
        self.url = ""

    @staticmethod
    def check(config: Config) -> None:
        """ConfigError where the network could reach the port without a token."""
        host, _ = split_address(config.admin, "admin")
        if not is_loopback(host) and not config.admin_token:
            raise ConfigError(
                "the admin port would be open to the network without a token",
                place="admin",
                remedy="Set `admin_token`, or bind it to 127.0.0.1.",
            )

    async def start(self) -> None:
        """Bind. InputError when the address cannot be had; `close` still has to be called then."""
        traces = self._traces
        parts = AdminParts(
            diagnose=self._diagnosis.asked,
            latest=self._diagnosis.latest,
            alerts=self.alerts.view,
            open_paths=OPEN_PATHS,
            spans=None if traces is None else traces.desk,
            of_engine=None if traces is None else traces.view,
        )
        app = make_admin(self._served, parts)
        add_page(app, self._page)
        runner = self._runner = admin_runner(app)
        await runner.setup()
        address = self._served.config.admin
        host, port = split_address(address, "admin")
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            raise bind_error(error, address, "--admin") from None
        bound = runner.addresses[0]
        self.url = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
        self._watching = [asyncio.ensure_future(self._diagnosis.run()), asyncio.ensure_future(self.alerts.run())]

    async def close(self) -> None:
        """Stop listening."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
