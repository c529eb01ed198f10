"""The admin port's API: records, streams, lanes, backends, health. Never on the public port.

Everything is JSON with milliseconds in the names; records are JSON lines. The page is mounted beside it by `app`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from tailrace.export.jsonl import encode_lines, encode_public, to_public
from tailrace.gateway.applications import GATEWAY, VANTAGES
from tailrace.gateway.config import Config, config_from, to_plain
from tailrace.gateway.config_sections import LaneConfig
from tailrace.gateway.engine_judge import LONGEST_NS, WINDOW_NS
from tailrace.gateway.otlp.http import PATH as TRACES
from tailrace.gateway.otlp.http import PROTOBUF, TracesHandler
from tailrace.gateway.otlp.span_desk import SpanDesk
from tailrace.gateway.served import Served
from tailrace.govern.peak_load import too_near
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError, TailraceError
from tailrace.model.thresholds import S

MAX_RECORDS: Final = 10_000
_OPEN_WITHOUT_TOKEN: Final = frozenset({"/healthz", "/readyz"})
_KEEP_ALIVE_S: Final = 15.0
_KNOBS_TIMEOUT_S: Final = 2.0
_LATEST_NS: Final = 2**63 - 2
"""What a column of whole numbers holds, and one less: `since` excludes its own instant."""

_JSON_ONLY: Final = frozenset({"application/json"})
_TAKEN: Final = {TRACES: _JSON_ONLY | {PROTOBUF}}
"""Path -> the kinds of body that it takes, where it takes more than JSON."""

_WIDENING: Final = frozenset({"pin", "promote", "resume"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminParts(msgspec.Struct, kw_only=True):
    """What a composition adds to the answers of what is served; absent, the call says so."""

    diagnose: Callable[[int | None, int], Awaitable[dict[str, Any]]] | None = None
    """(since when (Unix ns), how many requests at most) -> a `Diagnosis` as plain data."""
    latest: Callable[[], dict[str, Any] | None] | None = None
    """The diagnosis that was made last by itself; `None` where there is none that is fresh."""
    alerts: Callable[[], dict[str, Any]] | None = None
    """What is firing, and what became of the messages."""
    open_paths: frozenset[str] = frozenset()
    """Further paths that need no token: the page's own files, which carry no data."""
    spans: SpanDesk | None = None
    """Who takes the spans that engines and services send."""
    of_engine: Callable[[], dict[str, Any]] | None = None
    """What is known of the engine from its spans, for `/backends`."""


def make_admin(served: Served, parts: AdminParts | None = None) -> web.Application:
    """The API as an application. `/` is left to whoever mounts the page."""
    admin = _Admin(served, parts or AdminParts())
    app = web.Application(middlewares=[_explain_errors, _guard(served, admin.open_paths)])
    app.router.add_get("/healthz", admin.healthz)
    app.router.add_get("/readyz", admin.readyz)
    app.router.add_get("/metrics", admin.metrics)
    app.router.add_get("/records", admin.records)
    app.router.add_get("/records/{request_id:.+}", admin.record)
    app.router.add_get("/streams", admin.streams)
    app.router.add_delete("/streams/{request_id:.+}", admin.cancel_stream)
    app.router.add_get("/cancels", admin.cancels)
    app.router.add_get("/events", admin.events)
    app.router.add_get("/happenings", admin.happenings)
    app.router.add_get("/lanes", admin.lanes)
    app.router.add_post("/lanes", admin.set_lanes)
    app.router.add_get("/degradation", admin.degradation)
    app.router.add_post("/degradation", admin.pin_degradation)
    app.router.add_get("/backends", admin.backends)
    app.router.add_post("/backends/{name}", admin.set_backend)
    app.router.add_get("/cache", admin.cache)
    app.router.add_delete("/cache", admin.purge_cache)
    app.router.add_get("/knobs", admin.knobs)
    app.router.add_get("/signals", admin.signals)
    app.router.add_get("/config", admin.config)
    app.router.add_post("/config", admin.set_config)
    app.router.add_get("/canary", admin.canary)
    app.router.add_post("/canary", admin.set_canary)
    app.router.add_get("/diagnosis", admin.diagnosis)
    app.router.add_get("/alerts", admin.alerts)
    if admin.spans is not None:
        app.router.add_post("/v1/traces", admin.traces)
    return app


def admin_runner(app: web.Application) -> web.AppRunner:
    """What serves it. Bodies come as they were sent: the server's own unpacking has no bound."""
    return web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1, auto_decompress=False)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@web.middleware
