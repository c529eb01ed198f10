"""A page on a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from tailrace.web.page import OPEN_PATHS, add_page, make_page
from tailrace.web.source import PageSource


@contextlib.asynccontextmanager
async def served(source: PageSource, *, port: int = 0, token: str = "", **options: Any) -> AsyncIterator[str]:
    """Serve the page on loopback, behind `token` where one is given; yields its URL without a slash at the end."""

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        if token and request.path not in OPEN_PATHS and request.headers.get("Authorization") != f"Bearer {token}":
            return web.json_response({"error": "a token is needed"}, status=401)
        return await handler(request)

    if token:
        app = web.Application(middlewares=[guard])
        add_page(app, source, **options)
    else:
        app = make_page(source, **options)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        assert site._server is not None
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()
