"""What real engines sent, byte for byte, through the gateway: it passes as it was, and means what it meant."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.measure.shared import llamacpp_case, sample_text, vllm_case
from tests.wire.client import chat_body, request
from tests.wire.scripted import SSE_HEAD, Incoming, Script, chunk
from tests.wire.stand import run, stand

shared = pytest.mark.needs("shared")
COMPLETED = (OutcomeKind.COMPLETED, Reason.NONE)
BUSY = (OutcomeKind.REJECTED, Reason.QUEUE_FULL)
TOO_LONG = (OutcomeKind.REJECTED, Reason.INPUT_TOO_LONG)

VLLM: dict[str, tuple[tuple[OutcomeKind, Reason], int, int | None, str]] = {
    # case: (how it ended, status that the client gets, output tokens, finish reason)
    "stream_continuous_usage": (COMPLETED, 200, 6, "length"),
    "stream_include_usage": (COMPLETED, 200, 6, "length"),
    "stream_keep_alive_while_queued": (COMPLETED, 200, 3, "length"),
    "nonstream": (COMPLETED, 200, 3, "length"),
    "prefix_repeat": (COMPLETED, 200, 3, "length"),
    "stream_rejected_inside_200": (BUSY, 503, None, ""),
    "stream_rejected_503": (BUSY, 503, None, ""),
    "nonstream_rejected_503": (BUSY, 503, None, ""),
    "error_prompt_too_long": (TOO_LONG, 400, None, ""),
    "error_max_tokens": (TOO_LONG, 400, None, ""),
    "error_unknown_model": ((OutcomeKind.REJECTED, Reason.UNKNOWN_MODEL), 404, None, ""),
    "error_priority_type": ((OutcomeKind.REJECTED, Reason.BAD_REQUEST), 400, None, ""),
    "engine_core_killed_mid_stream": ((OutcomeKind.FAILED, Reason.ENGINE_CRASH), 200, None, ""),
}


def replaying(case: dict[str, Any]) -> Script:
    """Status, headers and pieces as they were, without the waiting."""
    pieces = [each["data"].encode() for each in case["chunks"]]
    kept = [line for line in case["headers"] if not line.lower().startswith(("content-length", "transfer-encoding"))]

    async def script(incoming: Incoming) -> None:
        lines = [case["status"], *kept, "transfer-encoding: chunked", "", ""]
        await incoming.send("\r\n".join(lines).encode())
        for piece in pieces:
            await incoming.chunks(piece)
            await asyncio.sleep(0.002)
        await incoming.end()

    return script


@shared
@pytest.mark.parametrize("name", VLLM)
def test_vllm(name: str) -> None:
    ending, status, tokens, finish_reason = VLLM[name]
    case = vllm_case(name)
    body = b"".join(each["data"].encode() for each in case["chunks"])
    stream = body.startswith((b"data:", b":"))

    async def test() -> None:
        async with stand(replaying(case)) as s:
            options = {"stream_options": {"include_usage": True}} if stream else {}
            reply = await s.ask(request(chat_body(stream=stream, **options)))
            record = await s.record()
            assert (record.outcome, record.reason) == ending
            assert reply.status == status
            if status == 200 or not stream:
                assert reply.body == body
            else:
                assert reply.json["error"]["message"] == json.loads(body[6:].split(b"\n")[0])["error"]["message"]
            if tokens is not None:
                assert (record.output_tokens, record.output_tokens_source) == (tokens, "usage")
            assert record.finish_reason == finish_reason
            assert record.engine in ("", "vllm")  # `server: uvicorn` gives nobody away

    run(test())


@shared
@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("title", ["POST /v1/chat", "+ stream_options", "+ timings_per_token", "+ return_progress"])
def test_llamacpp(title: str, size: int) -> None:
    body = llamacpp_case(title)

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD.replace(b"\r\n\r\n", b"\r\nServer: llama.cpp\r\n\r\n"))
        await incoming.send(b"".join(chunk(body[at : at + size]) for at in range(0, len(body), size)))
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            options = {"stream_options": {"include_usage": True}, "return_progress": True}
            reply = await s.ask(request(chat_body(**options)))
            assert reply.body == body
            record = await s.record()
            assert (record.outcome, record.engine) == (OutcomeKind.COMPLETED, "llamacpp")
            # That answer ended at once: its one token was the end of the text, and no frame brought any.
            assert (record.output_tokens is None) is (title == "+ return_progress")
            assert record.finish_reason in ("stop", "length")

    run(test())


def _triton(title: str) -> tuple[int, bytes]:
    text = next(part for part in sample_text("triton/http_samples.txt").split("### ") if part.startswith(title))
    head, _, body = text.partition("\n")[2].partition("\n\n")
    return int(head.split()[1]), body.rstrip("\n").encode()


@shared
@pytest.mark.parametrize(
    ("title", "call", "ending"),
    [
        ("POST infer (with id", "infer", COMPLETED),
        ("POST infer bad shape", "infer", (OutcomeKind.REJECTED, Reason.BAD_REQUEST)),
        ("POST generate (non-stream) on decoupled model, 1", "generate", COMPLETED),
        (
            "POST generate on decoupled model, 3 tokens",
            "generate",
            (OutcomeKind.FAILED, Reason.ENGINE_ERROR),
        ),
    ],
)
def test_triton(title: str, call: str, ending: tuple[OutcomeKind, Reason]) -> None:
    status, body = _triton(title)

    async def script(incoming: Incoming) -> None:
        await incoming.reply(body, status)

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(b"{}", path=f"/v2/models/stream_tok/{call}"))
            assert (reply.status, reply.body) == (status, body)
            record = await s.record()
            assert (record.outcome, record.reason) == ending

    run(test())


@shared
def test_triton_generate_stream() -> None:
    status, body = _triton("POST generate_stream, 4 tokens")
    body += b"\n\n"

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for each in body.split(b"\n\n")[:-1]:
            await incoming.chunks(each + b"\n\n")
            await asyncio.sleep(0.002)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(b"{}", path="/v2/models/stream_tok/generate_stream"))
            assert (reply.status, reply.body) == (status, body)
            record = await s.record()
            assert (record.outcome, record.output_tokens, record.chunk_gap_count) == (OutcomeKind.COMPLETED, 4, 3)

    run(test())