async def _explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except InputError as error:
        return _json({"error": {"message": str(error), "place": error.place, "remedy": error.remedy}}, status=400)
    except TailraceError as error:
        # A damaged segment, a full disk: ours, and it has its sentence.
        return _json({"error": {"message": str(error)}}, status=500)


def _guard(served: Served, open_paths: frozenset[str]) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        # A page of another origin can make a browser on this machine post here: only JSON is taken (and protobuf, where
        # spans go), which a browser does not send across origins unasked (nor a DELETE), and a Host that is a foreign
        # name is a rebound one.
        if request.method == "POST" and request.content_type not in _TAKEN.get(request.path, _JSON_ONLY):
            taken = " or ".join(sorted(_TAKEN.get(request.path, _JSON_ONLY)))
            return _json({"error": {"message": f"send {taken}"}}, status=415)
        if request.headers.get("Content-Encoding") and request.path not in _TAKEN:
            return _json({"error": {"message": "send it without compression"}}, status=415)
        token = served.config.admin_token
        if token and request.path not in open_paths:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                return _json({"error": {"message": "a bearer token is needed: `admin_token`"}}, status=401)
        elif not token:
            host = request.host.rpartition(":")[0].strip("[]") or request.host
            if not is_loopback(host):
                return _json({"error": {"message": f"{host!r} is not this machine's loopback name"}}, status=403)
        return await handler(request)

    return guard


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


