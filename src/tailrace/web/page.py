"""The page's routes: one document, its files, and three JSON calls that keep it live.

`add_page` puts them on the admin port's application (aiohttp mounts no sub-application at `/`); `make_page` makes
an application of its own. Everything is read-only.

* `GET /` the document; `GET /page/FILE` its script, style and icon; `GET /page/plotly.js` from the plotly package
* `GET /page/live` the state of this moment
* `GET /page/view?window=&lane=&metric=&vantage=&theme=` the answer, the pictures and the slowest requests
* `GET /page/request/{id}?vantage=&theme=` one request
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from tailrace.model.errors import InputError, StoreError
from tailrace.web.assets import FOREVER, HEADERS, REVALIDATE, Asset, page_html, plotly_path, static_asset
from tailrace.web.selection import Selection, vantage_of
from tailrace.web.source import PageSource
from tailrace.web.view import request_detail
from tailrace.web.views import REFRESH_S, ROWS, Views

STATIC: Final = ("app.js", "charts.js", "shrink.js", "tables.js", "text.js", "style.css", "icon.svg")
OPEN_PATHS: Final = frozenset({"/", "/page/plotly.js", *(f"/page/{name}" for name in STATIC)})
"""Paths that carry no data: a guarded admin port must serve them without its token, because a browser cannot send one
with the document; the page then asks for the token (or takes it from `/#token=...`) and sends it with every call."""
STREAMS: Final = 12
"""In-flight requests shown, oldest first."""

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_page(source: PageSource, *, refresh_s: float = REFRESH_S, rows: int = ROWS) -> web.Application:
    """The page as an application of its own."""
    app = web.Application()
    add_page(app, source, refresh_s=refresh_s, rows=rows)
    return app


def add_page(app: web.Application, source: PageSource, *, refresh_s: float = REFRESH_S, rows: int = ROWS) -> None:
    """Put the page's routes on `app`; its worker thread ends with the application."""
    page = _Page(source, Views(source, unix_ns=time.time_ns, refresh_s=refresh_s, rows=rows), refresh_s)
    app.router.add_get("/", page.document)
    app.router.add_get("/page/plotly.js", page.plotly)
    app.router.add_get("/page/live", page.live)
    app.router.add_get("/page/view", page.view)
    app.router.add_get("/page/request/{request_id:.+}", page.request)
    for name in STATIC:
        app.router.add_get(f"/page/{name}", page.file(name))

    async def worker(_: web.Application) -> AsyncIterator[None]:
        yield
        page.views.close()

    app.cleanup_ctx.append(worker)


class _Page:
    def __init__(self, source: PageSource, views: Views, refresh_s: float) -> None:
        self.source = source
        self.views = views
        self._refresh_ms = round(refresh_s * 1000)
        self._files = {name: static_asset(name) for name in STATIC}
        self._plotly_path = plotly_path()
        facts = self._plotly_path.stat()
        # The bundle is 5 MB: its version comes from what a stat knows, and it is read when first asked for.
        version = hashlib.sha256(f"{facts.st_size}-{facts.st_mtime_ns}".encode()).hexdigest()[:16]
        versions = {name: asset.tag for name, asset in self._files.items()} | {"plotly.js": version}
        self._document = page_html(versions)
        self._plotly: Asset | None = None
        self._loading = asyncio.Lock()

    async def document(self, request: web.Request) -> web.Response:
        return self._document.answer(request, REVALIDATE)

    def file(self, name: str) -> Handler:
        asset = self._files[name]

        async def answer(request: web.Request) -> web.Response:
            return asset.answer(request, FOREVER if request.query.get("v") == asset.tag else REVALIDATE)

        return answer

    async def plotly(self, request: web.Request) -> web.Response:
        async with self._loading:
            if self._plotly is None:
                # Half a second of compression, which releases the interpreter; once in a process's life.
                self._plotly = await asyncio.to_thread(self._read_plotly)
        return self._plotly.answer(request, FOREVER if "v" in request.query else REVALIDATE)

    def _read_plotly(self) -> Asset:
        return Asset.of(self._plotly_path.read_bytes(), "text/javascript")

    async def live(self, _: web.Request) -> web.Response:
        state: dict[str, Any] = dict(await self.source.live())
        streams = sorted(state.get("streams", ()), key=lambda stream: -stream.get("age_ms", 0.0))
        state["streams"] = streams[:STREAMS]
        state |= {
            "schema": 1,
            "title": self.source.title,
            "page": self._document.tag,
            "refresh_ms": self._refresh_ms,
            "now_unix_ms": time.time_ns() // 1_000_000,
        }
        return _json(state)

    async def view(self, request: web.Request) -> web.Response:
        try:
            chosen = Selection.from_query(request.query)
        except InputError as error:
            return _json({"error": str(error)}, status=400)
        try:
            view = await self.views.get(chosen)
        except StoreError as error:
            return _json({"error": str(error)}, status=503)
        return view.answer(request, REVALIDATE)

    async def request(self, request: web.Request) -> web.Response:
        request_id = request.match_info["request_id"]
        try:
            vantage = vantage_of(request.query)
        except InputError as error:
            return _json({"error": str(error)}, status=400)
        record = await self.source.record(request_id, vantage)
        if record is None:
            return _json({"error": "No record has this id: it may still be in flight, or was pruned."}, status=404)
        theme = Selection.from_query({"theme": request.query.get("theme", "")}).theme
        return _json(request_detail(record, theme))


def _json(body: Any, status: int = 200) -> web.Response:
    headers = {**HEADERS, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=_encode(body), status=status, content_type="application/json", headers=headers)
