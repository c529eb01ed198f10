"""What token limits cost: processor time of a request, and how long a long prompt holds the event loop.

    python bench/token_limits.py

The second part sends a prompt of 100,000 tokens through a gateway in this process while a task measures how late the
event loop comes round. Cut on the loop and in the thread stand side by side, with a round in which nothing is cut.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tailrace.app.gateway_process import tune_interpreter  # noqa: E402
from tailrace.gateway import shaping  # noqa: E402
from tailrace.gateway.callers import Callers  # noqa: E402
from tailrace.gateway.config import config_from  # noqa: E402
from tailrace.gateway.lanes import LaneDesk  # noqa: E402
from tailrace.gateway.work import read_work  # noqa: E402
from tailrace.govern.text_size import TextSize  # noqa: E402
from tailrace.govern.token_estimate import TokenRates  # noqa: E402
from tailrace.measure.ledger import RequestLedger  # noqa: E402
from tests.wire.client import CHAT, chat_body, request  # noqa: E402
from tests.wire.scripted import Incoming  # noqa: E402
from tests.wire.stand import stand  # noqa: E402

BUDGET_US = 20.0
REQUESTS = 4_000
ROUNDS = 5
ON_LOOP = 1 << 40


def row(name: str, value: float, unit: str, budget: float | None = None) -> None:
    print(json.dumps({"name": name, "value": value, "unit": unit, "budget": budget}))


# -- each request


def cost_us(lanes: list[dict[str, Any]], *, learnt: bool, max_tokens: int = 50) -> float:
    """Of one request of 100 tokens, beside reading its body."""
    config = config_from({"backends": [{"url": "http://127.0.0.1:1"}], "lanes": lanes})
    desk = shaping.Shaping(LaneDesk(config.lane_policies()))
    desk.apply(config)
    for n in range(50 if learnt else 0):
        desk.estimates.learn("m", TextSize(narrow=400 + n * 10, messages=1), 120 + 3 * n)
    body = chat_body(messages=[{"role": "user", "content": "x" * 400}], max_tokens=max_tokens)
    work = read_work(body)
    ledger = RequestLedger(request_id="a", start_unix_ns=0, received=0, endpoint=CHAT, lane="passthrough")
    route, head = SimpleNamespace(endpoint=CHAT), SimpleNamespace(named={})
    gateway = SimpleNamespace(callers=Callers(config))
    exchange: Any = SimpleNamespace(
        gateway=gateway, work=work, upload=None, ledger=ledger, route=route, head=head, lane=""
    )
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(REQUESTS):
            exchange.work = work
            ledger.lane = "passthrough"
            desk.shape(exchange, body)
        best = min(best, (time.process_time() - began) / REQUESTS)
    return best * 1e6


def learning_us() -> float:
    rates = TokenRates()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for n in range(REQUESTS):
            rates.learn(TextSize(narrow=400 + n % 300, messages=3), 150 + n % 70)
        best = min(best, (time.process_time() - began) / REQUESTS)
    return best * 1e6


# -- long prompts

_PARAGRAPH = "Some sentence of ordinary length stands here, and another one follows it. " * 6


def one_text(size: int) -> bytes:
    text = "\n\n".join(f"{i} {_PARAGRAPH}" for i in range(size // len(_PARAGRAPH)))
    return chat_body(messages=[{"role": "user", "content": f"{text}\n\nWhat follows?"}], stream=False)


def turns(count: int) -> bytes:
    talk = "word " * 40
    said = [{"role": ("user", "assistant")[i % 2], "content": f"{i}: {talk}"} for i in range(2 * count)]
    return chat_body(messages=[*said, {"role": "user", "content": "What follows?"}], stream=False)


async def answer(incoming: Incoming) -> None:
    # No usage: what the estimate is must not change from round to round.
    await incoming.reply({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})


async def pauses(body: bytes, limit: int, *, in_thread: bool) -> tuple[float, float]:
    """(longest pause of the loop, processor time of the whole request), in ms; medians."""
    shaping.INLINE_CUT = 64 * 1024 if in_thread else ON_LOOP  # type: ignore[misc]
    longest: list[float] = []
    took: list[float] = []
    async with stand(answer, lanes=[{"name": "default", "tokens": {"max_prompt": limit, "over": "truncate"}}]) as s:
        for _ in range(ROUNDS):
            late: list[float] = []
            over = asyncio.Event()

            async def watch(late: list[float] = late, over: asyncio.Event = over) -> None:
                while not over.is_set():
                    began = time.perf_counter()
                    await asyncio.sleep(0.001)
                    late.append(time.perf_counter() - began - 0.001)

            watching = asyncio.get_running_loop().create_task(watch())
            await asyncio.sleep(0.01)
            began = time.process_time()
            await s.ask(request(body))
            took.append(time.process_time() - began)
            over.set()
            await watching
            longest.append(max(late))
    return statistics.median(longest) * 1e3, statistics.median(took) * 1e3


def scenes() -> Iterator[tuple[str, bytes]]:
    yield "100,000 tokens, one text", one_text(400_000)
    yield "100,000 tokens, 1,000 turns", turns(1000)
    yield "500,000 tokens, one text", one_text(2_000_000)


async def long_prompts() -> None:
    for name, body in scenes():
        for title, limit, in_thread in (
            ("within", 10**7, True),
            ("on the loop", 10_000, False),
            ("thread", 10_000, True),
        ):
            pause, took = await pauses(body, limit, in_thread=in_thread)
            row(f"{name}, {title}: longest pause", pause, "ms")
            row(f"{name}, {title}: processor", took, "ms")


def main() -> int:
    tune_interpreter()
    limits = {"max_prompt": 4000, "max_output": 500}
    elsewhere = [{"name": f"l{i}", "match": {"min_prompt_tokens": 10**6}, "tokens": limits} for i in range(5)]
    row("nothing configured", cost_us([], learnt=False), "us", BUDGET_US)
    row("nothing configured, calibrated", cost_us([], learnt=True), "us", BUDGET_US)
    row("within its limits", cost_us([{"name": "default", "tokens": limits}], learnt=True), "us", BUDGET_US)
    behind = [*elsewhere, {"name": "default", "tokens": limits}]
    row("within its limits, sixth lane", cost_us(behind, learnt=True), "us", BUDGET_US)
    capped = cost_us([{"name": "default", "tokens": limits}], learnt=True, max_tokens=5000)
    row("capped", capped, "us", BUDGET_US)
    row("learning from a finished request", learning_us(), "us", BUDGET_US)
    uvloop.run(long_prompts())
    return 0


if __name__ == "__main__":
    sys.exit(main())
