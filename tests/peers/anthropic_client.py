"""Asks with the Anthropic SDK and prints what came: `python anthropic_client.py URL`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import anthropic

ASKED: Any = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "hello"}]}


async def main(url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0, timeout=20) as client:
        whole = await client.messages.create(**ASKED)
        async with client.messages.stream(**ASKED) as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        errors = []
        for stream in (False, True):
            try:
                answer = await client.messages.create(**{**ASKED, "model": "busy"}, stream=stream)
                if stream:
                    async for _ in answer:
                        pass
            except anthropic.APIStatusError as error:
                errors.append([type(error).__name__, error.status_code, error.body])
        report = {
            "whole": [whole.content[0].text, whole.usage.output_tokens],
            "stream": [pieces, final.usage.output_tokens, final.stop_reason],
            "errors": errors,
        }
        print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
