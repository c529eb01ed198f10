"""Errors, in vLLM's shapes."""

from __future__ import annotations

import asyncio

import pytest

from tests.simserve.serving import CHAT, MODEL, chat, events, run, streamed, until

BAD = [
    (b"{", 400, "Bad Request", "body", "JSON decode error"),
    (b'{"unknown": ' + b"[" * 5000, 400, "Bad Request", "body", "JSON decode error"),
    (b"[]", 400, "Bad Request", "body", "Expected `object`, got `array`"),
    (b'{"messages": 3}', 400, "Bad Request", "body.messages", "Expected `array | null`"),
    (b"{}", 400, "Bad Request", "body.messages", "Field required"),
    (b'{"messages": []}', 400, "Bad Request", "body.messages", "Field required"),
    ({"model": "gpt-9"}, 404, "NotFoundError", "model", f"The model `gpt-9` does not exist. Valid aliases: {MODEL}."),
    ({"n": 2}, 400, "BadRequestError", "n", "n=2 is not supported"),
    ({"priority": "high"}, 400, "Bad Request", "body.priority", "Expected `int | null`, got `str`"),
    ({"max_tokens": 100_000}, 400, "BadRequestError", "max_tokens", "max_tokens=100000 cannot be greater than"),
    ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens", "max_tokens must be at least 1"),
    (
        {"tailrace_prompt_tokens": 40_000},
        400,
        "BadRequestError",
        "input_tokens",
        "This model's maximum context length is 32768 tokens. However, your prompt contains at least 40000",
    ),
]


@pytest.mark.parametrize(("body", "status", "kind", "param", "message"), BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(body, status, kind, param, message, stream):
    async def scenario(server, session):
        send = {"data": body} if isinstance(body, bytes) else {"json": chat(**{**body, "stream": stream})}
        if isinstance(body, dict) and "model" in body:
            send["json"]["model"] = body["model"]
        async with session.post(CHAT, headers={"X-Request-Id": "bad-1"}, **send) as response:
            error = (await response.json())["error"]
            assert response.status == error["code"] == status
            assert response.headers["X-Request-Id"] == "bad-1"
        assert (error["type"], error["param"]) == (kind, param)
        assert message in error["message"]
        assert not server.driver.live

    run(scenario)


def test_unknown_paths_and_methods():
    async def scenario(server, session):
        async with session.get("/v1/nothing") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == 404
        async with session.get(CHAT) as response:
            assert response.status == 405
            assert "tailrace-simulated-engine" in response.headers["Server"]

    run(scenario)


@pytest.mark.parametrize("in_stream", [False, True])
def test_a_full_queue(in_stream):
    async def scenario(server, session):
        held = [asyncio.ensure_future(session.post(CHAT, json=streamed(max_tokens=4000))) for _ in range(2)]
        await until(lambda: len(server.driver.live) == 2)
        async with session.post(CHAT, json=chat()) as response:
            assert response.status == 503
            assert (await response.json())["error"] == {
                "message": "The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
                "type": "Service Unavailable",
                "param": None,
                "code": 503,
            }
            assert "Retry-After" not in response.headers
        async with session.post(CHAT, json=streamed()) as response:
            if in_stream:
                first, done = await events(response)
                assert first["error"]["code"] == 503
                assert done == "[DONE]"
            else:
                assert response.status == 503
        async with session.get("/metrics") as response:
            text = await response.text()
        assert f'admission_rejections_total{{model_name="{MODEL}",reason="max_num_queued_reqs"}} 2.0' in text
        for task in held:
            (await task).close()
        await until(lambda: not server.driver.live)
        async with session.post(CHAT, json=chat(max_tokens=2)) as response:
            assert response.status == 200

    run(scenario, max_num_queued_reqs=2, reject_in_stream=in_stream)
