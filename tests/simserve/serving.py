"""A simulated server on a real port in this process, and how tests talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import msgspec

from tailrace.simserve.options import ServerOptions
from tailrace.simserve.server import SimulatedServer
from tailrace.simulate.presets import preset

PRESET = preset("a100-llama3-8b")
MODEL = "llama3-8b-simulated"
CHAT = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def serving(**options) -> AsyncIterator[tuple[SimulatedServer, aiohttp.ClientSession]]:
    """A server twenty times as fast as an A100, unless the test says otherwise; knobs by name."""
    knobs = {name: options.pop(name) for name in list(options) if name in PRESET.knobs.__struct_fields__}
    server = SimulatedServer(
        ServerOptions(
            port=0,
            knobs=msgspec.structs.replace(PRESET.knobs, **knobs),
            **{"time_scale": 20.0, **options},
        )
    )
    url = await server.start()
    try:
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=15)) as session:
            yield server, session
    finally:
        await server.close()


def run(scenario: Callable[..., Awaitable[None]], **options) -> None:
    """Run `scenario(server, session)` against a server with `options`."""

    async def main() -> None:
        async with serving(**options) as (server, session):
            await scenario(server, session)

    asyncio.run(main())


def chat(text: str = "Tell me about rivers.", **fields) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def streamed(text: str = "Tell me about rivers.", **fields) -> dict:
    return chat(text, stream=True, **{"ignore_eos": True, "max_tokens": 8, **fields})


async def events(response: aiohttp.ClientResponse) -> list[dict | str]:
    """The `data:` payloads of a stream; `[DONE]` as text."""
    assert response.status == 200, await response.text()
    out: list[dict | str] = []
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line[6:].strip().decode()
            out.append(data if data == "[DONE]" else json.loads(data))
    return out


def text_of(stream: list[dict | str]) -> str:
    return "".join(
        choice["delta"].get("content", "") for event in stream if isinstance(event, dict) for choice in event["choices"]
    )


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for a condition of the server; fails the test when it does not come."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, "the condition did not come true"
        await asyncio.sleep(0.005)
