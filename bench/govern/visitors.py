"""Clients on real sockets that read what a refusal says: status, Retry-After, place and predicted wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec

from tailrace.simulate.clients import Call


class Visit(msgspec.Struct, kw_only=True):
    """One request and how it was answered; times in seconds of the event loop's clock."""

    call: Call
    begun: float
    ended: float = 0.0
    status: int = 0
    first: float | None = None
    request_id: str = ""
    retry_after_s: int | None = None
    position: int | None = None
    predicted_wait_ms: float | None = None
    ended_well: bool = False
    """The answer was 200 and said that it was whole."""
    error_event: bool = False
    """A stream that broke off said so in an event; an answer that was none, in its body."""
    error: str = ""


async def visit(session: aiohttp.ClientSession, url: str, model: str, call: Call, headers: dict[str, str]) -> Visit:
    """Send one streamed request and read it to its end."""
    loop = asyncio.get_running_loop()
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": _prompt(call)}],
        "max_tokens": call.output_tokens,
        "ignore_eos": True,
    }
    done = Visit(call=call, begun=loop.time())
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, headers={**headers, **call.headers}) as answer:
            done.status = answer.status
            done.request_id = answer.headers.get("x-request-id", "")
            if answer.status == 200:
                async for line in answer.content:
                    if done.first is None and b'"content":"' in line.replace(b": ", b":") and b'""' not in line:
                        done.first = loop.time()
                    done.error_event |= b'"error":' in line
                    done.ended_well |= b"[DONE]" in line
                done.ended_well &= not done.error_event
            else:
                retry_after = answer.headers.get("retry-after")
                done.retry_after_s = None if retry_after is None else int(retry_after)
                error = json.loads(await answer.read()).get("error", {})
                done.error_event = bool(error)
                done.position, done.predicted_wait_ms = error.get("position"), error.get("predicted_wait_ms")
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as problem:
        done.error = type(problem).__name__
    done.ended = loop.time()
    return done


async def visits(
    url: str,
    model: str,
    calls: list[Call],
    headers: dict[str, str] | None = None,
    stop: asyncio.Event | None = None,
) -> list[Visit]:
    """Send calls at their times, whatever becomes of the others; none after `stop`, and those in flight end."""
    loop = asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
        start = loop.time()
        tasks = []
        for call in calls:
            await asyncio.sleep(max(0.0, start + call.at_ns / 1e9 - loop.time()))
            if stop is not None and stop.is_set():
                break
            tasks.append(group.create_task(visit(session, url, model, call, headers or {})))
    return [task.result() for task in tasks]


def _prompt(call: Call) -> str:
    """Four characters a token, as the simulated engine counts; no two begin alike, so that no cache answers."""
    words = f"{call.name} "
    return (words * (4 * call.prompt_tokens // len(words) + 1))[: 4 * call.prompt_tokens]
