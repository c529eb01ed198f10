"""Upstreams that fail: how many attempts a client's request becomes, and what `Retry-After` is worth.

The upstreams are scripted servers in this process; the gateway and its connections are real.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from random import Random
from typing import Any, Final, NamedTuple

import scene
import sockets
import visitors
from aiohttp import web

from tailrace.simulate.clients import Call

SECONDS = 10.0
RATE = 20.0
FAILING = 0.5
AT_MOST = 1.2
"""Attempts for each request of a client."""
RETRY_AFTER_S = 7
TOLD_WITHIN_S = 1.0
_SEEN_ALIVE_S: Final = 1.0
"""From when the upstreams serve until there is load: the gateway was started before them."""
_MODEL: Final = "scripted"
_CHUNK: Final = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"scripted","choices":'
    b'[{"index":0,"delta":{"content":"word "},"finish_reason":%s}]}\n\n'
)
_BREAKERS: Final[dict[str, dict[str, Any]]] = {
    "breakers as they are": {},
    "breakers off": {"breaker": {"enabled": False}},
}


class Answer(NamedTuple):
    """What an upstream says to one attempt."""

    status: int = 200
    retry_after_s: int | None = None


class Upstream:
    """A server on a port of its own that answers as its script says, and notes when it was asked."""

    def __init__(self, script: Callable[[], Answer]) -> None:
        self.script = script
        self.asked: list[float] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        """Bound before the event loop runs, so that the gateway can be started with its address."""
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One attempt."""
        self.asked.append(time.monotonic())
        await request.read()
        said = self.script()
        if said.status != 200:
            headers = {} if said.retry_after_s is None else {"Retry-After": str(said.retry_after_s)}
            return web.json_response({"error": {"message": "scripted"}}, status=said.status, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for end in (b"null", b"null", b'"stop"'):
            await response.write(_CHUNK % end)
            await asyncio.sleep(0.02)
        await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve within the block."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_get("/v1/models", _models)
        app.router.add_get("/health", _models)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.SockSite(runner, self.listening).start()
            yield
        finally:
            await runner.cleanup()


class Storm(NamedTuple):
    """A storm, seen from both sides."""

    requests: int
    attempts: int
    served: int
    opened: int
    """How often a breaker opened."""

    @property
    def amplification(self) -> float:
        """Attempts that the upstreams got for each request of a client."""
        return self.attempts / self.requests


class Told(NamedTuple):
    """What became of one engine's 503 with `Retry-After`."""

    forwarded_s: float
    """Until the client had it, where all engines say it."""
    status: int
    retry_after_s: int | None
    attempts: int
    """That its one request became."""
    served: int
    """Requests that were served while one of two engines had said it ..."""
    asked: int
    """... of so many."""
    again_s: float | None
    """From the engine's word until it was asked again."""


def run(seconds: float = SECONDS) -> list[str]:
    """Print the figures; what is broken of the promise."""
    broken = []
    for name, changes in _BREAKERS.items():
        seen = storm(seconds, changes)
        print(
            f"storm: three upstreams fail {100 * FAILING:g} % for {seconds:g} s, {name}: {seen.requests} requests, "
            f"{seen.attempts} attempts, {seen.amplification:.2f} each, {seen.served} served; "
            f"breakers opened {seen.opened} times",
            flush=True,
        )
        if seen.amplification > AT_MOST:
            broken.append(f"storm: {seen.amplification:.2f} attempts a request with {name}, more than {AT_MOST:g}")
    told = retry_after()
    again = "never" if told.again_s is None else f"after {told.again_s:.2f} s"
    print(
        f"storm: Retry-After: {RETRY_AFTER_S} from all: forwarded as {told.status} with {told.retry_after_s} after "
        f"{1e3 * told.forwarded_s:.0f} ms, {told.attempts} attempts; from one of two: asked again {again}, "
        f"{told.served} of {told.asked} served",
        flush=True,
    )
    if (told.status, told.retry_after_s) != (503, RETRY_AFTER_S) or told.forwarded_s > TOLD_WITHIN_S:
        broken.append(f"storm: Retry-After was not forwarded within {TOLD_WITHIN_S:g} s")
    if told.attempts > 2:
        broken.append("storm: an engine was asked again by a request that it had told to wait")
    if told.again_s is None or told.again_s < RETRY_AFTER_S:
        broken.append(f"storm: an engine that said Retry-After: {RETRY_AFTER_S} was asked again {again}")
    if told.served != told.asked:
        broken.append("storm: a request failed while another engine could serve")
    return broken


def storm(seconds: float, changes: dict[str, Any]) -> Storm:
    """Three upstreams that fail by chance, each attempt for itself."""
    chance = Random(scene.SEED)
    upstreams = [Upstream(lambda: Answer(500 if chance.random() < FAILING else 200)) for _ in range(3)]
    with _gateway(upstreams, changes) as (url, admin):
        visited = asyncio.run(_visits(url, upstreams, _calls(RATE, seconds)))
        with urllib.request.urlopen(f"{admin}/backends") as answer:
            opened = sum(one["breaker"]["opened_total"] for one in json.load(answer)["backends"])
    return Storm(
        requests=len(visited),
        attempts=sum(len(one.asked) for one in upstreams),
        served=sum(one.ended_well for one in visited),
        opened=opened,
    )


def retry_after() -> Told:
    """First from one of two engines, under a load that goes on past the time; then from both."""
    first_word: list[float] = []

    def once() -> Answer:
        if first_word:
            return Answer()
        first_word.append(time.monotonic())
        return Answer(503, RETRY_AFTER_S)

    waiting, other = Upstream(once), Upstream(Answer)
    with _gateway([waiting, other], {"retry": {"same_backend": True}}) as (url, _):
        served = asyncio.run(_visits(url, [waiting, other], _calls(10.0, RETRY_AFTER_S + 5.0)))
    later = [at for at in waiting.asked if at > first_word[0]] if first_word else []
    both = [Upstream(lambda: Answer(503, RETRY_AFTER_S)) for _ in range(2)]
    with _gateway(both, {"retry": {"same_backend": True}}) as (url, _):
        refused = asyncio.run(_visits(url, both, _calls(1.0, 1.0)[:1], stay_s=2.0))[0]
    return Told(
        forwarded_s=refused.ended - refused.begun,
        status=refused.status,
        retry_after_s=refused.retry_after_s,
        attempts=sum(len(one.asked) for one in both),
        served=sum(one.ended_well for one in served),
        asked=len(served),
        again_s=later[0] - first_word[0] if later else None,
    )


@contextmanager
def _gateway(upstreams: list[Upstream], changes: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A gateway before upstreams whose ports are bound already: its two addresses."""
    where = sockets.backends(**{f"u{at}": one.url for at, one in enumerate(upstreams)})
    with sockets.serving({"backends": where, **changes}) as both:
        yield both


async def _visits(url: str, upstreams: list[Upstream], calls: list[Call], stay_s: float = 0.0) -> list[visitors.Visit]:
    """Serve the upstreams, send the calls, and stay a while to see what else comes."""
    async with AsyncExitStack() as stack:
        for one in upstreams:
            await stack.enter_async_context(one.serving())
        await asyncio.sleep(_SEEN_ALIVE_S)
        seen = await visitors.visits(url, _MODEL, calls)
        await asyncio.sleep(stay_s)
    return seen


def _calls(rate: float, seconds: float) -> list[Call]:
    return scene.short_calls(rate, seconds, longest=3)


async def _models(_: web.Request) -> web.Response:
    """Alive, and with a model: what a gateway asks an engine for by itself."""
    return web.json_response({"object": "list", "data": [{"id": _MODEL, "object": "model"}]})