class _Admin:
    def __init__(self, served: Served, parts: AdminParts) -> None:
        self._served = served
        self._parts = parts
        self._changing = asyncio.Lock()
        """One change of the configuration at a time: each is made of the one before."""
        self.open_paths = _OPEN_WITHOUT_TOKEN | parts.open_paths
        self.spans = parts.spans
        self._traces = (
            None if parts.spans is None else TracesHandler(parts.spans, lambda: served.config.traces.body_bytes)
        )

    # -- health

    async def healthz(self, _: web.Request) -> web.Response:
        """The process lives, and its gauges."""
        health = await self._served.health()
        if self.spans is not None:
            health["spans"] = self.spans.view()
        return _json({"status": "closing" if self._served.closing else "ok", **health})

    async def readyz(self, _: web.Request) -> web.Response:
        """Whether a request sent now would be served."""
        ready, why = self._served.ready()
        return _json({"ready": ready, "why": why}, status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        rendered = await self._served.metrics(request.headers.get("Accept", ""))
        if rendered is None:
            return _json({"error": {"message": "no metrics are kept"}}, status=501)
        body, content_type = rendered
        return web.Response(body=body, headers={"Content-Type": content_type})

    # -- records

    async def records(self, request: web.Request) -> web.Response:
        """JSON lines, oldest first: `since` in s, ms or ns of the epoch (exclusive), the newest `limit`.

        `timeline=0` leaves timelines out; `vantage=application` gives what services before us have reported instead.
        """
        since = _since(request.query.get("since", ""))
        limit = min(_number(request.query.get("limit", "1000"), "limit"), MAX_RECORDS)
        found = await self._served.recent(since, limit, _vantage(request) or GATEWAY)
        body = b"".join(encode_lines(found, timeline=request.query.get("timeline") != "0"))
        return web.Response(body=body, content_type="application/x-ndjson")

    async def record(self, request: web.Request) -> web.Response:
        """One record by our id or the client's: the gateway's, or else an application's; `vantage` asks for one."""
        request_id = request.match_info["request_id"]
        record = await self._served.record(request_id, _vantage(request))
        if record is None:
            return _json({"error": {"message": f"there is no record {request_id!r}"}}, status=404)
        return _json(to_public(record))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Finished requests as server-sent events, from now on; the gateway's, or those of `vantage=application`."""
        vantage = _vantage(request) or GATEWAY
        answer = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        await answer.prepare(request)
        async for data in self._follow(vantage):
            try:
                await answer.write(data)
            except ConnectionError:
                break
        return answer

    async def _follow(self, vantage: str) -> AsyncIterator[bytes]:
        with self._served.follow(vantage) as follower:
            yield b": following\n\n"
            while not self._served.closing:
                try:
                    async with asyncio.timeout(_KEEP_ALIVE_S if not self._served.closing else 0):
                        record = await follower.queue.get()
                except TimeoutError:
                    yield b": keep-alive\n\n"
                    continue
                if follower.missed:
                    yield b"event: missed\ndata: %d\n\n" % follower.missed
                    follower.missed = 0
                public = encode_public(record, timeline=False)
                yield b"event: record\nid: %b\ndata: %b\n\n" % (record.request_id.encode(), public)

    # -- the present

    async def streams(self, _: web.Request) -> web.Response:
        """Requests in flight."""
        return _json({"streams": await self._served.streams()})

    async def cancel_stream(self, request: web.Request) -> web.Response:
        """End one request in flight, by our id; its client gets an error event (or 499 before the first byte)."""
        request_id = request.match_info["request_id"]
        stage = await self._served.cancel(request_id)
        if not stage:
            return _json({"error": {"message": f"there is no request {request_id!r} in flight"}}, status=404)
        return _json({"cancelled": request_id, "stage": stage})

    async def cancels(self, _: web.Request) -> web.Response:
        """The last cancels that had reached the engine: when its connection was closed, when its slot was seen free."""
        return _json({"cancels": await self._served.cancels()})

    async def happenings(self, _: web.Request) -> web.Response:
        """What changed while it served: configuration, drains, canary, workers, engines, breakers, degradation."""
        return _json({"happenings": await self._served.happenings()})

    async def lanes(self, _: web.Request) -> web.Response:
        """Lanes: what each matches, its limits, order, budgets and objectives; who runs and who waits in it now.

        And what the next request would wait, as far as it can be told.
        """
        return _json({"lanes": await self._served.lanes()})

    async def set_lanes(self, request: web.Request) -> web.Response:
        """`{"lanes": [...]}` replaces all lanes; `{"name": ..., "running": ..., ...}` changes one.

        Above 80 % of the recent peak load it is refused with 409, unless `"force": true` says that it is meant.
        """
        body = _object(await request.read())
        async with self._changing:
            await self._not_at_the_peak(body)
            await self._served.reconfigure(self._with_lanes(body), _who(request))
        return _json({"lanes": await self._served.lanes()})

    async def _not_at_the_peak(self, body: dict[str, Any]) -> None:
        """Take `force` out of the body; without it, refuse a change while the load is near its recent peak."""
        force = body.pop("force", False)
        if not isinstance(force, bool):
            raise InputError("is no truth value", place="force", remedy="Write true or false.")
        load = (await self._served.health()).get("load") or {}
        why = too_near(load.get("requests", 0.0), load.get("recent_peak", 0.0))
        if why and not force:
            raise web.HTTPConflict(
                text=msgspec.json.encode(
                    {"error": {"message": why, "place": "load", "remedy": 'Wait, or send it with "force": true.'}}
                ).decode(),
                content_type="application/json",
            )

    def _with_lanes(self, body: dict[str, Any]) -> Config:
        config = self._served.config
        if "lanes" in body:
            lanes = body["lanes"]
        elif isinstance(body.get("name"), str):
            lanes = [to_plain(lane) for lane in config.lanes]
            mine = next((lane for lane in lanes if lane["name"] == body["name"]), None)
            if mine is None:
                if body["name"] != "default":
                    raise InputError(
                        f"there is no lane {body['name']!r}",
                        place="name",
                        remedy=f"The lanes are {', '.join(lane.name for lane in config.lane_policies())}; "
                        'send {"lanes": [...]} to replace them all.',
                    )
                mine = to_plain(LaneConfig(name="default"))
                lanes.append(mine)
            mine.update(body)
        else:
            raise InputError(
                "neither `lanes` nor `name` is given",
                place="body",
                remedy='Send {"lanes": [...]} to replace all lanes, or {"name": "...", "running": N} to change one.',
            )
        return config_from({**to_plain(config), "lanes": lanes}, where="body")

    async def degradation(self, _: web.Request) -> web.Response:
        """The degradation ladder of each process: its step, its signals, its last steps; gaps in mid-stream."""
        return _json({"degradation": await self._served.degradation()})

    async def pin_degradation(self, request: web.Request) -> web.Response:
        """`{"pin": 2}` holds the ladder at two rungs in every process, `{"pin": null}` lets the signals move it."""
        body = _object(await request.read())
        if list(body) != ["pin"]:
            raise InputError("is not understood", place="body", remedy='Send {"pin": 2} or {"pin": null}.')
        async with self._changing:
            plain = to_plain(self._served.config)
            section = {**plain.get("degradation", {}), **body}
            if not section.get("enabled"):
                raise InputError(
                    "there is no ladder: it is switched off",
                    place="degradation.enabled",
                    remedy='POST {"degradation": {"enabled": true}} to /config, or set it in the file.',
                )
            config = config_from({**plain, "degradation": section}, where="body")
            await self._served.reconfigure(config, _who(request))
        return _json({"degradation": await self._served.degradation()})

    async def backends(self, request: web.Request) -> web.Response:
        """The engines behind us, and what their metrics say of the last `window` seconds (60, at most 300).

        Of ours with each: `outstanding_requests`, `outstanding_tokens`, connections. What spans tell: `cold_start_ms`,
        `spans` by what became of them.
        """
        length_ns = _number(request.query.get("window", str(WINDOW_NS // S)), "window") * S
        return await self._backends(max(S, min(length_ns, LONGEST_NS)))

    async def set_backend(self, request: web.Request) -> web.Response:
        """`{"drain": true}` keeps new requests away from the engine, `{"drain": false}` lets them go to it again."""
        body = _object(await request.read())
        on = body.get("drain")
        if not isinstance(on, bool) or len(body) != 1:
            raise InputError("is not understood", place="body", remedy='Send {"drain": true} or {"drain": false}.')
        await self._served.drain(request.match_info["name"], on=on)
        return await self._backends(WINDOW_NS)

    async def _backends(self, window_ns: int) -> web.Response:
        backends = await self._served.backends(window_ns)
        if self._parts.of_engine is not None and backends:
            backends[0].update(self._parts.of_engine())
        return _json({"backends": backends, "balance": await self._served.balance()})

    async def cache(self, _: web.Request) -> web.Response:
        """The response cache: hits, misses, what is held. `null` where no route is cached."""
        return _json({"cache": await self._served.cache()})

    async def purge_cache(self, _: web.Request) -> web.Response:
        """Forget every kept answer: after another model has taken an engine's name, for example."""
        return _json({"forgotten": await self._served.purge_cache()})

    async def traces(self, request: web.Request) -> web.Response:
        """Spans of engines and services: OTLP in protobuf (`application/x-protobuf`) or JSON, plain or compressed."""
        assert self._traces is not None
        return await self._traces.post(request)

    async def knobs(self, _: web.Request) -> web.Response:
        """The engine's scheduler knobs, where it tells them (the simulated engine does)."""
        engine = self._served.engine
        url = f"{engine.address.base}/knobs"
        try:
            async with (
                engine.session(timeout_s=_KNOBS_TIMEOUT_S) as session,
                session.get(url, server_hostname=engine.server_name) as answer,
            ):
                if answer.status == 200:
                    return _json({"knobs": msgspec.json.decode(await answer.read()), "source": url})
                why = f"the engine answers {answer.status} to /knobs"
        except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE) as error:
            why = f"the engine did not answer: {error or type(error).__name__}"
        return _json({"knobs": None, "why": why})

    async def signals(self, request: web.Request) -> web.Response:
        """This machine's CPU time, pressure, memory, accelerators: now, and what is kept (`since` as in /records)."""
        found = self._served.signals(_since(request.query.get("since", "")))
        if found is None:
            return _json({"error": {"message": "nothing reads this machine's signals"}}, status=501)
        return _json(found)

    async def config(self, _: web.Request) -> web.Response:
        """The configuration in force, secrets left out."""
        return _json(_without_secrets(to_plain(self._served.config)))

    async def set_config(self, request: web.Request) -> web.Response:
        """Replace top-level keys of the configuration; addresses and backends take a restart. `force` as for lanes."""
        body = _object(await request.read())
        async with self._changing:
            await self._not_at_the_peak(body)
            plain = {**to_plain(self._served.config), **body}
            await self._served.reconfigure(config_from(plain, where="body"), _who(request))
        return _json(_without_secrets(to_plain(self._served.config)))

    async def canary(self, _: web.Request) -> web.Response:
        """Where the canary stands, what its tests say, what can be found in what time; and the shadow's numbers."""
        return _json(await self._served.canary())

    async def set_canary(self, request: web.Request) -> web.Response:
        """`{"action": "pin", "share": 0.25}`; other actions: `pause`, `resume`, `promote`, `abort`.

        What gives the canary more takes `force` near the peak load, as a change of lanes does.
        """
        body = _object(await request.read())
        if body.get("action") in _WIDENING:
            await self._not_at_the_peak(body)
        action, share = body.get("action"), body.get("share")
        if (
            not isinstance(action, str)
            or set(body) - {"action", "share", "force"}
            or not isinstance(share, float | int | None)
        ):
            raise InputError(
                "is not understood",
                place="body",
                remedy='Send {"action": "pin", "share": 0.25} or {"action": "pause"}.',
            )
        await self._served.steer_canary(action, None if share is None else float(share))
        return _json(await self._served.canary())

    async def diagnosis(self, request: web.Request) -> web.Response:
        """Why the tail is slow: as found in the last minute; with `since`, `limit` or `now`: as found now."""
        diagnose = self._parts.diagnose
        if diagnose is None:
            body = {
                "schema": 1,
                "validity": [],
                "findings": [],
                "action": "collect",
                "triage": [],
                "needs": ["a diagnosing composition: `tailrace diagnose URL` reads this gateway from outside"],
                "not_understood": [],
                "summary": "insufficient: this process does not diagnose",
            }
            return _json(body, status=501)
        asked = request.query
        if self._parts.latest is not None and not {"since", "limit", "now"} & set(asked):
            latest = self._parts.latest()
            if latest is not None:
                return _json(latest)
        since = _since(asked.get("since", ""))
        limit = min(_number(asked.get("limit", str(MAX_RECORDS)), "limit"), MAX_RECORDS)
        return _json(await diagnose(since, limit))

    async def alerts(self, _: web.Request) -> web.Response:
        """Objectives in danger: what is firing since when, what has changed, and who was told."""
        if self._parts.alerts is None:
            return _json({"error": {"message": "nothing watches the objectives in this process"}}, status=501)
        return _json(self._parts.alerts())


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise InputError(f"is no JSON: {error}", place="body", remedy="Send a JSON object.") from None
    if not isinstance(value, dict):
        raise InputError("is no JSON object", place="body", remedy="Send a JSON object.")
    return value


def _who(request: web.Request) -> str:
    """Who asks, for whoever reads later what was changed: no secret, so not which token."""
    token = " with the token" if "authorization" in request.headers else ""
    return f"the admin port, {request.method} {request.path} from {request.remote or 'a local socket'}{token}"


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise InputError(f"{text!r} is no whole number", place=name, remedy=f"Write {name}=100, for example.")
    return int(text)


def _since(text: str) -> int | None:
    """Epoch ns from ns, ms or s: they are told apart by their size (all three in this century)."""
    if not text:
        return None
    whole, _, fraction = text.partition(".")
    number = _number(whole, "since")
    if number > _LATEST_NS:
        raise InputError(f"{text!r} is no time of this age", place="since", remedy="Write seconds of the epoch, or ns.")
    if number < 10**11:
        return number * 10**9 + (int(f"{fraction[:9]:0<9}") if fraction.isdigit() else 0)
    if number < 10**14:
        return number * 10**6 + (int(f"{fraction[:6]:0<6}") if fraction.isdigit() else 0)
    return number


def _vantage(request: web.Request) -> str | None:
    said = request.query.get("vantage")
    if said is not None and said not in VANTAGES:
        raise InputError(f"there is no vantage {said!r}", place="vantage", remedy=f"Use {' or '.join(VANTAGES)}.")
    return said


def _hidden(receiver: dict[str, Any]) -> dict[str, Any]:
    """A receiver whose address and token are nobody's business."""
    return {
        name: f"{'/'.join(value.split('/', 3)[:3])}/***" if name == "url" else "***" if name == "token" else value
        for name, value in receiver.items()
    }


def _without_secrets(plain: dict[str, Any]) -> dict[str, Any]:
    out = dict(plain)
    if out.get("admin_token"):
        out["admin_token"] = "***"  # noqa: S105  (this is what hides it)
    keys = plain.get("keys", {})
    if keys:
        out["keys"] = {name: {**key, "value": "***"} if key.get("value") else key for name, key in keys.items()}
    out["backends"] = [
        {**backend, "api_key": "***"} if backend.get("api_key") else backend for backend in plain.get("backends", [])
    ]
    receivers = out.get("alerts", {}).get("receivers")
    if receivers:
        # The path of a webhook is its password.
        out["alerts"] = {**out["alerts"], "receivers": [_hidden(one) for one in receivers]}
    embedding = out.get("cache", {}).get("embedding")
    if embedding and embedding.get("api_key"):
        out["cache"] = {**out["cache"], "embedding": {**embedding, "api_key": "***"}}
    return out
