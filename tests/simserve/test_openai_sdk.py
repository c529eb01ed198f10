"""The OpenAI SDK, unmodified."""

from __future__ import annotations

import asyncio

import pytest

from tests.simserve.serving import MODEL, run

pytestmark = pytest.mark.needs("openai")


def test_streaming_and_whole_answers():
    async def scenario(server, session):
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            messages = [{"role": "user", "content": "hello"}]
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=messages,
                max_tokens=12,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            text, usage, finish = "", None, None
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
            whole = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=12, extra_body={"ignore_eos": True}
            )
            assert whole.choices[0].message.content == text
            assert whole.usage.completion_tokens == usage.completion_tokens == 12
            assert whole.choices[0].finish_reason == finish == "length"
            models = await client.models.list()
            assert [model.id for model in models.data] == [MODEL]

    run(scenario)


def test_errors_and_timeouts_are_the_sdks_own():
    async def scenario(server, session):
        import openai

        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            messages = [{"role": "user", "content": "hello"}]
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await client.chat.completions.create(model="other", messages=messages)
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                await client.chat.completions.create(
                    model=MODEL, messages=messages, extra_body={"tailrace_prompt_tokens": 100_000}
                )
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(
                    model=MODEL, messages=messages, max_tokens=8000, extra_body={"ignore_eos": True}, timeout=0.2
                )
        for _ in range(200):
            if not server.engine.running:
                break
            await asyncio.sleep(0.01)
        assert server.engine.running == 0

    run(scenario)
