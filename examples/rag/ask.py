"""Ask the example's service many questions at once, one in five of them about its slow archive.

python examples/rag/ask.py
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter

import aiohttp


async def ask(url: str, requests: int, at_once: int) -> Counter[int]:
    """How often each HTTP status came back."""
    statuses: Counter[int] = Counter()
    room = asyncio.Semaphore(at_once)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:

        async def one(number: int) -> None:
            topic = "the archive" if number % 5 == 4 else "tail latency"
            async with room, session.post(f"{url}/ask", data=f"What of {topic}, case {number}?") as answer:
                await answer.read()
                statuses[answer.status] += 1

        async with asyncio.TaskGroup() as group:
            for number in range(requests):
                group.create_task(one(number))
    return statuses


def main() -> None:
    """Ask, and say what came of it."""
    parser = argparse.ArgumentParser(description="Ask the example's service.")
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:7000")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    try:
        statuses = asyncio.run(ask(options.url, options.requests, options.at_once))
    except* aiohttp.ClientConnectorError:
        raise SystemExit(f"nobody answers at {options.url}: start examples/rag/up.py first") from None
    told = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    sys.stdout.write(f"{options.requests} questions: {told}\n")


if __name__ == "__main__":
    main()
