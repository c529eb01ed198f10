"""A page on a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from tailrace.web.page import make_page
from tailrace.web.source import PageSource


@contextlib.asynccontextmanager
async def served(source: PageSource, *, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """Serve the page on loopback; yields its URL without a slash at the end."""
    runner = web.AppRunner(make_page(source, **options), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        assert site._server is not None
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()
