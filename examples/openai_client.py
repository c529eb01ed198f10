"""A client's policy for streamed chat on the OpenAI SDK: bounded waits, and retries that do not make overload worse.

* The first token has 5 s, each further one 3 s, the whole answer 60 s. The gateway is told by `x-deadline-ms`, and does
  not begin what cannot be done in time.
* Before the first token a refused, failed or late request is tried again: at most four times in all, with exponential
  backoff and full jitter, never before `Retry-After` says, and not at all where the wait does not fit.
* After the first token nothing is tried again: the user has read it, and a second answer would be another one.

The SDK's own retries are off. They know no jitter but a quarter, and no budget over all attempts; and its timeout
cannot tell the wait for the first token from one between tokens.

    python openai_client.py http://127.0.0.1:8080 llama3 "Why is the sky blue?"
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that another try may change. 499 is not among them: somebody ended the request on purpose."""
_random = random.SystemRandom()


@dataclass(frozen=True)
class Policy:
    """How long to wait for what (seconds), and how often to try."""

    first_token: float = 5.0
    idle: float = 3.0
    """Longer than the gateway's own idle budget, so that its error event is here first and says why."""
    total: float = 60.0
    attempts: int = 4
    backoff: float = 0.5
    """The longest first pause; it doubles with every attempt."""
    longest_backoff: float = 8.0

    def pause(self, attempt: int, retry_after: float) -> float:
        """Seconds before the next try: a random part of the backoff (full jitter), after what the server asks for."""
        return retry_after + _random.uniform(0.0, min(self.longest_backoff, self.backoff * 2 ** (attempt - 1)))


class StreamBrokenError(Exception):
    """An answer that broke off after its first token. `text` is what there was; `__cause__` says why."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(why)
        self.text = text


async def ask(client: openai.AsyncOpenAI, policy: Policy, **request: Any) -> AsyncIterator[str]:
    """Text of the answer as it comes. `request`: what `chat.completions.create` takes.

    Raises the SDK's error, or `TimeoutError`, where no attempt brought a token in time; `StreamBrokenError` later.
    """
    deadline = time.monotonic() + policy.total
    client = client.with_options(max_retries=0, timeout=policy.total)
    for attempt in range(1, policy.attempts + 1):
        text = ""
        pieces = _attempt(client, policy, deadline, request)
        try:
            async for piece in pieces:
                text += piece
                yield piece
        except (openai.OpenAIError, TimeoutError, ConnectionError) as error:
            if text:
                raise StreamBrokenError(text, str(error) or type(error).__name__) from error
            pause = policy.pause(attempt, _retry_after(error))
            fits = time.monotonic() + pause < deadline
            if attempt == policy.attempts or not fits or not _another_try_may_help(error):
                raise
            await asyncio.sleep(pause)
        else:
            return
        finally:
            await pieces.aclose()


async def _attempt(
    client: openai.AsyncOpenAI, policy: Policy, deadline: float, request: dict[str, Any]
) -> AsyncIterator[str]:
    left = deadline - time.monotonic()
    headers = {**request.get("extra_headers", {}), "x-deadline-ms": str(max(1, int(left * 1000)))}
    by = time.monotonic() + min(policy.first_token, left)
    async with asyncio.timeout(by - time.monotonic()):
        stream = await client.chat.completions.create(**{**request, "stream": True, "extra_headers": headers})
    try:
        events = aiter(stream)
        finished = False
        while True:
            async with asyncio.timeout(max(0.0, min(by, deadline) - time.monotonic())):
                event = await anext(events, None)
            if event is None:
                break
            for choice in event.choices[:1]:
                finished = finished or choice.finish_reason is not None
                if choice.delta.content:
                    yield choice.delta.content
            # Only what carries something counts: comments and role frames say that somebody lives, not that it works.
            if any(choice.delta.content or choice.delta.tool_calls or choice.finish_reason for choice in event.choices):
                by = time.monotonic() + policy.idle
        if not finished:
            raise ConnectionError("the answer ended without a finish reason")
    finally:
        await stream.close()


def _another_try_may_help(error: Exception) -> bool:
    return not isinstance(error, openai.APIStatusError) or error.status_code in RETRIED


def _retry_after(error: Exception) -> float:
    if not isinstance(error, openai.APIStatusError):
        return 0.0
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "0")))
    except ValueError:  # a date, which the gateway never sends
        return 0.0


async def main(url: str, model: str, question: str) -> None:
    """Print one answer."""
    async with openai.AsyncOpenAI(base_url=f"{url.rstrip('/')}/v1", api_key="none") as client:
        async for piece in ask(client, Policy(), model=model, messages=[{"role": "user", "content": question}]):
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
