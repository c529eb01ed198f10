"""CPU cost of `tailrace.stages` in a service: a stage, a budget, the middleware, and what the reporter's thread writes.

    python bench/stages.py

CPU time of this process, the least of several repeats. Budgets leave room for a machine of half the speed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from tailrace.stages import ServiceRequest, collect, stage
from tailrace.stages.asgi import StagesMiddleware
from tailrace.stages.otlp import export_request

STAGES = (
    "preprocess.intent",
    "preprocess.retrieval",
    "preprocess.assembly",
    "model",
    "postprocess",
    "postprocess.safety",
)
A_REQUEST = 200
"""Stages in one request: a collector keeps 4,096."""


def least(work: Callable[[int], None], n: int, repeats: int = 5) -> float:
    """Least CPU microseconds of one of `n`."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work(n)
        best = min(best, (time.process_time() - start) / n * 1e6)
    return best


def outside(n: int) -> None:
    for _ in range(n):
        with stage("preprocess.retrieval"):
            pass


def inside(n: int) -> None:
    for _ in range(n // A_REQUEST):
        with collect():
            outside(A_REQUEST)


def bounded(n: int) -> None:
    for _ in range(n // A_REQUEST):
        with collect():
            for _ in range(A_REQUEST):
                with stage("preprocess.retrieval", budget=1.0):
                    pass


def bounded_async(n: int) -> None:
    async def run() -> None:
        bounded(n)

    asyncio.run(run())


async def application(_: Any, receive: Any, send: Any) -> None:
    await receive()
    for name in STAGES:
        with stage(name):
            pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


last: list[ServiceRequest] = []


def middleware(n: int) -> None:
    app = StagesMiddleware(application, service="rag", report=lambda request: last.__setitem__(slice(None), [request]))
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    scope = {"type": "http", "path": "/ask", "headers": [(b"x-request-id", b"r1"), (b"traceparent", trace)]}

    async def run() -> None:
        asked = iter([True])

        async def receive() -> dict[str, Any]:
            if next(asked, False):
                return {"type": "http.request", "body": b""}
            return await asyncio.Event().wait() or {}

        async def send(_: Any) -> None:
            pass

        for _ in range(n):
            asked = iter([True])
            await app(scope, receive, send)

    asyncio.run(run())


def written(n: int) -> None:
    for _ in range(n):
        json.dumps(export_request(last))


def main() -> None:
    for name, work, n, budget in (
        ("a stage outside of a request", outside, 200_000, 2),
        ("a stage inside", inside, 200_000, 6),
        ("a stage with a budget, sync", bounded, 100_000, 12),
        ("a stage with a budget, async", bounded_async, 100_000, 30),
        ("the middleware with six stages, a request", middleware, 5_000, 250),
        ("writing its report, in the reporter's thread", written, 2_000, 200),
    ):
        row = {"name": name, "value": round(least(work, n), 2), "unit": "us CPU", "budget": budget}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
