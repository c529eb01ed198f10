"""The HTTP server of the simulated engine: OpenAI's routes, `/metrics`, and the knobs at run time."""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from tailrace import __version__
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError
from tailrace.simserve.answer import DONE, Answer
from tailrace.simserve.ask import Refusal, read_ask
from tailrace.simserve.driver import Driver
from tailrace.simserve.metrics import CONTENT_TYPE, EngineMetrics
from tailrace.simserve.options import ServerOptions
from tailrace.simulate.engine import Engine
from tailrace.simulate.presets import Preset, preset
from tailrace.simulate.request import SimRequest

SERVER = f"tailrace-simulated-engine/{__version__}"
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
_MAX_BODY = 16 * 1024 * 1024


class SimulatedServer:
    """The engine behind HTTP. `app()` builds the application; `start()` binds the port; `close()` ends everything."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        chosen = preset(options.preset)
        self.knobs = options.knobs
        self.model = options.model or chosen.model_name
        if "simulated" not in self.model:
            self.model += "-simulated"
        self.max_model_len = min(self.knobs.max_model_len, self.knobs.kv_tokens)
        self.engine = Engine(self.knobs, _cost(chosen, options), keep_steps=False)
        self.metrics = EngineMetrics(self.engine, self.model, max_model_len=self.max_model_len)
        self.driver: Driver | None = None
        self.url = ""
        self._fingerprint = f"tailrace-simulated-{__version__}-{chosen.name}"
        self._created = int(time.time())  # noqa: TID251  (the model card's `created`, wall clock by definition)
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Bind and listen; returns the URL.

        Raises:
            InputError: the port is in use or the address is not ours.
        """
        options = self.options
        self.driver = Driver(self.engine, self.metrics, stream_interval=options.stream_interval)
        runner = web.AppRunner(self.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, options.host, options.port, backlog=1024)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:
            await runner.cleanup()
            raise InputError(
                f"cannot listen on {options.host}:{options.port} ({getattr(error, 'strerror', None) or error})",
                place="--port",
                remedy="Choose another port, or 0 for a free one.",
            ) from None
        self._runner = runner
        port = runner.addresses[0][1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url = f"http://{host}:{port}"
        return self.url

    async def close(self) -> None:
        """End all answers and release the port, within a second."""
        if self.driver is not None:
            self.driver.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._frame])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/version", self._version),
                web.get("/simulation", self._simulation),
                web.get("/metrics", self._metrics),
                web.get("/knobs", self._get_knobs),
                web.post("/knobs", self._set_knobs),
            ]
        )
        return app

    # -- the two routes that compute

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=True)

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=False)

    async def _answer(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        driver = self._driver()
        raw = await http.read()
        ask = read_ask(
            raw, http.headers, chat=chat, model=self.model, max_model_len=self.max_model_len, options=self.options
        )
        limit = self.options.max_num_queued_reqs
        if limit and len(driver.live) >= limit:
            self.metrics.rejected()
            refusal = Refusal(503, _BUSY, "Service Unavailable")
            if ask.stream and self.options.reject_in_stream:
                return await _refused_in_stream(http, refusal)
            raise refusal
        client_id = _client_id(http)
        request_id = client_id or secrets.token_hex(8)
        request = SimRequest(
            request_id,
            ask.prompt_tokens,
            ask.output_tokens,
            0,
            priority=ask.priority,
            prefix=ask.prefix,
        )
        created = int(time.time())  # noqa: TID251  (the answer's `created` is wall clock by definition)
        kind = "chatcmpl" if chat else "cmpl"
        answer = Answer(ask, request, f"{kind}-{request_id}", created, self._fingerprint)
        answer.with_metrics = self.options.per_request_metrics
        # Without an id of the client's, the header's and the body's differ, as vLLM's do.
        reply_id = client_id or secrets.token_hex(16)
        try:
            if ask.stream:
                return await self._stream(http, answer, reply_id)
            driver.submit(answer)
            if not await answer.done:
                raise Refusal(500, "The engine was shut down.", "InternalServerError")
            body = answer.body(metrics=self.options.per_request_metrics)
            headers = {"X-Request-Id": reply_id}
            return web.Response(body=body, content_type="application/json", headers=headers)
        finally:
            # A handler that ends early (the client left: aiohttp cancels it) frees the engine's slot.
            driver.abort(answer)

    async def _stream(self, http: web.Request, answer: Answer, reply_id: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_STREAM_HEADERS, "Server": SERVER, "X-Request-Id": reply_id})
        answer.chunked = http.version >= (1, 1)
        if answer.chunked:
            response.enable_chunked_encoding()
        await response.prepare(http)
        transport = http.transport
        if transport is None:
            raise asyncio.CancelledError
        # Tokens are written by the driver when their step ends, straight to the transport: a coroutine for each of
        # them would cost more than the engine itself.
        answer.transport = transport
        self._driver().submit(answer)
        interval = self.options.keep_alive_interval_s
        while interval and not answer.tokens and not answer.done.done():
            await asyncio.wait([answer.done], timeout=interval)
            if not answer.tokens and not answer.done.done():
                answer.write(b": keep-alive\n\n")
        if not await answer.done:
            error = {"message": "The engine was shut down.", "type": "InternalServerError", "code": 500}
            answer.write(b"data: " + msgspec.json.encode({"error": error}) + b"\n\n" + DONE)
        await response.write_eof()
        return response

    # -- the small routes

    async def _models(self, _http: web.Request) -> web.Response:
        card = {
            "id": self.model,
            "object": "model",
            "created": self._created,
            "owned_by": "tailrace-simulated-engine",
            "root": self.model,
            "parent": None,
            "max_model_len": self.max_model_len,
        }
        return _json({"object": "list", "data": [card]})

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response(status=200)

    async def _version(self, _http: web.Request) -> web.Response:
        return _json({"version": f"simulated-{__version__}", "simulated": True, "preset": self.options.preset})

    async def _simulation(self, _http: web.Request) -> web.Response:
        """How well simulated time keeps up with the clock on the wall."""
        return _json(
            {
                "simulated": True,
                "preset": self.options.preset,
                "time_scale": self.options.time_scale,
                "steps": self.engine.counters.steps,
                "late_ms_max": self._driver().lag_s * 1000,
            }
        )

    async def _metrics(self, _http: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _get_knobs(self, _http: web.Request) -> web.Response:
        return _json(msgspec.structs.asdict(self.knobs))

    async def _set_knobs(self, http: web.Request) -> web.Response:
        try:
            knobs = self.knobs.changed(_knob_changes(await http.read()))
        except UNREADABLE as error:
            raise Refusal(400, f"the body is no JSON: {error}", "BadRequestError", "body") from None
        except InputError as error:
            raise Refusal(400, str(error), "BadRequestError", error.place or None) from None
        self.knobs = knobs
        self.engine.set_knobs(knobs)
        return _json(msgspec.structs.asdict(knobs))

    # -- what every answer has

    @web.middleware
    async def _frame(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            response = await handler(request)
        except Refusal as refusal:
            response = _json(refusal.body, status=refusal.status)
        except web.HTTPException as error:
            message = {404: "Not Found", 405: "Method Not Allowed"}.get(error.status, error.reason)
            body = {"error": {"message": message, "type": error.reason, "param": None, "code": error.status}}
            response = _json(body, status=error.status)
        resource = request.match_info.route.resource
        self.metrics.answered(resource.canonical if resource else "none", request.method, response.status)
        if not response.prepared:
            response.headers["Server"] = SERVER
            if client_id := _client_id(request):
                response.headers["X-Request-Id"] = client_id
        return response

    def _driver(self) -> Driver:
        assert self.driver is not None, "start() was not called"
        return self.driver


def _cost(chosen: Preset, options: ServerOptions) -> Any:
    if not 0 < options.time_scale < math.inf:
        raise InputError(
            f"{options.time_scale} is not above 0", place="--time-scale", remedy="1 is the preset's speed."
        )
    for place, value in (
        ("--step-overhead-ms", options.step_overhead_ms or 0.0),
        ("--output-sigma", options.output_sigma),
        ("--sse-keep-alive-interval", options.keep_alive_interval_s),
    ):
        if not 0 <= value < math.inf:
            raise InputError(f"{value} is no number of this kind", place=place, remedy="Give a finite number.")
    accelerator = chosen.accelerator
    if options.step_overhead_ms is not None:
        accelerator = msgspec.structs.replace(accelerator, step_s=options.step_overhead_ms / 1000)
    return msgspec.structs.replace(chosen, accelerator=accelerator).cost(speed=options.time_scale)


def _knob_changes(raw: bytes) -> dict[str, Any]:
    changes = msgspec.json.decode(raw)
    if not isinstance(changes, dict):
        raise InputError("the body must be a JSON object of knobs", remedy='For example {"max_num_seqs": 64}.')
    return changes


def _client_id(http: web.Request) -> str:
    """The caller's request id, fit to be sent back: bytes that are no UTF-8 are replaced."""
    return http.headers.get("x-request-id", "").encode("utf-8", "replace").decode()


def _json(body: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


async def _refused_in_stream(http: web.Request, refusal: Refusal) -> web.StreamResponse:
    response = web.StreamResponse(headers={**_STREAM_HEADERS, "Server": SERVER})
    await response.prepare(http)
    await response.write(b"data: " + msgspec.json.encode(refusal.body) + b"\n\n")
    await response.write(DONE)
    await response.write_eof()
    return response


async def serve(options: ServerOptions, *, on_ready: Callable[[SimulatedServer], None]) -> None:
    """Run until SIGINT or SIGTERM; `on_ready` is called once the port listens."""
    server = SimulatedServer(options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    await server.start()
    try:
        on_ready(server)
        await stop.wait()
    finally:
        with suppress(asyncio.CancelledError):
            await server.close()
