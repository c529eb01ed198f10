"""Runs vLLM's own request functions, the ones behind `vllm bench serve`, and prints what they report.

    python vllm_client.py FILE URL MODEL KIND N CONCURRENCY OUTPUT

FILE is `endpoint_request_func.py` of vLLM's wheel; it needs aiohttp, regex and tqdm, and nothing of vLLM.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from typing import Any


def load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("endpoint_request_func", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def main(file: str, url: str, model: str, kind: str, n: str, concurrency: str, output: str) -> None:
    module = load(file)
    import aiohttp

    function = {
        "chat": module.async_request_openai_chat_completions,
        "completions": module.async_request_openai_completions,
    }[kind]
    address = url + {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[kind]
    turns = asyncio.Semaphore(int(concurrency))

    async def one(number: int, session: aiohttp.ClientSession) -> Any:
        asked = module.RequestFuncInput(
            prompt=f"Tell me about the number {number}.",
            api_url=address,
            prompt_len=8,
            output_len=int(output),
            model=model,
            ignore_eos=True,
        )
        async with turns:
            return await function(asked, session)

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(one(number, session) for number in range(int(n))))
    report = {
        "completed": sum(answer.success for answer in answers),
        "errors": sorted(answer.error.strip().splitlines()[-1] for answer in answers if not answer.success),
        "tokens": [answer.output_tokens for answer in answers if answer.success],
        "gaps": [len(answer.itl) for answer in answers if answer.success],
        "without_first_token": sum(not answer.ttft for answer in answers if answer.success),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
