"""A retrieval-augmented service in front of a Tailrace gateway: `POST /ask` with a question as text, text comes back.

Every step is a stage with a budget of its own; the middleware reports each request to the gateway's admin port, where
it becomes a record beside the gateway's record of the model call. Run it with any ASGI server:

    INDEX=http://127.0.0.1:7001 uvicorn --app-dir examples/rag service:app --port 7000
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import aiohttp

from tailrace.stages import outgoing_headers, stage
from tailrace.stages.asgi import Message, Receive, Scope, Send, StagesMiddleware

INDEX = os.environ.get("INDEX", "http://127.0.0.1:7001")
GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:8080")
REPORT = os.environ.get("REPORT", "http://127.0.0.1:9480/v1/traces")
TOKEN = os.environ.get("TAILRACE_ADMIN_TOKEN", "")
RETRIEVAL_BUDGET = os.environ.get("RETRIEVAL_BUDGET", "800ms")
MODEL = os.environ.get("MODEL", "llama3-8b-simulated")
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "48"))
FORBIDDEN = ("password", "secret")


class Service:
    """The application: one HTTP session to everything behind it."""

    def __init__(self) -> None:
        self.session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and scope["path"] == "/ask":
            await self._ask((await _body(receive)).decode("utf-8", "replace"), send)
        else:
            await _start(send, 404)
            await send({"type": "http.response.body", "body": b"POST a question to /ask\n"})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with aiohttp.ClientSession() as session:
            self.session = session
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _ask(self, question: str, send: Send) -> None:
        with stage("preprocess.intent", budget="200ms"):
            wants_sources = "source" in question.lower()
        passages = await self._retrieve(question)
        with stage("preprocess.assembly", budget="200ms"):
            prompt = "\n\n".join([*passages, f"Question: {question}", "Answer from the passages above."])
        answer: list[str] = []
        started = False
        # From the call to the last token; the gateway's own record splits it into queue, prefill and decode.
        with stage("model", budget="20s"):
            async with aclosing(self._generate(prompt)) as tokens:
                async for token in tokens:
                    if not started:
                        await _start(send, 200)
                        started = True
                    answer.append(token)
                    await send({"type": "http.response.body", "body": token.encode(), "more_body": True})
        with stage("postprocess.citations", budget="200ms"):
            tail = f"\n\nSources: {len(passages)} passages.\n" if wants_sources else "\n"
        with stage("postprocess.safety", budget="500ms"):
            if any(word in "".join(answer).lower() for word in FORBIDDEN):
                tail = "\n\n(This answer was withdrawn.)\n"
        if not started:
            await _start(send, 200)
        await send({"type": "http.response.body", "body": tail.encode()})

    @stage("preprocess.retrieval", budget=RETRIEVAL_BUDGET)
    async def _retrieve(self, question: str) -> list[str]:
        """Passages from the index; cancelled when the budget is over, and the middleware answers 504."""
        assert self.session is not None
        async with self.session.get(f"{INDEX}/search", params={"q": question}, headers=outgoing_headers()) as answer:
            passages: list[str] = await answer.json()
            return passages

    async def _generate(self, prompt: str) -> AsyncGenerator[str, None]:
        """Tokens of the model behind the gateway, as they come."""
        assert self.session is not None
        body = {
            "model": MODEL,
            "stream": True,
            "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": prompt}],
        }
        url = f"{GATEWAY}/v1/chat/completions"
        async with self.session.post(url, json=body, headers=outgoing_headers()) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"].get("message", "the model failed"))
                for choice in event.get("choices", ()):
                    text = choice.get("delta", {}).get("content")
                    if text:
                        yield text


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message: Message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _start(send: Send, status: int) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})


app = StagesMiddleware(Service(), service="rag", report=REPORT, token=TOKEN)
